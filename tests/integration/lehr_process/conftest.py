"""A small service as a real process, on real NATS and Postgres."""

from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.integration.lehr_events.conftest import (
    bare_nats,
    bus,
    client,
    database_url,
    db,
    platform,
    postgres_server,
)
from tests.integration.lehr_events.nats_server import NatsServer
from tests.integration.lehr_process.story import SmallService

__all__ = ["bare_nats", "bus", "client", "database_url", "db", "platform", "postgres_server"]


@pytest.fixture
async def service(
    tmp_path: Path,
    database_url: str,
    bare_nats: NatsServer,
) -> AsyncIterator[SmallService]:
    """The service, not yet started."""
    small = SmallService(folder=tmp_path, database_url=database_url, nats=bare_nats)
    yield small
    if small.process is not None:
        with suppress(ProcessLookupError):
            small.process.kill()
        await small.process.wait()
