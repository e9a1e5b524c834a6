"""What keeps billing right without any event: the owners are asked again and again."""

from datetime import timedelta

from lehr.postgres import Database
from services.billing.handlers.metering import meter_all
from services.billing.handlers.settling import settle_due
from services.billing.ports import Jobs, Leases
from services.billing.storage import jobs as job_rows
from services.billing.storage import sql

LEASES = "allocator_leases"
JOBS = "scheduler_jobs"


async def charge_running(*, db: Database, leases: Leases) -> None:
    """Charge what runs up to its last proof of life, which no event tells of; settle what rests."""
    async for page in leases.still_open():
        await meter_all(page, db=db)
    await settle_due(db=db, leases=leases)


async def sweep(*, db: Database, leases: Leases, jobs: Jobs, give_up_after: timedelta) -> None:
    """Take in every change since the last sweep, then settle what rests or was given up.

    Whether a launch was given up is judged only after the scheduler told of all jobs it has.
    """
    await _sweep_leases(db=db, leases=leases)
    await _sweep_jobs(db=db, jobs=jobs)
    await settle_due(db=db, leases=leases, give_up_after=give_up_after)


async def _sweep_leases(*, db: Database, leases: Leases) -> None:
    cursor = await _cursor(LEASES, db=db)
    while True:
        changed, after = await leases.changed_since(cursor)
        if not changed:
            return
        await meter_all(changed, db=db)
        await _move(LEASES, after, db=db)
        if after == cursor:
            return
        cursor = after


async def _sweep_jobs(*, db: Database, jobs: Jobs) -> None:
    cursor = await _cursor(JOBS, db=db)
    while True:
        changed, after = await jobs.changed_since(cursor)
        if not changed:
            return
        async with db.transaction() as conn:
            for change in changed:
                await job_rows.save_rest(
                    conn, change.rest, tenant=change.tenant, job_id=change.job_id
                )
            await sql.move_cursor(conn, JOBS, after)
        if after == cursor:
            return
        cursor = after


async def _cursor(name: str, *, db: Database) -> str:
    async with db.connection() as conn:
        return await sql.cursor(conn, name)


async def _move(name: str, value: str, *, db: Database) -> None:
    async with db.connection() as conn:
        await sql.move_cursor(conn, name, value)
