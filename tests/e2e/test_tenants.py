"""Two tenants, and two projects of one: what belongs to one is for the other not there."""

import asyncio
import importlib
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import reduce
from typing import Any

import pytest

from lehr.client import AsyncClient
from lehr.client.connection import Connection
from lehr.errors import InvalidArgument, NotFound, PermissionDenied, PlatformError
from services.gateway.proxy import ROUTES
from tests.e2e.world import World

#: For services alone: closed to every key.
INTERNAL = {
    "GetRunPlan", "ListJobsChangedSince", "Acquire", "SyncNode", "RequestStop", "GetLease",
    "ListLeaseIntervals", "Open", "Begin", "Commit", "Abort", "PlaceHold", "GetFunding", "Settle",
    "OpenSeries", "GetWatermark", "ResolveTraining", "FindResumable",
}  # fmt: skip

#: For operators alone: closed to every tenant's own keys.
OPERATORS = {"TopUp", "PublishRates", "ReleaseGpu"}

#: Methods that name a thing: the field that names it, and whose id goes in.
NAMED: dict[str, tuple[str, str]] = {
    "GetJob": ("job_id", "job"),
    "StopJob": ("job_id", "job"),
    "ResumeJob": ("job_id", "job"),
    "WatchJob": ("job_id", "job"),
    "ListCheckpoints": ("job_id", "job"),
    "GetCheckpoint": ("checkpoint_id", "checkpoint"),
    "DownloadCheckpoint": ("checkpoint_id", "checkpoint"),
    "DeleteCheckpoint": ("checkpoint_id", "checkpoint"),
    "PinCheckpoint": ("checkpoint_id", "checkpoint"),
    "GetCost": ("job_id", "job"),
    "QueryMetrics": ("job_id", "job"),
    "WatchMetrics": ("job_id", "job"),
    "ReadLogs": ("job_id", "job"),
    "WatchLogs": ("job_id", "job"),
    "GetModel": ("model", "model"),
    "CommitModel": ("model_id", "model"),
    "DeleteModel": ("model_id", "model"),
    "DownloadFiles": ("model", "model"),
    "InspectDataset": ("dataset", "dataset"),
    "CommitDataset": ("dataset_id", "dataset"),
    "DeleteDataset": ("dataset_id", "dataset"),
    "UploadPart": ("target.entry_id", "dataset"),
    "PreviewSamples": ("dataset", "dataset"),
    "Recommend": ("dataset", "dataset"),
    "RevokeApiKey": ("key_id", "key"),
}

#: Methods that answer for the caller's tenant whatever is asked, or for everybody alike.
OWN = {
    "PlanJob", "CreateJob", "ListJobs", "ListTiers", "ListNodes", "CheckHeld", "Quote",
    "GetBalance", "ListLedger", "Reconcile", "AddModel", "SearchModels", "AddDataset",
    "ImportDataset", "ImportModel", "SearchHub", "PutCredential", "ListCredentials",
    "DeleteCredential",
    "ListDatasets", "WhoAmI", "CreateApiKey", "ListApiKeys", "WatchEvents",
}  # fmt: skip

#: Of those that name a thing: keys are the tenant's, and for its admins alone.
OF_THE_TENANT = {"RevokeApiKey"}

EVERY_NOUN = {"job", "lease", "run", "checkpoint", "charge", "hold", "model", "dataset"}
"""What a tenant's events are about."""

EVENTS_SECONDS = 10.0
"""How long events are listened to, where none is expected or one is missing."""

SILENCE_SECONDS = 3.0
"""How long a stream of a foreign thing is listened to."""

#: What else a method wants before it looks for the thing.
MORE = {"ResumeJob": {"request_id": "stranger"}}

UNKNOWN = {
    "job": "job_00000000000000000000000000",
    "checkpoint": "ckpt_00000000000000000000000000",
    "model": "model_00000000000000000000000000",
    "dataset": "ds_00000000000000000000000000",
    "key": "key_00000000000000000000000000",
}


def methods() -> dict[str, Any]:
    """Return every method of every service that is reached from outside, by bare name."""
    found: dict[str, Any] = {}
    for service, name in ROUTES.items():
        module = importlib.import_module(f"lehr.api.{name}.v1.{name}_pb2")
        described = module.DESCRIPTOR.services_by_name[service.rpartition(".")[2]]
        found |= {method.name: (service, method) for method in described.methods}
    return found


METHODS = methods()


@pytest.fixture(scope="module")
def things() -> dict[str, str]:
    """Ids of what the first tenant has, filled by the first test that needs them."""
    return {}


async def fill(things: dict[str, str], world: World) -> None:
    """Make one of each thing for the first tenant."""
    if things:
        return
    job_id = await world.launch({"total_steps": 12})
    await world.rests(job_id)
    key = await world.client.keys.create("target")
    things |= {
        "job": job_id,
        "checkpoint": (await world.client.checkpoints.list(job_id))[0].checkpoint_id,
        "model": (await world.client.models.list())[0].model_id,
        "dataset": (await world.client.datasets.list())[0].dataset_id,
        "key": key.key.key_id,
    }


def test_every_method_has_its_place_in_the_matrix() -> None:
    assert set(METHODS) == INTERNAL | OPERATORS | set(NAMED) | OWN


@pytest.mark.parametrize("name", sorted(NAMED))
async def test_a_foreign_id_is_answered_like_an_unknown_one(
    world: World, things: dict[str, str], name: str
) -> None:
    await fill(things, world)
    field, kind = NAMED[name]

    async with world.of_tenant("stranger") as stranger:
        foreign = await _outcome(
            stranger.client, name, **MORE.get(name, {}), **{field: things[kind]}
        )
        unknown = await _outcome(
            stranger.client, name, **MORE.get(name, {}), **{field: UNKNOWN[kind]}
        )

    assert foreign.replace(things[kind], "X") == unknown.replace(UNKNOWN[kind], "X")
    assert foreign.startswith("NotFound") or foreign in ("nothing", "silence")


@pytest.mark.parametrize("name", sorted(set(NAMED) - OF_THE_TENANT))
async def test_an_id_of_another_project_is_answered_like_an_unknown_one(
    world: World, things: dict[str, str], name: str
) -> None:
    await fill(things, world)
    field, kind = NAMED[name]

    async with world.of_tenant("default", project="elsewhere", role="member") as other:
        foreign = await _outcome(other.client, name, **MORE.get(name, {}), **{field: things[kind]})
        unknown = await _outcome(other.client, name, **MORE.get(name, {}), **{field: UNKNOWN[kind]})

    assert foreign.replace(things[kind], "X") == unknown.replace(UNKNOWN[kind], "X")
    assert foreign.startswith("NotFound") or foreign in ("nothing", "silence")


async def test_lists_hold_nothing_of_another_project(world: World, things: dict[str, str]) -> None:
    await fill(things, world)

    async with world.of_tenant("default", project="elsewhere", role="member") as other:
        client = other.client
        assert not (await client.jobs.page()).jobs
        assert not await client.models.list()
        assert not await client.datasets.list()
        assert not (await client.gpus.check_held()).leases
        ledger = (await client.billing.ledger()).transactions
        assert {one.job_id for one in ledger} == {""}
        assert not (await client.billing.ledger(job_id=things["job"])).transactions
    assert (await world.client.billing.ledger(job_id=things["job"])).transactions


@pytest.mark.parametrize(
    ("project", "role", "is_seen"),
    [("default", "member", True), ("elsewhere", "member", False), ("elsewhere", "admin", True)],
)
async def test_events_are_those_of_ones_project_and_an_admin_sees_all(
    world: World, things: dict[str, str], project: str, role: str, is_seen: bool
) -> None:
    await fill(things, world)
    since = datetime.now(UTC) - timedelta(hours=1)
    seen: set[str] = set()

    async with world.of_tenant("default", project=project, role=role) as one:
        with suppress(TimeoutError):
            async with asyncio.timeout(EVENTS_SECONDS):
                async for event in one.client.events.tail(since=since):
                    seen.add(event["type"].split(".")[1])
                    if seen >= EVERY_NOUN:
                        break

    assert seen == (EVERY_NOUN if is_seen else set())


@pytest.mark.parametrize("name", sorted(INTERNAL))
async def test_methods_for_services_are_closed_to_every_key(world: World, name: str) -> None:
    refusal = await _refusal(world.client, name)

    assert isinstance(refusal, PermissionDenied)


@pytest.mark.parametrize("name", sorted(OPERATORS))
async def test_methods_for_operators_are_open_to_no_other_admin(world: World, name: str) -> None:
    async with world.of_tenant("stranger") as stranger:
        refusal = await _refusal(stranger.client, name)

    assert isinstance(refusal, PermissionDenied)
    assert refusal.reason == "OPERATOR_ONLY"
    assert isinstance(await _refusal(world.client, name), InvalidArgument)


async def test_lists_hold_nothing_of_the_other(world: World, things: dict[str, str]) -> None:
    await fill(things, world)

    async with world.of_tenant("stranger") as stranger:
        client = stranger.client
        assert not (await client.jobs.page()).jobs
        assert not await client.models.list()
        assert not await client.datasets.list()
        assert not [key for key in await client.keys.list() if key.tenant != "stranger"]
        assert not (await client.gpus.check_held()).leases
        ledger = (await client.billing.ledger()).transactions
        assert {one.job_id for one in ledger} <= {""}
        assert (await client.billing.reconcile()).job_count == 0


async def test_foreign_names_inside_a_job_are_unknown(world: World) -> None:
    async with world.of_tenant("stranger") as stranger:
        with pytest.raises(PlatformError, match="no model"):
            await stranger.client.jobs.plan(stranger.spec({"total_steps": 1}))


async def test_the_first_tenants_things_are_as_they_were(
    world: World, things: dict[str, str]
) -> None:
    await fill(things, world)

    job = await world.client.jobs.get(things["job"])

    assert job.end_reason == "COMPLETED"
    assert (await world.client.datasets.inspect(things["dataset"])).dataset.row_count
    assert (await world.client.models.get(things["model"])).parameter_count
    assert await world.saved(things["job"])
    assert not [key for key in await world.client.keys.list() if key.HasField("revoke_time")]


async def _refusal(client: AsyncClient, name: str) -> PlatformError:
    """Call a method with nothing in it and return what it was refused with."""
    try:
        await _call(client, name)
    except PlatformError as error:
        return error
    raise AssertionError(f"{name} answered")


async def _outcome(client: AsyncClient, name: str, **fields: str) -> str:
    """Call a method and tell what came: a refusal, nothing, silence, or (a leak) something."""
    try:
        async with asyncio.timeout(SILENCE_SECONDS):
            answer = await _call(client, name, **fields)
    except TimeoutError:
        return "silence"
    except PlatformError as error:
        kind = "NotFound" if isinstance(error, NotFound) else type(error).__name__
        return f"{kind} {error.reason} {error}"
    return str(answer) if answer is not None and answer.ByteSize() else "nothing"


async def _call(client: AsyncClient, name: str, **fields: str) -> Any:
    """Call a method by name; a stream gives its first answer. A dot leads into a message."""
    service, method = METHODS[name]
    package = method.input_type.file.package
    messages = importlib.import_module(f"{package}.{_file(method.input_type)}")
    request = getattr(messages, method.input_type.name)()
    for path, value in fields.items():
        *outer, last = path.split(".")
        setattr(reduce(getattr, outer, request), last, value)
    route = ROUTES[service]
    stubs = importlib.import_module(f"lehr.api.{route}.v1.{route}_pb2_grpc")
    connection = Connection(client.jobs._connection.endpoint)
    stub: Callable[..., Any] = getattr(stubs, f"{service.rpartition('.')[2]}Stub")
    call = getattr(stub(connection.channel), name)
    try:
        if method.client_streaming:
            return await connection.call(call, _one(request))
        if not method.server_streaming:
            return await connection.call(call, request)
        async for answer in connection.stream(call, request):
            return answer
        return None
    finally:
        await connection.close()


async def _one(request: Any) -> AsyncIterator[Any]:
    """Stream one message."""
    yield request


def _file(message: Any) -> str:
    return str(message.file.name).rpartition("/")[2].removesuffix(".proto") + "_pb2"
