"""Jobs, runs and leases of the scheduler with good defaults."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from lehr.money import Money
from lehr.training.spec import JobSpec
from services.scheduler.domain.job import Authorization, Inputs, Job, JobState
from services.scheduler.domain.placement import Tier
from services.scheduler.domain.plan import DataFacts, Resolved
from services.scheduler.domain.run import Lease, LeasePhase, Run
from services.scheduler.domain.turns import Waiting

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
SECOND = timedelta(seconds=1)
EUROS = Money(currency="EUR", micros=5_000_000)
HOUR = timedelta(hours=1)
INPUTS = Inputs(
    model_id="model_1",
    model_name="smol",
    model_revision="a" * 64,
    dataset_id="ds_1",
    dataset_revision="b" * 64,
)


def a_spec(**fields: Any) -> JobSpec:
    """A spec that can run."""
    return JobSpec.model_validate({"name": "tune", "model": "smol", "dataset": "qa"} | fields)


def a_job(**fields: Any) -> Job:
    """A queued job."""
    values: dict[str, Any] = {
        "job_id": "job_1",
        "tenant": "acme",
        "project": "default",
        "principal": "ana",
        "spec": a_spec(),
        "plan_digest": "c" * 64,
        "inputs": INPUTS,
        "total_steps": 100,
        "authorization": Authorization(max_cost=EUROS, max_duration=HOUR),
        "create_time": NOON,
        "update_time": NOON,
        "queue_time": NOON,
        "wait_time": NOON,
    }
    return Job(**values | fields)


def a_live_job(state: JobState = JobState.RUNNING, **fields: Any) -> Job:
    """A job with a run."""
    stop = {"stop_time": NOON} if state is JobState.STOPPING else {}
    return a_job(**{"state": state, "version": 3, "run_ordinal": 1} | stop | fields)


def a_run(**fields: Any) -> Run:
    """The first run, alive."""
    values: dict[str, Any] = {
        "run_id": "run_1",
        "job_id": "job_1",
        "tenant": "acme",
        "project": "default",
        "ordinal": 1,
        "lease_id": "lease_1",
        "epoch": 7,
        "tier": "cpu",
        "lease_version": 1,
        "create_time": NOON,
    }
    return Run(**values | fields)


def a_lease(phase: LeasePhase = LeasePhase.GRANTED, **fields: Any) -> Lease:
    """The lease of the first run."""
    values: dict[str, Any] = {
        "lease_id": "lease_1",
        "tenant": "acme",
        "project": "default",
        "job_id": "job_1",
        "run_id": "run_1",
        "attempt": 1,
        "epoch": 7,
        "tier": "cpu",
        "phase": phase,
        "version": 2,
    }
    return Lease(**values | fields)


def waiting(job_id: str, *tiers: str, **fields: Any) -> Waiting:
    """A job that waits for one GPU since noon."""
    values: dict[str, Any] = {
        "job_id": job_id,
        "tenant": "acme",
        "project": "default",
        "priority": 0,
        "queue_time": NOON,
        "wait_time": NOON,
        "not_before": None,
        "tiers": tiers,
        "backup_after": 15 * SECOND,
        "gpu_count": 1,
    }
    return Waiting(**values | fields)


def a_tier(name: str, *free_per_node: int, each: int = 8) -> Tier:
    """A tier of nodes with ``each`` GPUs, so many of which are free."""
    return Tier(
        tier=name,
        memory_bytes=80 * 1024**3,
        total_count=each * len(free_per_node),
        free_count=sum(free_per_node),
        node_count_max=each if free_per_node else 0,
        free_per_node=free_per_node,
    )


def some_rows(**fields: Any) -> DataFacts:
    """A hundred rows, ten of them for validation."""
    values = {
        "row_count": 100,
        "train_count": 90,
        "validation_count": 10,
        "longest_tokens": 300,
        "max_length": 256,
        "truncated_count": 0,
        "dropped_count": 0,
        "untrainable_count": 0,
        "token_count": 9000,
        "trained_token_count": 4000,
    }
    return DataFacts(**values | fields)


def resolved(**fields: Any) -> Resolved:
    """What the catalog found for a small model."""
    values: dict[str, Any] = {
        "inputs": INPUTS,
        "row_kind": "messages",
        "parameter_count": 135_000_000,
        "data": some_rows(),
    }
    return Resolved(**values | fields)
