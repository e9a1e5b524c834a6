"""Builders of the allocator's values, with defaults so that a test shows only what matters."""

from datetime import UTC, datetime, timedelta
from typing import Any

from services.gpu_allocator.domain.expiry import Amnesty, Limits, Outage
from services.gpu_allocator.domain.gpu import Gpu, GpuReport, GpuState
from services.gpu_allocator.domain.lease import Lease, LeasePhase, LeaseReport
from services.gpu_allocator.domain.node import Node, Sync

T0 = datetime(2026, 1, 1, 12, tzinfo=UTC)
"""When leases of tests are granted."""

LIMITS = Limits(
    lease_ttl=timedelta(seconds=30),
    unseen=timedelta(seconds=60),
    starting=timedelta(minutes=30),
    lost=timedelta(minutes=20),
)


def at(seconds: float) -> datetime:
    """Return the instant so many seconds after the grant."""
    return T0 + timedelta(seconds=seconds)


def seconds(number: float) -> timedelta:
    """Return a length of time."""
    return timedelta(seconds=number)


def a_lease(phase: LeasePhase = LeasePhase.GRANTED, **fields: Any) -> Lease:
    """Return a lease as it would be in that phase."""
    computes = {LeasePhase.RUNNING, LeasePhase.DRAINING, LeasePhase.LOST, LeasePhase.CLOSED}
    over = {LeasePhase.LOST, LeasePhase.CLOSED}
    defaults: dict[str, Any] = {
        "lease_id": "lease_1",
        "tenant": "acme",
        "project": "default",
        "job_id": "job_1",
        "attempt": 1,
        "run_id": "run_1",
        "epoch": 7,
        "node_id": "node_1",
        "tier": "h100-80gb",
        "ordinals": (0,),
        "funded_duration": timedelta(hours=1),
        "deadline_duration": None,
        "grant_time": T0,
        "phase": phase,
        "is_offered": True,
        "alive_time": None if phase is LeasePhase.GRANTED else at(20),
        "running_time": at(10) if phase in computes else None,
        "funded_until": at(3610) if phase in computes else None,
        "end_time": at(20) if phase in {LeasePhase.DRAINING, *over} else None,
        "close_reason": "NODE_LOST" if phase in over else "",
        "close_time": at(20) if phase is LeasePhase.CLOSED else None,
    }
    return Lease(**{**defaults, **fields})


def a_report(phase: LeasePhase = LeasePhase.RUNNING, **fields: Any) -> LeaseReport:
    """Return what the node says of that lease."""
    defaults: dict[str, Any] = {"lease_id": "lease_1", "epoch": 7, "phase": phase}
    if phase is LeasePhase.CLOSED:
        defaults["close_reason"] = "COMPLETED"
    return LeaseReport(**{**defaults, **fields})


def a_gpu(state: GpuState = GpuState.FREE, **fields: Any) -> Gpu:
    """Return a GPU; one that is held or being cleared belongs to that lease."""
    has_lease = state in {GpuState.HELD, GpuState.CLEARING}
    defaults: dict[str, Any] = {
        "gpu_id": f"gpu_{fields.get('node_id', 'node_1')}_{fields.get('ordinal', 0)}",
        "node_id": "node_1",
        "ordinal": 0,
        "tier": "h100-80gb",
        "memory_bytes": 80_000_000_000,
        "device_id": "GPU-0",
        "state": state,
        "lease_id": "lease_1" if has_lease else None,
        "epoch": 7 if has_lease else 0,
    }
    return Gpu(**{**defaults, **fields})


def a_gpu_report(**fields: Any) -> GpuReport:
    """Return what the node says of that GPU: nothing runs, and the journal knows the lease."""
    defaults: dict[str, Any] = {
        "ordinal": 0,
        "tier": "h100-80gb",
        "memory_bytes": 80_000_000_000,
        "device_id": "GPU-0",
        "is_clear": True,
        "epoch": 7,
        "is_stuck": False,
    }
    return GpuReport(**{**defaults, **fields})


def a_node(**fields: Any) -> Node:
    """Return a node in its third incarnation that was heard at 20 s."""
    defaults: dict[str, Any] = {
        "node_id": "node_1",
        "name": "alpha",
        "incarnation": 3,
        "boot_id": "boot-1",
        "sync_sequence": 10,
        "sync_time": at(20),
    }
    return Node(**{**defaults, **fields})


def a_sync(*leases: LeaseReport, **fields: Any) -> Sync:
    """Return the next sync of that node."""
    defaults: dict[str, Any] = {
        "node_id": "node_1",
        "name": "alpha",
        "incarnation": 3,
        "boot_id": "boot-1",
        "sync_sequence": 11,
        "gpus": (a_gpu_report(),),
        "leases": leases,
        "is_draining": False,
    }
    return Sync(**{**defaults, **fields})


def amnesty(*outages: tuple[float, float], beat: float) -> Amnesty:
    """Return outages and the newest heartbeat, in seconds after the grant."""
    return Amnesty(
        beat_time=at(beat),
        outages=tuple(Outage(begin_time=at(begin), end_time=at(end)) for begin, end in outages),
    )
