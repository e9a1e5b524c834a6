"""A catalog that imports from a small hub, and what the tests of it share."""

import contextlib
import json
import secrets
from collections.abc import Iterator
from typing import Any

from lehr.client.imports import Terms
from tests.support.hub_stub import HubStub
from tests.support.one_service import OneService, a_service
from tests.support.servers import NatsForTests, ObjectsForTests
from tests.support.stack import DatabaseForTests

TOKEN = "hf_TESTtestTESTtestTESTtest12345678"
SECRET_KEY = "canary/of+a/storage+key/0123456789"
FREE = {"card": {"license": "mit"}}


@contextlib.contextmanager
def an_importing_catalog(
    database: DatabaseForTests, nats_server: NatsForTests, s3: ObjectsForTests, hub: HubStub
) -> Iterator[OneService]:
    """Run a catalog that may reach the hub of a test and, for buckets, its object store."""
    store = s3.endpoint.removeprefix("http://")
    environment = {
        "CATALOG_DATABASE_URL": database.url("catalog"),
        "CATALOG_HUB_ENDPOINT": hub.endpoint,
        "CATALOG_EGRESS_ALLOW": f"{hub.host},{hub.cdn},{store}",
        "CATALOG_SECRET_KEY": secrets.token_hex(32),
        "CATALOG_IMPORT_BYTES_MAX": str(64 << 20),
        "CATALOG_CLAIM_LIFETIME": "PT3S",
        # Six tries within half a minute.
        "CATALOG_IMPORT_WAIT": "PT0.05S",
        **nats_server.variables,
        **s3.variables,
    }
    with a_service("catalog", environment) as running:
        yield running


def rows(count: int, of: str = "row") -> bytes:
    return b"".join(
        json.dumps({"text": f"{of} {number}"}).encode() + b"\n" for number in range(count)
    )


def a_name() -> str:
    return f"n{secrets.token_hex(6)}"


def terms(name: str = "", **more: Any) -> Terms:
    return Terms(name=name or a_name(), **more)
