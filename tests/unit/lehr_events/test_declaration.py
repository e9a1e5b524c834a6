"""The declared streams and durables themselves."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from lehr.events import streams
from lehr.events.streams import Declaration, declared
from lehr.events.subscribers import HANDLER_SECONDS

STREAM = {
    "subjects": ["evt.job.>"],
    "storage": "file",
    "retention": "limits",
    "replicas": 1,
    "max_age": 60,
    "max_bytes": 1000,
    "max_message_bytes": 100,
    "duplicate_window": 10,
    "when_full": "reject",
    "persist_mode": "default",
}
DURABLE = {"ack_wait": 30, "max_ack_pending": 256, "max_deliver": -1}
GOOD: dict[str, Any] = {
    "stream_defaults": STREAM,
    "streams": {"JOBS": None},
    "durable_defaults": DURABLE,
    "durables": {"billing-job": {"stream": "JOBS", "subjects": ["evt.job.finished.>"]}},
}


@pytest.mark.parametrize(
    ("subject", "stream"),
    [
        ("evt.job.queued.v1.acme.job_1", "JOBS"),
        ("evt.lease.phase.v1.acme.lease_1", "LEASES"),
        ("evt.node.quarantined.v1._.node_1", "LEASES"),
        ("evt.run.progressed.v1.acme.run_1", "RUNS"),
        ("evt.run.evaluated.v1.acme.run_1", "RUNS"),
        ("evt.run.best.v1.acme.run_1", "RUNS"),
        ("evt.run.logged.v1.acme.run_1", "LOGS"),
        ("evt.checkpoint.committed.v1.acme.ckpt_1", "CKPT"),
        ("evt.charge.posted.v1.acme.job_1", "BILL"),
        ("evt.hold.placed.v1.acme.job_1", "BILL"),
        ("evt.model.ready.v1.acme.model_1", "CAT"),
        ("evt.dataset.ready.v1.acme.ds_1", "CAT"),
        ("dlq.billing-job", "DLQ"),
    ],
)
def test_each_subject_has_its_stream(subject: str, stream: str) -> None:
    assert declared().stream_of(subject) == stream


def test_a_subject_that_no_stream_takes_is_a_mistake() -> None:
    with pytest.raises(ValueError, match=r"no stream .* takes evt.run.started"):
        declared().stream_of("evt.run.started.v1.acme.run_1")


def test_facts_of_the_control_plane_are_flushed_and_never_dropped_for_room() -> None:
    lazy = {name for name, one in declared().streams.items() if one.persist_mode == "async"}
    dropping = {name for name, one in declared().streams.items() if one.when_full == "drop_oldest"}

    assert lazy == {"RUNS", "LOGS"}
    assert dropping == {"RUNS", "LOGS", "DLQ"}


def test_the_durables_are_those_that_services_read() -> None:
    assert set(declared().durables) == {
        "scheduler-lease",
        "scheduler-run",
        "billing-lease",
        "billing-job",
        "checkpoint-run",
        "checkpoint-job",
        "catalog-run",
        "telemetry-runs",
        "telemetry-logs",
        "allocator-job",
    }


def test_an_ack_may_take_longer_than_a_handler() -> None:
    assert min(one.ack_wait for one in declared().durables.values()) > HANDLER_SECONDS


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"streams": {"JOBS": {"max_age": 0}}}, "streams.JOBS.max_age"),
        ({"streams": {"JOBS": {"colour": "red"}}}, "streams.JOBS.colour"),
        ({"streams": {"JOBS": {"when_full": "shrug"}}}, "streams.JOBS.when_full"),
        ({"streams": {}}, "reads stream JOBS, which is missing"),
        ({"durables": {"billing-job": {"stream": "JOBS"}}}, "durables.billing-job.subjects"),
        ({"extra": {}}, "extra"),
    ],
)
def test_a_wrong_declaration_is_refused_by_key(
    tmp_path: Path, changes: dict[str, Any], told: str
) -> None:
    file = tmp_path / "streams.yaml"
    file.write_text(yaml.safe_dump(GOOD | changes), encoding="utf-8")

    with pytest.raises(ValueError, match=told):
        streams.load(file)


def test_a_good_declaration_is_taken() -> None:
    good = Declaration.model_validate(GOOD)

    assert good.streams["JOBS"].config("JOBS")["max_age"] == 60_000_000_000
    told = good.durables["billing-job"].config("billing-job")
    assert told["filter_subject"] == "evt.job.finished.>"
