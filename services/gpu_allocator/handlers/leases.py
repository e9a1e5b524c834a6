"""Grant a lease, ask it to stop, and read leases."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from lehr import faults
from lehr.events import inbox
from lehr.ids import derived_id
from lehr.postgres import Connection, Database
from lehr.training.ends import RunEnd
from services.gpu_allocator.domain import placement
from services.gpu_allocator.domain.errors import AttemptSuperseded
from services.gpu_allocator.domain.grant import AcquireGpus, grant
from services.gpu_allocator.domain.lease import Lease, LeasePhase
from services.gpu_allocator.domain.tier import NodeGpus
from services.gpu_allocator.handlers.telling import save_and_tell, tell
from services.gpu_allocator.storage import leases, nodes, times


@dataclass(frozen=True, slots=True, kw_only=True)
class StopLease:
    """Ask that a lease end."""

    lease_id: str
    tenant: str
    """Whose lease it is; '' for the platform itself."""
    stop_time: datetime | None
    """Last billable instant; None is now."""
    reason: RunEnd


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """The event that carries a command, for the inbox."""

    consumer: str
    event_id: str


async def acquire(cmd: AcquireGpus, *, db: Database, fresh: timedelta) -> tuple[Lease | None, str]:
    """Return the lease of an attempt, granting it if there are GPUs, or else why there is none.

    May be called again with the same key: the same lease comes back, whatever became of it.
    ``fresh`` is how long ago a node may have synced to be given work.

    Raises:
        AttemptSuperseded: a later attempt had its lease.
    """
    async with db.transaction() as conn:
        newest = await leases.lock_job(conn, tenant=cmd.tenant, job_id=cmd.job_id)
        found = await leases.of_attempt(
            conn, tenant=cmd.tenant, job_id=cmd.job_id, attempt=cmd.attempt
        )
        if found is not None:
            return found, ""
        if newest > cmd.attempt:
            raise AttemptSuperseded(cmd.job_id, cmd.attempt, newest)
        live = await leases.live_of_job(conn, tenant=cmd.tenant, job_id=cmd.job_id)
        if live is not None:
            return None, f"attempt {live.attempt} of job {cmd.job_id} is still {live.phase}"
        granted, refusal = await _grant(conn, cmd, fresh=fresh)
        await faults.hit("gpu_allocator.acquire.before_commit")
    await faults.hit("gpu_allocator.acquire.after_commit")
    return granted, refusal


async def request_stop(cmd: StopLease, *, db: Database, delivery: Delivery | None = None) -> Lease:
    """Return the lease after it was asked to stop; a closed one is returned as it is.

    A lease that no node was told of is closed at once, and its GPUs are free.

    Raises:
        LeaseNotFound: no such lease, or another tenant's.
    """
    async with db.transaction() as conn:
        if delivery is not None and not await inbox.first_time(
            conn, delivery.consumer, delivery.event_id
        ):
            return await leases.get(conn, cmd.lease_id, tenant=cmd.tenant)
        node_id = (await leases.get(conn, cmd.lease_id, tenant=cmd.tenant)).node_id
        _, now = await nodes.lock(conn, node_id)
        before = await leases.get(conn, cmd.lease_id, tenant=cmd.tenant)
        after = before.stop(stop_time=cmd.stop_time, reason=cmd.reason, now=now)
        if after.phase is LeasePhase.GRANTED and not after.is_offered:
            after = after.close(RunEnd(after.stop_reason), "stopped before it began", now=now)
        await save_and_tell(conn, [(before, after)], now=now)
    return after


async def get(lease_id: str, *, tenant: str, db: Database) -> Lease:
    """Return one lease; raise LeaseNotFound."""
    async with db.connection() as conn:
        return await leases.get(conn, lease_id, tenant=tenant)


async def changed_since(
    cursor: int, *, tenant: str, job_id: str, open_only: bool, limit: int, db: Database
) -> tuple[list[Lease], int]:
    """Return a page of leases in the order of their changes, and the cursor behind it."""
    async with db.connection() as conn:
        return await leases.changed(
            conn, after=cursor, tenant=tenant, job_id=job_id, open_only=open_only, limit=limit
        )


async def _grant(
    conn: Connection, cmd: AcquireGpus, *, fresh: timedelta
) -> tuple[Lease | None, str]:
    tiers = [one.tier for one in cmd.tiers]
    free, free_since = await nodes.lock_free_gpus(conn, tiers)
    now = await times.now(conn)
    inventory = [
        NodeGpus(
            node_id=node.node_id,
            can_grant=node.can_grant(now=now, fresh=fresh),
            gpus=tuple(gpu for gpu in free if gpu.node_id == node.node_id),
        )
        for node in await nodes.every(conn)
    ]
    chosen = placement.choose(tiers, cmd.gpu_count, inventory)
    if chosen is None:
        return None, placement.refusal(tiers, cmd.gpu_count, inventory)
    # The database's clock may have stepped back since a GPU became free.
    now = max(now, *(free_since[gpu.gpu_id] for gpu in chosen.gpus))
    lease, held = grant(
        cmd,
        chosen,
        lease_id=derived_id("lease", cmd.tenant, f"{cmd.job_id}:{cmd.attempt}"),
        epoch=await leases.next_epoch(conn),
        now=now,
    )
    await leases.add(conn, lease)
    await leases.hold(conn, lease, [gpu.gpu_id for gpu in held], at=now)
    await nodes.save_gpus(conn, held, at=now)
    await tell(conn, lease, now=now)
    return lease, ""
