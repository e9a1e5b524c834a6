"""Loopback ports: a block for each installation, held by its first port."""

import random
import socket
from pathlib import Path
from types import TracebackType
from typing import Self

from lehr.stack.errors import NoPortFree

LOOPBACK = "127.0.0.1"
BLOCK_SIZE = 128

_LOWEST = 10240
_EPHEMERAL_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
# Where the kernel takes local ports of outgoing connections, if it does not say.
_EPHEMERAL_FROM = 32768


class Ports:
    """A block of ports of this installation; two living stacks never share one.

    All lie below the ports that the kernel gives to outgoing connections. A client that retries
    while a server is down could otherwise be given the server's own port, talk to itself, and keep
    the server from coming back.
    """

    def __init__(self, lock: socket.socket, assigned: dict[str, int]) -> None:
        self._lock = lock
        self._base = int(lock.getsockname()[1])
        self._assigned = dict(assigned)

    @classmethod
    def claim(cls, kept: dict[str, int], *, seed: int | None = None) -> Self:
        """Take the block of ``kept``, or another one if a stranger has it.

        Args:
            kept: what was assigned when the stack last ran, with the base as ``""``.
            seed: for tests; the order in which blocks are tried.

        Raises:
            NoPortFree: no block is free.
        """
        if kept:
            lock = _bound(kept[""])
            if lock is not None and all(is_free(port) for name, port in kept.items() if name):
                return cls(lock, kept)
            if lock is not None:
                lock.close()
        bases = list(range(_LOWEST, _ephemeral_from() - BLOCK_SIZE, BLOCK_SIZE))
        random.Random(seed).shuffle(bases)  # noqa: S311 - spread, not a secret
        for base in bases:
            lock = _bound(base)
            if lock is not None:
                return cls(lock, {"": base})
        raise NoPortFree(
            f"no block of {BLOCK_SIZE} ports from {_LOWEST} is free on {LOOPBACK}: stop a stack"
        )

    @property
    def assigned(self) -> dict[str, int]:
        """Every port by what it is for, with the base as ``""``."""
        return dict(self._assigned)

    def port(self, purpose: str) -> int:
        """Return the port for a purpose, always the same.

        Raises:
            NoPortFree: the block is used up.
        """
        if purpose not in self._assigned:
            taken = set(self._assigned.values())
            block = range(self._base + 1, self._base + BLOCK_SIZE)
            free = (port for port in block if port not in taken and is_free(port))
            port = next(free, None)
            if port is None:
                raise NoPortFree(f"the block of ports from {self._base} is used up")
            self._assigned[purpose] = port
        return self._assigned[purpose]

    def close(self) -> None:
        """Give the block back."""
        self._lock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def is_free(port: int) -> bool:
    """Say whether a server could listen on a loopback port now."""
    with socket.socket() as probe:
        # Connections of a server that has just gone must not count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
            probe.listen(1)
        except OSError:
            return False
        return True


def _bound(port: int) -> socket.socket | None:
    lock = socket.socket()
    lock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        lock.bind((LOOPBACK, port))
        # With SO_REUSEADDR only a listening socket keeps others away.
        lock.listen(1)
    except OSError:
        lock.close()
        return None
    return lock


def _ephemeral_from() -> int:
    try:
        return int(_EPHEMERAL_RANGE.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return _EPHEMERAL_FROM
