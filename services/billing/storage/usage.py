"""Rows of usage records: leases as they were last told."""

import asyncpg

from lehr.postgres import Connection
from services.billing.domain.errors import LeaseImpossible
from services.billing.domain.job import Job
from services.billing.domain.lease import Lease, LeasePhase
from services.billing.storage.sql import SQL


async def of_job(conn: Connection, job: Job) -> list[Lease]:
    """Return all leases of a job, oldest first."""
    rows = await conn.fetch(SQL["usage_of_job"], job.tenant, job.job_id)
    return [_lease(row) for row in rows]


async def save(conn: Connection, lease: Lease) -> None:
    """Store what is known of a lease; its job is locked.

    Raises:
        LeaseImpossible: the lease belongs to another job or tenant.
    """
    saved = await conn.fetchval(
        SQL["save_usage"],
        lease.lease_id,
        lease.tenant,
        lease.project,
        lease.job_id,
        lease.attempt,
        lease.epoch,
        lease.tier,
        lease.gpu_count,
        lease.phase,
        lease.close_reason,
        lease.version,
        lease.grant_time,
        lease.running_time,
        lease.end_time,
        lease.alive_time,
        lease.stop_time,
        lease.funded_until,
        lease.committed_time,
        lease.hold_ordinal,
    )
    if saved is None:
        raise LeaseImpossible(lease.lease_id, "was told of another job before")


def _lease(row: asyncpg.Record) -> Lease:
    return Lease(
        lease_id=row["lease_id"],
        tenant=row["tenant"],
        project=row["project"],
        job_id=row["job_id"],
        attempt=row["attempt"],
        epoch=row["epoch"],
        tier=row["tier"],
        gpu_count=row["gpu_count"],
        phase=LeasePhase(row["phase"]),
        close_reason=row["close_reason"],
        version=row["version"],
        grant_time=row["grant_time"],
        running_time=row["running_time"],
        end_time=row["end_time"],
        alive_time=row["alive_time"],
        stop_time=row["stop_time"],
        funded_until=row["funded_until"],
        committed_time=row["committed_time"],
        hold_ordinal=row["hold_ordinal"],
    )
