"""A gateway before some services, and clients that come through it."""

import contextlib
import hashlib
from collections.abc import Iterator, Mapping

import httpx

from lehr.client import AsyncClient
from lehr.stack.ports import LOOPBACK
from tests.support.one_service import OneService, a_service
from tests.support.servers import NatsForTests
from tests.support.stack import DatabaseForTests

FIRST_KEY = "lehr_sk_first-key-of-these-tests"


@contextlib.contextmanager
def a_gateway(
    database: DatabaseForTests,
    nats_server: NatsForTests,
    services: Mapping[str, OneService],
    **variables: str,
) -> Iterator[OneService]:
    """Run a gateway that forwards to ``services``; FIRST_KEY is an operator."""
    environment = {
        "GATEWAY_DATABASE_URL": database.url("gateway"),
        "GATEWAY_BOOTSTRAP_KEY_SHA256": hashlib.sha256(FIRST_KEY.encode()).hexdigest(),
        "GATEWAY_KEY_CACHE_SECONDS": "0",
        **nats_server.variables,
        **variables,
    }
    addresses = {name: f"{LOOPBACK}:{one.port}" for name, one in services.items()}
    with a_service("gateway", environment, addresses=addresses) as running:
        yield running


def a_rest_client(address: str, api_key: str = FIRST_KEY) -> httpx.AsyncClient:
    """Return a plain HTTP client that calls a gateway, ``http://host:port``, with a key."""
    headers = {"authorization": f"Bearer {api_key}"}
    return httpx.AsyncClient(base_url=address, headers=headers, timeout=60, trust_env=False)


def a_client(gateway: OneService, api_key: str = FIRST_KEY) -> AsyncClient:
    """Return a client that calls the gateway with a key."""
    return AsyncClient(f"{LOOPBACK}:{gateway.port}", api_key)
