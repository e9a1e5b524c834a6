"""Prove that the ledger equals the leases, or say where it does not."""

import asyncio
from datetime import timedelta

from lehr.logs import get_logger, metrics
from lehr.postgres import Database
from services.billing.ports import Leases
from services.billing.storage import ledger
from services.billing.storage.proof import Proof, prove

LOOKS = 3
"""A difference counts when this many looks find it: news of a lease may be on its way."""


async def reconcile(tenant: str, *, db: Database, leases: Leases, pause: timedelta) -> Proof:
    """Compare a tenant's leases with its ledger; nothing is changed."""
    proof = await _look(tenant, db=db, leases=leases)
    for _ in range(LOOKS - 1):
        if not proof.differences:
            break
        await asyncio.sleep(pause.total_seconds())
        proof = await _look(tenant, db=db, leases=leases)
    return proof


async def reconcile_all(*, db: Database, leases: Leases, pause: timedelta) -> None:
    """Compare everybody's; each difference is an error in the log, their count a metric."""
    async with db.connection() as conn:
        tenants = await ledger.tenants(conn)
    count = 0
    for tenant in tenants:
        proof = await reconcile(tenant, db=db, leases=leases, pause=pause)
        for difference in proof.differences:
            get_logger().error("reconcile_difference", tenant=tenant, difference=difference)
        count += len(proof.differences)
    metrics.put("reconcile_differences", count)


async def _look(tenant: str, *, db: Database, leases: Leases) -> Proof:
    # The owner first: what is newer with billing than in its answer was told in between.
    listed = {lease.lease_id: lease async for page in leases.of_tenant(tenant) for lease in page}
    async with db.transaction(isolation="repeatable_read", readonly=True) as conn:
        return await prove(conn, tenant, list(listed.values()))
