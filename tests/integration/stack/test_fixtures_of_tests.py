"""The fixtures with real servers do what their descriptions say."""

import asyncpg
import nats

from lehr.objects import ObjectStore
from lehr.stack import SERVICES
from tests.support.servers import NatsForTests, ObjectsForTests
from tests.support.stack import DatabaseForTests


async def test_every_service_can_log_in_to_its_own_schema(database: DatabaseForTests) -> None:
    found = [
        await _value(database.url(name), "SELECT current_user || current_schema()")
        for name in SERVICES
    ]

    assert found == [f"{name}{name}" for name in SERVICES]


async def test_the_clock_of_the_database_can_be_moved(database: DatabaseForTests) -> None:
    moved = await _value(database.admin_url, "SELECT clock.now() IS NOT NULL")

    assert moved is True


async def test_the_declared_streams_exist(nats_server: NatsForTests) -> None:
    client = await nats.connect(
        nats_server.url, user=nats_server.user, password=nats_server.password
    )

    stream = await client.jetstream().stream_info("JOBS")

    assert stream.config.subjects == ["evt.job.>"]
    await client.close()


async def test_the_bucket_is_empty_and_takes_objects(s3: ObjectsForTests) -> None:
    store = ObjectStore(s3.endpoint, s3.access_key, s3.secret_key, s3.bucket, s3.region)
    before = await store.list("")

    await store.put_bytes("models/default/a", b"content")

    assert list(before) == []
    assert await store.get_bytes("models/default/a") == b"content"


async def _value(url: str, query: str) -> object:
    connection = await asyncpg.connect(url)
    try:
        return await connection.fetchval(query)
    finally:
        await connection.close()
