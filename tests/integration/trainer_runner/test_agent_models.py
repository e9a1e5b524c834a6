"""Models on a node: fetched once, kept while there is room, never taken from a run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from pathlib import Path

import pytest

from lehr.ids import new_id
from lehr.objects import ObjectStore
from services.trainer_runner.agent.folders import RunFolder, StateDir, remove
from services.trainer_runner.agent.models import Models, NodeDiskFull
from services.trainer_runner.agent.peers import FileLink
from services.trainer_runner.agent.transfer import BytesDiffer, FileMissing, Transfer
from tests.support.fakes_runner_storage import digest
from tests.support.servers import ObjectsForTests

FILE_BYTES = 1000


class Shop:
    """Models in the object store, and runs that want them."""

    def __init__(self, objects: ObjectStore, folder: Path) -> None:
        self.objects = objects
        self.folder = folder

    async def model(self, name: str) -> tuple[str, list[FileLink]]:
        """Put a model of two files into the object store; return revision and links."""
        content = name.encode().ljust(FILE_BYTES, b".")
        links = []
        for file in ("config.json", "model.safetensors"):
            key = f"models/acme/{name}/{file}"
            await self.objects.put_bytes(key, content)
            url = self.objects.presign_get(key, timedelta(minutes=10))
            link = FileLink(name=file, size_bytes=FILE_BYTES, sha256=digest(content), url=url)
            links.append(link)
        return digest(name.encode()), links

    def state_dir(self) -> StateDir:
        """Return the agent's folder, as an agent that starts anew finds it."""
        found = StateDir(self.folder)
        for folder in (found.models_dir, found.runs_dir):
            folder.mkdir(parents=True, exist_ok=True)
        return found

    def run(self) -> RunFolder:
        """Begin a run."""
        run = self.state_dir().run(new_id("run"))
        run.make()
        return run

    def kept(self) -> set[str]:
        """Return what lies in the folder of models."""
        return {path.name for path in self.state_dir().models_dir.iterdir()}


@pytest.fixture
def shop(s3: ObjectsForTests, tmp_path: Path) -> Shop:
    """An empty shop."""
    objects = ObjectStore(
        s3.endpoint, s3.access_key, s3.secret_key, bucket=s3.bucket, region=s3.region
    )
    return Shop(objects, tmp_path / "state")


MakeModels = Callable[..., Models]


@pytest.fixture
async def a_cache(shop: Shop) -> AsyncIterator[MakeModels]:
    """Make the part of an agent that keeps models."""
    transfer = Transfer()

    def make(bytes_max: int = 4 * FILE_BYTES) -> Models:
        return Models(shop.state_dir(), transfer, bytes_max=bytes_max)

    yield make
    await transfer.close()


async def test_the_longest_unused_go_when_there_is_no_room(shop: Shop, a_cache: MakeModels) -> None:
    models = a_cache()
    revisions = {}
    for name in ("a", "b"):
        revisions[name], links = await shop.model(name)
        run = shop.run()
        await models.get(revisions[name], links, run)
        remove(run.root)
    again = shop.run()
    await models.get(*await shop.model("a"), again)
    remove(again.root)

    await models.get(*await shop.model("c"), shop.run())

    assert shop.kept() == {revisions["a"], digest(b"c")}


async def test_what_is_there_is_not_fetched_again(shop: Shop, a_cache: MakeModels) -> None:
    models = a_cache()
    revision, links = await shop.model("once")
    place = await models.get(revision, links, shop.run())
    await shop.objects.delete([f"models/acme/once/{link.name}" for link in links])

    assert await models.get(revision, links, shop.run()) == place


@pytest.mark.parametrize("restarts", [False, True])
async def test_the_models_of_runs_stay_whatever_the_limit(
    shop: Shop, a_cache: MakeModels, restarts: bool
) -> None:
    models, runs = a_cache(bytes_max=0), []
    for name in ("a", "b"):
        runs.append(shop.run())
        await models.get(*await shop.model(name), runs[-1])
    if restarts:
        models = a_cache(bytes_max=0)
        shop.state_dir().tidy(living=[run.root.name for run in runs])

    await models.get(*await shop.model("c"), shop.run())
    with_all = shop.kept()
    remove(runs[0].root)
    await models.get(*await shop.model("d"), shop.run())

    assert with_all == {digest(name) for name in (b"a", b"b", b"c")}
    assert shop.kept() == {digest(name) for name in (b"b", b"c", b"d")}


async def test_many_runs_at_once_keep_what_they_need(shop: Shop, a_cache: MakeModels) -> None:
    models = a_cache(bytes_max=2 * FILE_BYTES)
    wanted = [await shop.model(str(number % 5)) for number in range(20)]

    async def use(number: int) -> None:
        run = shop.run()
        place = await models.get(*wanted[number], run)
        await asyncio.sleep(0.01 * (number % 3))
        content = (place / "model.safetensors").read_bytes()
        assert digest(content) == wanted[number][1][1].sha256
        remove(run.root)

    await asyncio.gather(*(use(number) for number in range(20)))


async def test_a_failed_download_leaves_nothing(shop: Shop, a_cache: MakeModels) -> None:
    models = a_cache()
    revision, links = await shop.model("gone")
    await shop.objects.delete(["models/acme/gone/model.safetensors"])

    with pytest.raises(FileMissing):
        await models.get(revision, links, shop.run())
    assert shop.kept() == set()

    await shop.objects.put_bytes("models/acme/gone/model.safetensors", b"!" * FILE_BYTES)
    with pytest.raises(BytesDiffer):
        await models.get(revision, links, shop.run())
    assert shop.kept() == set()


async def test_what_a_dead_agent_left_half_done_goes_when_the_next_begins(
    shop: Shop, a_cache: MakeModels
) -> None:
    await a_cache().get(*await shop.model("whole"), shop.run())
    half = shop.state_dir().models_dir / f".{digest(b'half')}.0123abcd"
    half.mkdir()
    (half / "model.safetensors").write_bytes(b"ha")

    shop.state_dir().tidy(living=[])

    assert shop.kept() == {digest(b"whole")}


async def test_a_full_disk_is_named_and_costs_no_other_model(
    shop: Shop, a_cache: MakeModels
) -> None:
    models = a_cache()
    run = shop.run()
    await models.get(*await shop.model("kept"), run)
    remove(run.root)
    revision, [config, _] = await shop.model("huge")
    endless = FileLink(name="w.safetensors", size_bytes=2**60, sha256="0" * 64, url=config.url)

    with pytest.raises(NodeDiskFull, match="lacks"):
        await models.get(revision, [config, endless], shop.run())

    assert shop.kept() == {digest(b"kept")}
