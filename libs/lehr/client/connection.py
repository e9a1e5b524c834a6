"""Where the gateway is, with which key, and how one call is made."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import grpc.aio

from lehr.errors import FailedPrecondition, Unavailable
from lehr.ids import event_uuid
from lehr.rpc.client import CHANNEL_OPTIONS
from lehr.rpc.context import REQUEST_ID_KEY
from lehr.rpc.translate import raises_platform_errors

ADDRESS_ENV = "LEHR_API_ADDRESS"
KEY_ENV = "LEHR_API_KEY"

CALL_SECONDS = 60.0
"""Deadline of a call unless it needs longer."""

LONG_CALL_SECONDS = 600.0
"""Deadline of calls that read whole datasets or models."""

T = TypeVar("T")


class GatewayAway(Unavailable):
    """Nobody answers where the gateway should be."""

    reason = "GATEWAY_AWAY"


class NotConnected(FailedPrecondition):
    """It is not known where the gateway is, or with which key to call it."""

    reason = "NOT_CONNECTED"


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """A gateway and a key for it."""

    address: str
    """``host:port``."""
    api_key: str = field(repr=False)

    @classmethod
    def find(
        cls,
        state_dir: Path | None = None,
        *,
        address: str | None = None,
        api_key: str | None = None,
    ) -> Endpoint:
        """Take what is not given from the environment, else from a local stack's state folder.

        Raises:
            NotConnected: neither has it.
        """
        address = address or os.environ.get(ADDRESS_ENV)
        key = api_key or os.environ.get(KEY_ENV)
        if address and key:
            return cls(address=address, api_key=key)
        if address:
            # The local stack's key is for its own gateway and is shown to no other.
            raise NotConnected(f"the key for {address} is not known: set {KEY_ENV}")
        # Imported late: only those who run a stack here need it.
        from lehr.stack import Stack  # noqa: PLC0415

        status = Stack(state_dir).status()
        if status.gateway is None or not status.api_key_file.is_file():
            raise NotConnected(
                f"no stack runs here and {ADDRESS_ENV} and {KEY_ENV} are not set:"
                " start one with `lehr up`, or set both"
            )
        return cls(
            address=status.gateway,
            api_key=key or status.api_key_file.read_text(encoding="ascii").strip(),
        )


class Connection:
    """One channel to the gateway; every call carries the key, a deadline and a request id."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self.channel = grpc.aio.insecure_channel(endpoint.address, options=CHANNEL_OPTIONS)

    def _metadata(self) -> tuple[tuple[str, str], ...]:
        return (
            ("authorization", f"Bearer {self.endpoint.api_key}"),
            (REQUEST_ID_KEY, f"req_{event_uuid().hex}"),
        )

    async def call(
        self, method: Callable[..., Awaitable[T]], request: Any, *, seconds: float = CALL_SECONDS
    ) -> T:
        """Call a unary method; safe to repeat, so an unavailable service is tried again.

        Raises:
            PlatformError: what the service raised.
        """
        with self._raises():
            return await method(request, timeout=seconds, metadata=self._metadata())

    async def stream(self, method: Callable[..., Any], request: Any) -> AsyncIterator[Any]:
        """Read a streaming method.

        Raises:
            PlatformError: what the service raised, while iterating.
        """
        with self._raises():
            async for answer in method(request, metadata=self._metadata()):
                yield answer

    @contextmanager
    def _raises(self) -> Iterator[None]:
        try:
            with raises_platform_errors():
                yield
        except Unavailable as error:
            if error.reason != Unavailable.reason:
                raise
            # Nobody answered who could have said more.
            raise GatewayAway(
                f"the gateway at {self.endpoint.address} does not answer:"
                f" see `lehr status`, or check {ADDRESS_ENV}",
                address=self.endpoint.address,
            ) from error

    async def close(self) -> None:
        """Close the channel."""
        await self.channel.close(None)
