"""Compare with the allocator: with no event ever delivered, this alone keeps every job right."""

from __future__ import annotations

from datetime import timedelta

from lehr.errors import PlatformError
from lehr.logs import get_logger
from lehr.rpc.auth import acting_for
from lehr.training.ends import RunEnd
from services.scheduler.domain.run import Lease, LeasePhase
from services.scheduler.handlers.runs import advance_run
from services.scheduler.ports import Ports
from services.scheduler.storage import plans, runs
from services.scheduler.storage.sql import now as now_of

#: A run as young as this may be missing in a list that was made before it.
YOUNG = timedelta(seconds=10)
#: How long after its end a plan is still known to have expired.
EXPIRED_PLANS_KEPT = timedelta(days=7)

_log = get_logger(__name__)


async def sweep(*, ports: Ports) -> None:
    """Take in all open leases, ask for those of live runs that are not open, end orphans."""
    async with ports.db.connection() as conn:
        now = await now_of(conn)
        live = await runs.live(conn, older_than=now - YOUNG)
        await plans.forget(conn, before=now - EXPIRED_PLANS_KEPT)
    leases = await ports.peers.open_leases()
    for lease in leases:
        await _heal(lease, ports=ports)
    listed = {lease.lease_id for lease in leases}
    for run in live:
        if run.lease_id in listed:
            continue
        with acting_for(run.tenant, run.project):
            try:
                await advance_run(await ports.peers.lease(run.lease_id), ports=ports)
            except PlatformError as refusal:
                _log.warning("run_not_swept", run_id=run.run_id, reason=refusal.reason)


async def _heal(lease: Lease, *, ports: Ports) -> None:
    with acting_for(lease.tenant, lease.project):
        try:
            has_run = await advance_run(lease, ports=ports)
            if has_run or lease.phase is LeasePhase.LOST:
                return
            # No run has it and none will: its job was stopped while it was being granted.
            _log.warning("orphan_lease_stopped", lease_id=lease.lease_id, job_id=lease.job_id)
            async with ports.db.connection() as conn:
                now = await now_of(conn)
            await ports.peers.request_stop(
                lease.lease_id, stop_time=now, reason=RunEnd.USER_STOPPED
            )
        except PlatformError as refusal:
            _log.warning("lease_not_swept", lease_id=lease.lease_id, reason=refusal.reason)
