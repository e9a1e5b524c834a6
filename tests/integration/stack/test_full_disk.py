"""A NATS that could not write: taken for stuck once there is room, waited for until then."""

import asyncio
import resource
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import nats
from nats.aio.client import Client
from nats.errors import Error as NatsError

from lehr.stack import Options, PartState
from lehr.stack.keeper import Keeper
from lehr.stack.nats import USER, NatsServer
from lehr.stack.ports import Ports
from tests.support.servers import PASSWORD, a_folder

BASE = Options.from_environment().for_all()


async def test_a_stream_that_failed_to_write_takes_messages_again_once_there_is_room(
    tmp_path: Path,
) -> None:
    async with _kept_nats(tmp_path) as (keeper, client):
        await _break_writes(keeper, client)

        async with asyncio.timeout(60):
            while await _refuses(client):
                await asyncio.sleep(0.2)

        found = (await client.jetstream().stream_info("KEPT")).state.messages

    assert keeper.restart_count == 1
    assert found >= 2


async def test_a_stream_that_failed_to_write_on_a_full_disk_is_waited_for(
    tmp_path: Path,
) -> None:
    async with _kept_nats(tmp_path, room_bytes=10**18) as (keeper, client):
        await _break_writes(keeper, client)
        await _until(keeper, PartState.UNREADY)
        await asyncio.sleep(1)

        assert "write error" in keeper.failure
        assert keeper.restart_count == 0


@asynccontextmanager
async def _kept_nats(log: Path, **fields: int) -> AsyncIterator[tuple[Keeper, Client]]:
    """Run a NATS with one stream that has one message."""
    with a_folder() as folder, Ports.claim({}) as ports:
        server = NatsServer(
            folder=folder,
            port=ports.port("nats"),
            monitor_port=ports.port("nats_monitor"),
            password=PASSWORD,
            **fields,
        )
        keeper = Keeper(
            server.part(BASE),
            log=log / "nats.log",
            changed=lambda: None,
            backoff_seconds=(0.1,),
        )
        try:
            keeper.start()
            await _until(keeper, PartState.READY)
            client = await nats.connect(
                server.url,
                user=USER,
                password=PASSWORD,
                error_cb=_ignore,
                max_reconnect_attempts=-1,
            )
            await client.jetstream().add_stream(name="KEPT", subjects=["kept"])
            assert not await _refuses(client)
            yield keeper, client
            await client.close()
        finally:
            await keeper.stop()


async def _break_writes(keeper: Keeper, client: Client) -> None:
    """Let the server fail to write, as on a full disk, until a message is refused."""
    _, hard = resource.prlimit(keeper.pid or 0, resource.RLIMIT_FSIZE)
    resource.prlimit(keeper.pid or 0, resource.RLIMIT_FSIZE, (4096, hard))
    async with asyncio.timeout(30):
        while not await _refuses(client):
            pass
    if keeper.pid is not None:
        # There is room again, and the stream does not know.
        resource.prlimit(keeper.pid, resource.RLIMIT_FSIZE, (hard, hard))
    keeper.resume()


async def _refuses(client: Client) -> bool:
    try:
        await client.jetstream().publish("kept", b"x" * 3000, timeout=1)
    except (NatsError, OSError):
        return True
    return False


async def _until(keeper: Keeper, state: PartState) -> None:
    async with asyncio.timeout(60):
        while keeper.state is not state:
            await asyncio.sleep(0.02)


async def _ignore(error: Exception) -> None:
    """Keep the client from printing what a test expects."""
