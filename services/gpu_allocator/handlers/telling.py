"""Store changed leases with what follows for their GPUs, and tell the others."""

from collections.abc import Iterable, Sequence
from datetime import datetime

from lehr.events import outbox
from lehr.events.lease import (
    LeaseClosed,
    LeaseEvent,
    LeaseGranted,
    LeasePhaseChanged,
    LeaseSnapshot,
)
from lehr.postgres import Connection
from services.gpu_allocator.domain.gpu import Gpu
from services.gpu_allocator.domain.lease import Lease, LeasePhase
from services.gpu_allocator.storage import leases, nodes

SOURCE = "gpu_allocator"


async def save_and_tell(
    conn: Connection, changes: Iterable[tuple[Lease, Lease]], *, now: datetime
) -> None:
    """Store the leases that differ from what they were, release their GPUs, and tell of them.

    The lock of their node is had.
    """
    changed = [(before, after) for before, after in changes if before.version != after.version]
    for before, after in changed:
        if before.keeps_gpus and not after.keeps_gpus:
            known = await nodes.gpus_of(conn, after.node_id)
            mine = [gpu for gpu in known if gpu.lease_id == after.lease_id]
            await save_changed_gpus(conn, mine, [gpu.after(after) for gpu in mine], now=now)
    await save_leases_and_tell(conn, changed, now=now)


async def save_changed_gpus(
    conn: Connection, before: Sequence[Gpu], after: Sequence[Gpu], *, now: datetime
) -> None:
    """Store the GPUs that are new or differ, and end the holds of those that nobody has now."""
    known = {gpu.gpu_id: gpu for gpu in before}
    changed = [gpu for gpu in after if known.get(gpu.gpu_id) != gpu]
    released = [
        gpu.gpu_id
        for gpu in changed
        if not gpu.is_unproven and gpu.gpu_id in known and known[gpu.gpu_id].is_unproven
    ]
    if released:
        await leases.release(conn, released, at=now)
    if changed:
        await nodes.save_gpus(conn, changed, at=now)


async def save_leases_and_tell(
    conn: Connection, changed: Sequence[tuple[Lease, Lease]], *, now: datetime
) -> None:
    """Store leases and tell of them; takes the lock of all changes, so it comes last."""
    for before, after in changed:
        await leases.save(conn, after, before=before)
        await tell(conn, after, now=now)


async def tell(conn: Connection, lease: Lease, *, now: datetime) -> None:
    """Add what happened to the outbox."""
    event = event_of(lease)
    await outbox.add(conn, event, sequence=lease.version, source=SOURCE, time=now)


def event_of(lease: Lease) -> LeaseEvent:
    """Return the fact that a version of a lease is."""
    snapshot = LeaseSnapshot(
        lease_id=lease.lease_id,
        job_id=lease.job_id,
        project=lease.project,
        run_id=lease.run_id,
        attempt=lease.attempt,
        epoch=lease.epoch,
        node_id=lease.node_id,
        tier=lease.tier,
        gpu_count=len(lease.ordinals),
        phase=lease.phase,
        close_reason=lease.close_reason,
        close_message=lease.close_message,
        grant_time=lease.grant_time,
        running_time=lease.running_time,
        end_time=lease.end_time,
        alive_time=lease.alive_time,
        stop_time=lease.stop_time,
        funded_until=lease.funded_until,
        committed_time=lease.committed_time,
        close_time=lease.close_time,
    )
    model: type[LeaseEvent] = LeasePhaseChanged
    if lease.version == 1:
        model = LeaseGranted
    elif lease.phase is LeasePhase.CLOSED:
        model = LeaseClosed
    return model(tenant=lease.tenant, lease=snapshot)
