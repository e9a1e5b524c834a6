"""What one accepted sync of a node changes: its leases, its GPUs, and what it is told."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from lehr.ids import derived_id
from lehr.training.ends import RunEnd
from services.gpu_allocator.domain import desired
from services.gpu_allocator.domain.desired import Desired
from services.gpu_allocator.domain.gpu import Gpu, first_seen
from services.gpu_allocator.domain.lease import Lease, LeasePhase, LeaseReport
from services.gpu_allocator.domain.node import Node, Sync


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Everything after a sync; ``leases`` and ``gpus`` are all of the node's, changed or not."""

    node: Node
    leases: tuple[Lease, ...]
    gpus: tuple[Gpu, ...]
    desired: tuple[Desired, ...]


def apply(
    node: Node, leases: Sequence[Lease], gpus: Sequence[Gpu], sync: Sync, *, now: datetime
) -> Outcome:
    """Return the node, its leases and its GPUs after a sync that is no repetition."""
    reports = {report.lease_id: report for report in sync.leases}
    is_new_incarnation = node.is_new_incarnation(sync)
    after = [
        _lease_after(lease, reports, sync, is_new_incarnation=is_new_incarnation, now=now)
        for lease in leases
    ]
    gpus_after = _gpus_after(gpus, after, sync, is_new_boot=node.is_new_boot(sync))
    return _answered(node.heard(sync, now=now), after, gpus_after, sync)


def repeat(node: Node, leases: Sequence[Lease], gpus: Sequence[Gpu], sync: Sync) -> Outcome:
    """Return the same for a sync that was applied before: nothing changes, the answer is given."""
    return _answered(node, leases, gpus, sync)


def _answered(node: Node, leases: Sequence[Lease], gpus: Sequence[Gpu], sync: Sync) -> Outcome:
    wanted = desired.for_node(leases, sync.leases, gpus, sync.gpus)
    offered = {one.lease_id for one in wanted if not one.is_fenced}
    return Outcome(
        node=node,
        leases=tuple(
            replace(lease, is_offered=True) if lease.lease_id in offered else lease
            for lease in leases
        ),
        gpus=tuple(gpus),
        desired=tuple(wanted),
    )


def _lease_after(
    lease: Lease,
    reports: Mapping[str, LeaseReport],
    sync: Sync,
    *,
    is_new_incarnation: bool,
    now: datetime,
) -> Lease:
    report = reports.get(lease.lease_id)
    if report is not None and not lease.is_fenced_for(report):
        return lease.renew(report, now=now)
    if report is not None and report.phase is not LeasePhase.CLOSED:
        # It is told that it is fenced; what it says is not heard.
        return lease
    match lease.phase:
        case LeasePhase.GRANTED:
            if sync.is_draining:
                message = f"node {sync.name} is draining and starts nothing new"
                return lease.close(RunEnd.NODE_LOST, message, now=now)
        case LeasePhase.STARTING | LeasePhase.RUNNING | LeasePhase.DRAINING:
            if is_new_incarnation:
                # Trainers die with their agent, so the run ended with the last word of the old one.
                message = f"the agent of node {sync.name} was started anew and does not run it"
                return lease.close(RunEnd.NODE_LOST, message, now=now)
        case LeasePhase.LOST:
            return lease.close(RunEnd.NODE_LOST, "", now=now)
        case LeasePhase.CLOSED:
            pass
    return lease


def _gpus_after(
    gpus: Sequence[Gpu], leases: Sequence[Lease], sync: Sync, *, is_new_boot: bool
) -> list[Gpu]:
    by_id = {lease.lease_id: lease for lease in leases}
    reports = {report.ordinal: report for report in sync.gpus}
    after: list[Gpu] = []
    for gpu in gpus:
        lease = by_id.get(gpu.lease_id) if gpu.lease_id is not None else None
        left = gpu if lease is None else gpu.after(lease)
        report = reports.pop(gpu.ordinal, None)
        after.append(
            left.unseen(is_new_boot=is_new_boot)
            if report is None
            else left.seen(report, is_new_boot=is_new_boot)
        )
    for ordinal, report in reports.items():
        gpu_id = derived_id("gpu", "", f"{sync.node_id}:{ordinal}")
        after.append(first_seen(report, gpu_id=gpu_id, node_id=sync.node_id))
    return after
