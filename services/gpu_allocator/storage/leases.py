"""Rows of leases and holds, and the order in which changes are numbered."""

from collections.abc import Sequence
from datetime import datetime

import asyncpg

from lehr.postgres import Connection
from services.gpu_allocator.domain.errors import AttemptSuperseded, LeaseNotFound, StaleLease
from services.gpu_allocator.domain.held import Hold
from services.gpu_allocator.domain.lease import Lease, LeasePhase
from services.gpu_allocator.storage.statements import SQL


async def get(conn: Connection, lease_id: str, *, tenant: str) -> Lease:
    """Return a lease of the tenant; raise LeaseNotFound. Tenant '' is the platform."""
    row = await conn.fetchrow(SQL["lease"], lease_id, tenant)
    if row is None:
        raise LeaseNotFound(lease_id)
    return _lease(row)


async def of_attempt(conn: Connection, *, tenant: str, job_id: str, attempt: int) -> Lease | None:
    """Return the lease that this attempt was given before."""
    row = await conn.fetchrow(SQL["lease_of_attempt"], tenant, job_id, attempt)
    return None if row is None else _lease(row)


async def live_of_job(conn: Connection, *, tenant: str, job_id: str) -> Lease | None:
    """Return the lease for which a node works now."""
    row = await conn.fetchrow(SQL["live_lease_of_job"], tenant, job_id)
    return None if row is None else _lease(row)


async def of_node(conn: Connection, node_id: str, lease_ids: Sequence[str]) -> list[Lease]:
    """Return the node's leases that are open, still have a GPU, or are named."""
    rows = await conn.fetch(SQL["leases_of_node"], node_id, list(lease_ids))
    return [_lease(row) for row in rows]


async def still_open(conn: Connection) -> list[Lease]:
    """Return every lease that is not closed."""
    return [_lease(row) for row in await conn.fetch(SQL["open_leases"])]


async def changed(
    conn: Connection, *, after: int, tenant: str, job_id: str, open_only: bool, limit: int
) -> tuple[list[Lease], int]:
    """Return a page of leases in the order of their last change, and the number of the last."""
    rows = await conn.fetch(SQL["leases_changed"], after, tenant, job_id, open_only, limit)
    return [_lease(row) for row in rows], rows[-1]["change_number"] if rows else after


async def lock_job(conn: Connection, *, tenant: str, job_id: str) -> int:
    """Lock a job for granting, and return the newest attempt that had a lease; 0 for none."""
    newest: int = await conn.fetchval(SQL["lock_job"], tenant, job_id)
    return newest


async def next_epoch(conn: Connection) -> int:
    """Draw a fencing number; call it when the job and the GPUs are locked."""
    epoch: int = await conn.fetchval(SQL["next_epoch"])
    return epoch


async def add(conn: Connection, lease: Lease) -> None:
    """Store a lease that was just granted, and raise its job's fence."""
    raised = await conn.fetchval(
        SQL["raise_job_fence"], lease.tenant, lease.job_id, lease.attempt, lease.epoch
    )
    if raised is None:
        raise AttemptSuperseded(lease.job_id, lease.attempt, lease.attempt)
    await conn.execute(
        SQL["add_lease"],
        lease.lease_id,
        lease.tenant,
        lease.project,
        lease.job_id,
        lease.attempt,
        lease.run_id,
        lease.epoch,
        lease.node_id,
        lease.tier,
        list(lease.ordinals),
        lease.funded_duration,
        lease.deadline_duration,
        lease.phase,
        lease.version,
        lease.is_offered,
        lease.grant_time,
        await _next_change(conn),
    )


async def save(conn: Connection, lease: Lease, *, before: Lease) -> None:
    """Store ``lease`` if the stored version is still that of ``before``; else raise StaleLease.

    Locks all changes of leases until the commit: call it last.
    """
    saved = await conn.fetchval(
        SQL["save_lease"],
        lease.lease_id,
        lease.phase,
        lease.version,
        lease.is_offered,
        lease.running_time,
        lease.progress_time,
        lease.end_time,
        lease.alive_time,
        lease.stop_time,
        lease.stop_reason,
        lease.funded_until,
        lease.committed_time,
        lease.close_time,
        lease.close_reason,
        lease.close_message,
        list(lease.pids),
        await _next_change(conn),
        before.version,
    )
    if saved is None:
        raise StaleLease(lease.lease_id, before.version)


async def hold(conn: Connection, lease: Lease, gpu_ids: Sequence[str], *, at: datetime) -> None:
    """Let the lease have the GPUs; the exclusion constraint refuses a second holder."""
    rows = [(gpu_id, lease.lease_id, lease.tenant, at) for gpu_id in gpu_ids]
    await conn.executemany(SQL["hold_gpu"], rows)


async def release(conn: Connection, gpu_ids: Sequence[str], *, at: datetime) -> None:
    """End the holds on GPUs that are free or quarantined now."""
    await conn.executemany(SQL["release_gpu"], [(gpu_id, at) for gpu_id in gpu_ids])


async def holds(conn: Connection) -> list[Hold]:
    """Return what leases hold now."""
    rows = await conn.fetch(SQL["holds"])
    return [Hold(gpu_id=row["gpu_id"], lease_id=row["lease_id"]) for row in rows]


async def _next_change(conn: Connection) -> int:
    number: int = await conn.fetchval(SQL["next_change"])
    return number


def _lease(row: asyncpg.Record) -> Lease:
    return Lease(
        lease_id=row["lease_id"],
        tenant=row["tenant"],
        project=row["project"],
        job_id=row["job_id"],
        attempt=row["attempt"],
        run_id=row["run_id"],
        epoch=row["epoch"],
        node_id=row["node_id"],
        tier=row["tier"],
        ordinals=tuple(row["ordinals"]),
        funded_duration=row["funded_duration"],
        deadline_duration=row["deadline_duration"],
        phase=LeasePhase(row["phase"]),
        version=row["version"],
        is_offered=row["is_offered"],
        grant_time=row["grant_time"],
        running_time=row["running_time"],
        progress_time=row["progress_time"],
        end_time=row["end_time"],
        alive_time=row["alive_time"],
        stop_time=row["stop_time"],
        stop_reason=row["stop_reason"],
        funded_until=row["funded_until"],
        committed_time=row["committed_time"],
        close_time=row["close_time"],
        close_reason=row["close_reason"],
        close_message=row["close_message"],
        pids=tuple(row["pids"]),
    )
