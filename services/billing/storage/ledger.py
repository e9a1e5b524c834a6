"""Rows of the ledger, of the balances that follow it, and of what it has of each price line."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from lehr.errors import Stale
from lehr.postgres import Connection
from services.billing.domain.job import Job
from services.billing.domain.ledger import Account, Kind, Posted, Posting, Transaction
from services.billing.domain.rating import LineKey
from services.billing.storage.sql import SQL


@dataclass(frozen=True, slots=True, kw_only=True)
class Booked:
    """A booking as it is read back."""

    ledger_number: int
    transaction_id: str
    kind: Kind
    job_id: str
    cause: str
    create_time: datetime
    entries: tuple[tuple[str, str, int], ...]
    """Account, side and micros."""


async def open_accounts(conn: Connection, tenant: str, *, currency: str) -> bool:
    """Make a tenant's accounts; return whether it had none."""
    return bool(await conn.fetch(SQL["open_accounts"], tenant, currency))


async def lock_accounts(conn: Connection, tenant: str) -> dict[Account, int]:
    """Take the lock under which a tenant's money moves, and return the balances.

    Comes after the lock of a job, never before it.
    """
    rows = await conn.fetch(SQL["lock_accounts"], tenant)
    return {Account(row["account"]): row["balance_micros"] for row in rows}


async def balances(conn: Connection, tenant: str) -> dict[Account, int]:
    """Return a tenant's balances."""
    rows = await conn.fetch(SQL["balances"], tenant)
    return {Account(row["account"]): row["balance_micros"] for row in rows}


async def book(conn: Connection, transaction: Transaction) -> bool:
    """Book, under the lock of the accounts; return False if it is booked already."""
    line = transaction.line
    booked = await conn.fetchval(
        SQL["add_transaction"],
        transaction.transaction_id,
        transaction.tenant,
        transaction.kind,
        transaction.job_id,
        line.hold_ordinal if line else None,
        line.tier if line else None,
        line.gpu_count if line else None,
        transaction.cause,
    )
    if booked is None:
        return False
    for entry in transaction.entries:
        await conn.execute(
            SQL["add_entry"],
            transaction.transaction_id,
            transaction.tenant,
            entry.account,
            entry.side,
            entry.micros,
        )
        await conn.execute(SQL["change_balance"], transaction.tenant, entry.account, entry.change)
    return True


async def booked_micros(conn: Connection, transaction: Transaction) -> int:
    """Return the amount with which a booking of that id was made."""
    micros: int = await conn.fetchval(
        SQL["booked_micros"], transaction.transaction_id, transaction.tenant
    )
    return micros


async def lines_of(conn: Connection, job: Job) -> Mapping[LineKey, Posted]:
    """Return what the ledger has of each price line of a job."""
    rows = await conn.fetch(SQL["lines_of_job"], job.tenant, job.job_id)
    return {
        LineKey(
            hold_ordinal=row["hold_ordinal"], tier=row["tier"], gpu_count=row["gpu_count"]
        ): Posted(
            amount_micros=row["amount_micros"],
            billed_seconds=row["billed_seconds"],
            revision=row["revision"],
        )
        for row in rows
    }


async def save_line(conn: Connection, job: Job, posting: Posting) -> None:
    """Store the next revision of a price line; raise Stale if somebody was faster."""
    saved = await conn.fetchval(
        SQL["save_line"],
        job.tenant,
        job.job_id,
        posting.key.hold_ordinal,
        posting.key.tier,
        posting.key.gpu_count,
        posting.micro_per_hour,
        posting.after.billed_seconds,
        posting.after.amount_micros,
        posting.after.revision,
    )
    if saved is None:
        raise Stale(f"the charges of job {job.job_id} have changed", job_id=job.job_id)


async def page(
    conn: Connection, *, tenant: str, project: str | None, job_id: str, before: int, limit: int
) -> list[Booked]:
    """Return bookings of a tenant, newest first; all of its jobs where ``job_id`` is empty.

    With a project, only those of its jobs, and those of no job.
    """
    rows = await conn.fetch(SQL["ledger"], tenant, job_id, before, limit, project)
    return [
        Booked(
            ledger_number=row["ledger_number"],
            transaction_id=row["transaction_id"],
            kind=Kind(row["kind"]),
            job_id=row["job_id"],
            cause=row["cause"],
            create_time=row["create_time"],
            entries=tuple((account, side, micros) for account, side, micros in row["entries"]),
        )
        for row in rows
    ]


async def tenants(conn: Connection) -> list[str]:
    """Return everybody who has accounts."""
    return [row["tenant"] for row in await conn.fetch(SQL["tenants"])]
