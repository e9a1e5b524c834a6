"""Decides which addresses may be connected to on behalf of a user."""

import ipaddress
import socket
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, Self, TypeVar
from urllib.parse import urlsplit

from lehr.egress.addresses import is_public
from lehr.errors import InvalidArgument

T = TypeVar("T")

Resolve = Callable[..., list[Any]]
"""``socket.getaddrinfo``, or what answers like it."""

_PORTS = {"http": 80, "https": 443}


class EgressRefused(InvalidArgument):
    """The address is not one of a public server.

    One message for all: a caller must not learn from it what exists in the platform's network.
    """

    reason = "EGRESS_REFUSED"

    def __init__(self) -> None:
        super().__init__(
            "the address is refused: only http and https addresses of public servers are"
            " connected to; give one that everybody can reach"
        )


class Guard:
    """Resolves names once and passes on public addresses only.

    A name with one internal address among several is refused as a whole. The caller connects to
    the returned address and not to the name, so that a later change of the name has no effect.
    """

    def __init__(
        self, allowed: Iterable[tuple[str, int]] = (), *, resolve: Resolve = socket.getaddrinfo
    ) -> None:
        """Allow hosts of the operator, by name or address with a port, whatever they resolve to."""
        self._allowed = frozenset((host.lower(), port) for host, port in allowed)
        self._resolve = resolve
        self._known: set[tuple[str, int]] = set(self._allowed)
        """Addresses with ports that are good although they are not public."""

    @classmethod
    def parse(cls, allowed: str) -> Self:
        """Read a list such as ``127.0.0.1:9000, hub.internal:443, [::1]:80``.

        Raises:
            ValueError: a part is no host with a port.
        """
        pairs = []
        for part in filter(None, (one.strip() for one in allowed.split(","))):
            url = urlsplit(f"//{part}")
            if not url.hostname or not url.port or url.netloc != part or "@" in part:
                raise ValueError(f"{part!r} is no host:port")
            pairs.append((url.hostname, url.port))
        return cls(pairs)

    def addresses(self, host: str, port: int) -> tuple[str, ...]:
        """Return the addresses of a host, all of them good; one resolution, no connection.

        Raises:
            EgressRefused: it has none, or one that is not public.
        """
        name = host.lower().rstrip(".")
        try:
            found = self._resolve(name, port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError, ValueError, OverflowError):
            raise EgressRefused from None
        addresses = tuple(dict.fromkeys(str(entry[4][0]) for entry in found))
        if (name, port) in self._allowed:
            self._known.update((address, port) for address in addresses)
        if not addresses or not all(self.is_good(address, port) for address in addresses):
            raise EgressRefused
        return addresses

    def connect(self, host: str, port: int, dial: Callable[[str], T]) -> T:
        """Dial the addresses of a host, all of them good, until one answers.

        Raises:
            EgressRefused: it has none, or one that is not public.
            Exception: what ``dial`` raised for the last address.
        """
        *others, last = self.addresses(host, port)
        for address in others:
            with suppress(Exception):
                return dial(address)
        return dial(last)

    def is_good(self, address: str, port: int) -> bool:
        """Return whether an address, a literal, may be connected to."""
        return (address, port) in self._known or is_public(address)

    def check_url(self, url: str) -> None:
        """Look at an address that a user gave, before anything else is done with it.

        Raises:
            EgressRefused: another scheme, a user or password in it, or no public host.
        """
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError:
            raise EgressRefused from None
        if parts.scheme not in _PORTS or not parts.hostname or "@" in parts.netloc:
            raise EgressRefused
        self.addresses(parts.hostname, port or _PORTS[parts.scheme])

    def check_peer(self, family: int, peer: object) -> None:
        """Look at what a socket is about to connect to, as the operating system is told it.

        Raises:
            EgressRefused: no literal address of a public server; a name would be resolved later.
        """
        if family not in (socket.AF_INET, socket.AF_INET6) or not isinstance(peer, tuple):
            raise EgressRefused
        address, port = peer[:2]
        try:
            ipaddress.ip_address(address)
        except ValueError:
            raise EgressRefused from None
        if not self.is_good(str(address), port):
            raise EgressRefused
