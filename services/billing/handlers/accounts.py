"""A tenant's accounts: their opening, top-ups, what is there, and the ledger behind it."""

from dataclasses import dataclass

from lehr import faults
from lehr.postgres import Connection, Database
from services.billing.domain.commands import TopUp
from services.billing.domain.errors import PaymentDiffers
from services.billing.domain.ledger import Account, top_up
from services.billing.storage import ledger
from services.billing.storage.ledger import Booked

STARTING = "starting_credit"


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """With what a tenant begins."""

    currency: str
    credit_micros: int


async def lock(conn: Connection, tenant: str, *, opening: Opening) -> dict[Account, int]:
    """Return the locked balances of a tenant, who gets its accounts and credit at first use."""
    is_new = await ledger.open_accounts(conn, tenant, currency=opening.currency)
    if is_new and opening.credit_micros:
        first = top_up(tenant, opening.credit_micros, request_id=STARTING, cause="starting credit")
        await ledger.book(conn, first)
    return await ledger.lock_accounts(conn, tenant)


async def add_credit(cmd: TopUp, *, db: Database, opening: Opening) -> int:
    """Book money paid in, once a payment id, and return the credit, holds included.

    Raises:
        PaymentDiffers: the id was booked with another amount.
    """
    payment = top_up(
        cmd.tenant,
        cmd.micros,
        # The prefix keeps people's ids apart from ours.
        request_id=f"payment:{cmd.request_id}",
        cause=f"payment {cmd.request_id}, booked by {cmd.principal}",
    )
    async with db.transaction() as conn:
        await lock(conn, cmd.tenant, opening=opening)
        is_new = await ledger.book(conn, payment)
        if not is_new and await ledger.booked_micros(conn, payment) != cmd.micros:
            raise PaymentDiffers(cmd.request_id)
        now = await ledger.balances(conn, cmd.tenant)
    await faults.hit("billing.top_up.after_commit")
    return now[Account.CREDIT] + now[Account.HELD]


async def balance(tenant: str, *, db: Database, opening: Opening) -> dict[Account, int]:
    """Return what a tenant has."""
    async with db.connection() as conn:
        found = await ledger.balances(conn, tenant)
    if found:
        return found
    async with db.transaction() as conn:
        await lock(conn, tenant, opening=opening)
        return await ledger.balances(conn, tenant)


async def bookings(
    tenant: str, *, project: str | None, job_id: str, before: int, limit: int, db: Database
) -> list[Booked]:
    """Return bookings of a tenant, or of one project of it, newest first."""
    async with db.connection() as conn:
        return await ledger.page(
            conn, tenant=tenant, project=project, job_id=job_id, before=before, limit=limit
        )
