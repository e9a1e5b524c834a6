"""What must not be trained is refused by PlanJob and CreateJob alike, and leaves nothing behind."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.descriptor import Descriptor

from lehr.api.scheduler.v1 import job_pb2, scheduler_pb2, scheduler_pb2_grpc
from lehr.client.connection import Connection, Endpoint
from lehr.client.jobs import authorization
from lehr.errors import InvalidArgument, PlatformError
from lehr.training.proto import parse_spec, spec_to_proto
from tests.e2e.audit import rows
from tests.e2e.world import MAX_COST, World
from tests.support import required_rows as required
from tests.support.toy_model import SHOUTING_TEMPLATE, write_toy_model

HOUR = timedelta(hours=1)
SWITCH = "trust_remote_code"
STRUCT = ".*"
SECTIONS = (
    "adapter",
    "training",
    "hyperparameters",
    "data",
    "early_stopping",
    "checkpoints",
    "script",
)


@dataclass(frozen=True, kw_only=True)
class Footprint:
    """What a job that was let in would have left."""

    jobs: int
    holds: int
    transactions: int
    leases: int
    held_micros: int
    available_micros: int


async def footprint(world: World) -> Footprint:
    """Count everything that a launch makes."""
    tables = (
        "scheduler.jobs",
        "billing.holds",
        "billing.ledger_transactions",
        "gpu_allocator.leases",
    )
    counts = [(await rows(world, f"SELECT count(*) FROM {name}"))[0][0] for name in tables]  # noqa: S608
    balance = await world.client.billing.balance()
    return Footprint(
        jobs=counts[0],
        holds=counts[1],
        transactions=counts[2],
        leases=counts[3],
        held_micros=balance.held.micros,
        available_micros=balance.available.micros,
    )


async def refusals(world: World, spec: dict[str, Any]) -> list[PlatformError]:
    """Plan and create a job; return both refusals, after proof that they left nothing."""
    before = await footprint(world)
    with pytest.raises(PlatformError) as not_planned:
        await world.client.jobs.plan(spec)
    with pytest.raises(PlatformError) as not_created:
        await world.client.jobs.create(spec, max_cost=MAX_COST, max_duration=HOUR)
    assert await footprint(world) == before
    held = await world.client.gpus.check_held()
    assert (list(held.leases), list(held.differences)) == ([], [])
    return [not_planned.value, not_created.value]


async def test_a_footprint_is_left_by_a_job_that_is_let_in(world: World) -> None:
    before = await footprint(world)

    job_id = await world.launch({"total_steps": 2})
    await world.rests(job_id)
    await world.settled(job_id)

    after = await footprint(world)
    assert after.jobs == before.jobs + 1
    assert after.holds == before.holds + 1
    assert after.transactions > before.transactions
    assert after.leases == before.leases + 1


async def test_a_template_that_upper_cases_all_text_is_refused(
    world: World, tmp_path: Path
) -> None:
    folder = write_toy_model(tmp_path / "shouting", template=SHOUTING_TEMPLATE)
    await world.client.models.add(folder, name="shouting", license="MIT")
    await world.client.datasets.upload(
        required.write_lines(tmp_path / "train.jsonl", *required.TR_03), name="tr-03"
    )
    data = {"max_length": 512, "validation_split": 0.0}
    spec = {"name": "tr-03", "model": "shouting", "dataset": "tr-03", "data": data}

    for refused in await refusals(world, spec):
        assert isinstance(refused, InvalidArgument)
        assert refused.reason == "TEMPLATE_HIDES_ANSWERS"
        assert "does not show which text is an answer" in refused.message
        assert refused.facts["line"] == "1"


async def test_rows_that_are_all_dropped_are_refused_with_their_count(
    world: World, tmp_path: Path
) -> None:
    await world.client.datasets.upload(
        required.write_lines(tmp_path / "train.jsonl", required.TR_01_A), name="tr-01-a"
    )
    data = {"max_length": 64, "overlong": "drop", "validation_split": 0.0}
    spec = {"name": "tr-01", "model": "toy", "dataset": "tr-01-a", "data": data}

    for refused in await refusals(world, spec):
        assert refused.reason == "NO_SAMPLES"
        assert "0 of 1 training rows are left: 1 dropped" in refused.message
        assert "the longest has 311" in refused.message


async def test_a_row_of_which_nothing_trainable_is_left_is_refused_alone(
    world: World, tmp_path: Path
) -> None:
    await world.client.datasets.upload(
        required.write_lines(tmp_path / "train.jsonl", required.TR_01_C), name="tr-01-c"
    )
    data = {"max_length": 64, "validation_split": 0.0}
    spec = {"name": "tr-01", "model": "toy", "dataset": "tr-01-c", "data": data}

    for refused in await refusals(world, spec):
        assert refused.reason == "NO_SAMPLES"
        assert "0 dropped" in refused.message
        assert "1 without a token to train" in refused.message


@pytest.mark.parametrize("section", ["", *SECTIONS])
async def test_the_switch_that_lets_a_model_run_code_is_no_setting_of_a_job(
    world: World, section: str
) -> None:
    switched: dict[str, Any] = {SWITCH: True}
    spec = {**world.spec(), **({section: switched} if section else switched)}

    for refused in await refusals(world, spec):
        field = ".".join(filter(None, (section, SWITCH)))
        assert isinstance(refused, InvalidArgument)
        assert field in [one.field for one in refused.fields]
        assert f"{field} is not a field" in refused.message


async def test_the_switch_is_refused_in_a_file_too(world: World, tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(f"name: n\nmodel: toy\ndataset: chats\n{SWITCH}: yes\n")

    with pytest.raises(InvalidArgument, match=f"{SWITCH} is not a field"):
        await world.client.jobs.plan(path)


def in_script(spec: job_pb2.JobSpec) -> None:
    spec.script_json = json.dumps({"total_steps": 1, SWITCH: True})


def in_options(spec: job_pb2.JobSpec) -> None:
    spec.adapter.options.update({SWITCH: True})


def in_hyperparameters(spec: job_pb2.JobSpec) -> None:
    spec.hyperparameters.update({SWITCH: True})


#: Where a message takes names that it does not know itself, and what puts the switch there.
OPEN_PLACES: Mapping[str, Callable[[job_pb2.JobSpec], None]] = {
    "script_json": in_script,
    "adapter.options": in_options,
    "hyperparameters": in_hyperparameters,
}


@pytest.mark.parametrize("place", OPEN_PLACES)
async def test_the_switch_is_refused_from_callers_who_check_nothing_themselves(
    world: World, place: str
) -> None:
    before = await footprint(world)
    spec = spec_to_proto(parse_spec(world.spec()))
    OPEN_PLACES[place](spec)
    plan = scheduler_pb2.PlanJobRequest(spec=spec)
    create = scheduler_pb2.CreateJobRequest(
        spec=spec, authorization=authorization(MAX_COST, HOUR), request_id="switched"
    )
    gateway = world.stack.status().gateway
    connection = Connection(Endpoint(address=gateway, api_key=world.stack.api_key))
    stub = scheduler_pb2_grpc.SchedulerServiceStub(connection.channel)

    for method, request in ((stub.PlanJob, plan), (stub.CreateJob, create)):
        with pytest.raises(InvalidArgument, match=SWITCH):
            await connection.call(method, request)
    await connection.close()

    assert await footprint(world) == before


def test_a_jobs_message_has_no_place_for_the_switch_but_those_that_are_looked_into() -> None:
    names = set(_field_names(job_pb2.JobSpec.DESCRIPTOR))

    assert {"model", "training.learning_rate"} <= names
    assert not {name for name in names if "trust" in name or "code" in name}
    is_open = {name for name in names if name.endswith(("_json", STRUCT))}
    assert {name.removesuffix(STRUCT) for name in is_open} == set(OPEN_PLACES)


def _field_names(message: Descriptor, path: str = "") -> Iterator[str]:
    for field in message.fields:
        inner = field.message_type
        if inner is None:
            yield path + field.name
        elif inner.full_name == "google.protobuf.Struct":
            yield path + field.name + STRUCT
        else:
            yield from _field_names(inner, f"{path}{field.name}.")


async def test_a_name_that_holds_a_nul_is_refused(world: World) -> None:
    for refused in await refusals(world, world.spec(None, name="a\0b")):
        assert isinstance(refused, InvalidArgument)
        assert [one.field for one in refused.fields] == ["name"]


async def test_a_name_that_holds_a_nul_is_refused_from_callers_who_check_nothing(
    world: World,
) -> None:
    spec = spec_to_proto(parse_spec(world.spec()))
    spec.name = "a\0b"
    gateway = world.stack.status().gateway
    connection = Connection(Endpoint(address=gateway, api_key=world.stack.api_key))
    stub = scheduler_pb2_grpc.SchedulerServiceStub(connection.channel)

    with pytest.raises(InvalidArgument, match="name"):
        await connection.call(stub.PlanJob, scheduler_pb2.PlanJobRequest(spec=spec))
    await connection.close()
