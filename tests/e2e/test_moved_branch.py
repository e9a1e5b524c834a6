"""CK-05 of the requirements: an adapter names its base and the commit, wherever a branch moves."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from lehr.api.catalog.v1 import catalog_pb2 as pb
from lehr.api.catalog.v1.catalog_pb2_grpc import CatalogServiceStub
from lehr.api.catalog.v1.hub_pb2 import HubSource
from lehr.api.scheduler.v1 import job_pb2
from lehr.client.connection import Connection, Endpoint
from lehr.client.imports import Terms
from lehr.demo.tiny import LlamaShape, write_llama
from tests.e2e.audit import holds_nothing
from tests.e2e.world import World, eventually
from tests.support.hub_stub import HubStub, Repo, a_hub
from tests.support.stack import StackFactory, StackUnderTest
from tests.support.toy_model import toy_tokenizer, write_toy_model

pytestmark = [pytest.mark.train, pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(600)]

PATIENT = 300.0
TERMS = Terms(name="based", license="MIT")
SPEC: dict[str, Any] = {
    "model": "based",
    "dataset": "chats",
    "adapter": {"type": "lora"},
    "training": {"max_steps": 60, "eval_steps": 30, "save_steps": 10},
    "early_stopping": {"patience": None},
}


@pytest.fixture(scope="module")
def hub() -> Iterator[HubStub]:
    """A hub of the test's own."""
    with a_hub() as running:
        yield running


@pytest.fixture(scope="module")
def stack(stack_factory: StackFactory, hub: HubStub) -> StackUnderTest:
    """A stack whose catalog may reach that hub."""
    allowed = {
        "CATALOG_HUB_ENDPOINT": hub.endpoint,
        "CATALOG_EGRESS_ALLOW": f"{hub.host},{hub.cdn}",
    }
    return stack_factory(environment={"catalog": allowed})


def files_of(folder: Path, *, seed: int) -> dict[str, bytes]:
    """Return the files of a toy model with random weights of their own."""
    write_toy_model(folder)
    ids = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 1}
    shape = LlamaShape(
        vocab_size=toy_tokenizer().get_vocab_size(), hidden_size=32, intermediate_size=64
    )
    write_llama(folder, shape, special_ids=ids, seed=seed)
    return {path.name: path.read_bytes() for path in folder.iterdir()}


async def weights_of(world: World, model: str) -> bytes:
    """Download the weights of a model."""
    gateway = world.stack.status().gateway
    connection = Connection(Endpoint(address=gateway, api_key=world.stack.api_key))
    stub = CatalogServiceStub(connection.channel)
    found = await connection.call(stub.DownloadFiles, pb.DownloadFilesRequest(model=model))
    await connection.close()
    [link] = [one for one in found.files if one.name == "model.safetensors"]
    async with httpx.AsyncClient(trust_env=False) as store:
        return (await store.get(link.url)).content


async def stopped(world: World) -> str:
    """Train for a while and stop."""
    job_id = await world.launch_real(SPEC)
    await world.until(job_id, lambda job: job.progress.step >= 5, within=PATIENT)
    await world.client.jobs.stop(job_id)
    job = await world.rests(job_id, within=PATIENT)
    assert job.state == job_pb2.JOB_STATE_STOPPED, job
    return job_id


async def adapter_of(world: World, job_id: str, folder: Path) -> dict[str, Any]:
    """Download a job's newest checkpoint, prove that it names no place; return its settings."""
    newest = (await world.client.checkpoints.list(job_id))[-1]
    await world.client.checkpoints.download(newest.checkpoint_id, folder, with_training_state=True)
    for path in folder.iterdir():
        content = path.read_bytes()
        for place in (world.stack.folder, folder, Path.home()):
            assert str(place).encode() not in content, f"{path.name} names {place}"
    found: dict[str, Any] = json.loads((folder / "adapter_config.json").read_text())
    return found


async def test_an_adapter_stays_with_the_commit_that_it_was_trained_on(
    world: World, hub: HubStub, tmp_path: Path
) -> None:
    old, new = files_of(tmp_path / "x", seed=1), files_of(tmp_path / "y", seed=2)
    repo = hub.add("model", "acme/base", old)
    source = HubSource(repo_id="acme/base", revision="main")
    first = await world.client.imports.model(source, terms=TERMS)
    job_id = await stopped(world)
    before = await adapter_of(world, job_id, tmp_path / "before")

    repo.commit(new)
    second = await world.client.imports.model(source, terms=TERMS)
    await world.client.jobs.resume(job_id)
    job = await world.rests(job_id, within=PATIENT)
    after = await adapter_of(world, job_id, tmp_path / "after")

    commit, moved = commits(repo)
    assert (first.source.commit, second.source.commit) == (commit, moved)
    assert job.state == job_pb2.JOB_STATE_SUCCEEDED, job
    for named in (before, after):
        assert (named["base_model_name_or_path"], named["revision"]) == ("based", first.revision)
    # What the adapter names leads to commit X and its weights, and the bare name to Y.
    exact = f"{after['base_model_name_or_path']}@{after['revision']}"
    assert (await world.client.models.get(exact)).source.commit == commit
    assert (await world.client.models.get("based")).source.commit == moved
    assert await weights_of(world, exact) == old["model.safetensors"]
    assert await weights_of(world, "based") == new["model.safetensors"]
    # A job launched now is of Y.
    plan = await world.client.jobs.plan({"name": "now", **SPEC})
    assert plan.model_revision == second.revision


def commits(repo: Repo) -> list[str]:
    """Return the commits of a repository, oldest first."""
    return list(repo.commits)


async def test_without_its_base_a_job_is_refused_by_name_and_nothing_is_billed(
    world: World, hub: HubStub, tmp_path: Path
) -> None:
    hub.add("model", "acme/base", files_of(tmp_path / "z", seed=3))
    base = await world.client.imports.model(HubSource(repo_id="acme/base"), terms=TERMS)
    job_id = await stopped(world)
    paid = await world.settled(job_id)

    await world.client.models.delete(base.model_id)
    await world.client.jobs.resume(job_id)
    job = await world.rests(job_id)

    assert job.state == job_pb2.JOB_STATE_FAILED
    assert "based" in job.state_message
    assert (await world.settled(job_id)).total == paid.total
    await holds_nothing(world)
    await eventually(lambda: still_there(world, job_id))


async def still_there(world: World, job_id: str) -> bool | None:
    """Tell whether the adapters that were saved are still listed."""
    return True if await world.saved(job_id) else None
