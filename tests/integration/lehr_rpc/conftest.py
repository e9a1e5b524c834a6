"""A server with one little service on loopback."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

from lehr.rpc.auth import Identity, Verifier
from lehr.rpc.client import channel
from lehr.rpc.server import Server
from tests.integration.lehr_rpc.words import (
    KEYS,
    SERVICE,
    Serve,
    Served,
    Words,
    WordsStub,
    add_words,
)


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    """Return a function that serves Say with the given behaviour."""
    async with AsyncExitStack() as stack:

        async def start(say: Callable[[str, Any], Awaitable[str]]) -> Served:
            trusted = {name: KEYS[name][1] for name in ("gateway", "billing")}
            server, servicer = Server(Verifier(trusted)), Words(say)
            everybody = frozenset({"gateway", "billing"})
            policy = dict.fromkeys(("Count", "Join", "Echo"), everybody)
            server.add_servicer(add_words, servicer, service_name=SERVICE, policy=policy)
            port = await server.start("127.0.0.1:0")
            stack.push_async_callback(server.stop, grace=0)
            stubs = {}
            for name, (private, _) in KEYS.items():
                opened = channel(f"127.0.0.1:{port}", Identity(name, private))
                stack.push_async_callback(opened.close, None)
                stubs[name] = WordsStub(opened)
            return Served(server=server, servicer=servicer, port=port, **stubs)

        yield start
