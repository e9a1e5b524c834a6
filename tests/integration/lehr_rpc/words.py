"""A little gRPC service without generated code: text in, text out."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio

from lehr.rpc.server import Server
from tests.unit.lehr_rpc.keys import key_pair

KEYS = {name: key_pair() for name in ("gateway", "billing", "stranger")}

SERVICE = "lehr.test.Words"

Unary = Callable[[str, Any], Awaitable[str]]


def encode(text: str | bytes) -> bytes:
    # grpc hands a plain str over as bytes on the server's side.
    return text if isinstance(text, bytes) else text.encode()


def decode(body: bytes) -> str:
    return body.decode()


async def joined(requests: AsyncIterator[str], _context: Any) -> str:
    return " ".join([word async for word in requests])


class Words:
    """What each method does is given by the test."""

    def __init__(self, say: Unary) -> None:
        self.say = say
        self.join: Callable[[AsyncIterator[str], Any], Awaitable[str]] = joined
        self.ended: list[str] = []

    async def Say(self, request: str, context: Any) -> str:
        return await self.say(request, context)

    async def Count(self, request: str, context: Any) -> AsyncIterator[str]:
        try:
            for number in range(int(request)):
                yield str(number)
            await self.say(request, context)
        finally:
            self.ended.append("count")

    async def Join(self, requests: AsyncIterator[str], context: Any) -> str:
        return await self.join(requests, context)

    async def Echo(self, requests: AsyncIterator[str], _context: Any) -> AsyncIterator[str]:
        async for word in requests:
            yield word


def add_words(servicer: Words, server: grpc.aio.Server) -> None:
    codecs = {"request_deserializer": decode, "response_serializer": encode}
    methods = {
        "Say": grpc.unary_unary_rpc_method_handler(servicer.Say, **codecs),
        "Count": grpc.unary_stream_rpc_method_handler(servicer.Count, **codecs),
        "Join": grpc.stream_unary_rpc_method_handler(servicer.Join, **codecs),
        "Echo": grpc.stream_stream_rpc_method_handler(servicer.Echo, **codecs),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, methods),))


class WordsStub:
    """Calls of that service over a channel."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        codecs: Any = {"request_serializer": encode, "response_deserializer": decode}
        self.Say = channel.unary_unary(f"/{SERVICE}/Say", **codecs)
        self.Count = channel.unary_stream(f"/{SERVICE}/Count", **codecs)
        self.Join = channel.stream_unary(f"/{SERVICE}/Join", **codecs)
        self.Echo = channel.stream_stream(f"/{SERVICE}/Echo", **codecs)


async def words(*parts: str) -> AsyncIterator[str]:
    for part in parts:
        await asyncio.sleep(0)
        yield part


@dataclass(frozen=True, kw_only=True)
class Served:
    """A running server and stubs of the services that call it."""

    server: Server
    servicer: Words
    port: int
    gateway: WordsStub
    billing: WordsStub
    stranger: WordsStub


Serve = Callable[[Unary], Awaitable[Served]]
