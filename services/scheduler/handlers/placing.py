"""The placement cycle: who gets GPUs now, and who must be told to end."""

from __future__ import annotations

from lehr import faults
from lehr.errors import PlatformError, Unavailable
from lehr.logs import bind_context, get_logger
from lehr.rpc.auth import acting_for
from lehr.training.ends import RunEnd
from services.scheduler.domain.placement import NOTHING, Funding, Placement, next_placements
from services.scheduler.domain.run import run_id_of
from services.scheduler.domain.turns import Waiting
from services.scheduler.handlers.runs import advance_run, give_up
from services.scheduler.peers import LeaseRequest
from services.scheduler.ports import Ports
from services.scheduler.storage import jobs
from services.scheduler.storage.jobs import QueuedJob
from services.scheduler.storage.sql import now as now_of

_log = get_logger(__name__)


async def place_jobs(*, ports: Ports) -> None:
    """Ask for GPUs for the jobs that are next.

    Replicas may do it at the same time: the attempt is the key of a lease, and the job's version
    guards its run.
    """
    async with ports.db.connection() as conn:
        queue = {one.waiting.job_id: one for one in await jobs.waiting(conn)}
        shares = await jobs.shares(conn)
        now = await now_of(conn)
    if not queue:
        return
    ports.board.tiers = await ports.peers.tiers()
    funding: dict[str, Funding] = {}
    while True:
        decision = next_placements(
            [one.waiting for one in queue.values()],
            ports.board.tiers,
            now=now,
            shares=shares,
            funding=funding,
        )
        if not decision.unasked:
            break
        for job in decision.unasked:
            funding[job.job_id] = await _funding(job, ports=ports)
    for placement in decision.placements:
        job = placement.job
        with bind_context(job_id=job.job_id), acting_for(job.tenant, job.project):
            try:
                await _place(queue[job.job_id], placement, funding[job.job_id], ports=ports)
            except PlatformError as refusal:
                # One job's trouble must not hold up the others; it is tried again next time.
                _log.warning("job_not_placed", reason=refusal.reason, message=refusal.message)


async def send_stops(*, ports: Ports) -> None:
    """Tell the allocator of every stop that its lease has not obeyed yet; repeated until it has."""
    async with ports.db.connection() as conn:
        due = await jobs.stops_due(conn)
    for stop in due:
        with acting_for(stop.tenant, stop.project):
            try:
                lease = await ports.peers.request_stop(
                    stop.lease_id, stop_time=stop.stop_time, reason=RunEnd.USER_STOPPED
                )
                # The answer may be the first that we hear of the end.
                await advance_run(lease, ports=ports)
            except PlatformError as refusal:
                _log.warning(
                    "stop_not_sent",
                    lease_id=stop.lease_id,
                    reason=refusal.reason,
                    message=refusal.message,
                )


async def _funding(job: Waiting, *, ports: Ports) -> Funding:
    """Return what a job is paid for; nothing for one that is given up, or must be tried later.

    Raises:
        Unavailable: billing does not answer, for whatever job.
    """
    with bind_context(job_id=job.job_id), acting_for(job.tenant, job.project):
        try:
            found = await ports.peers.funding(job.job_id)
            end = found.end(job, ports.board.tiers)
            if end is None:
                return found
            await give_up(job.job_id, job.tenant, end, ports=ports)
        except Unavailable:
            raise
        except PlatformError as refusal:
            _log.warning("job_not_funded", reason=refusal.reason, message=refusal.message)
    return NOTHING


async def _place(
    queued: QueuedJob, placement: Placement, funding: Funding, *, ports: Ports
) -> None:
    job = placement.job
    lease = await ports.peers.acquire(
        LeaseRequest(
            tenant=job.tenant,
            project=job.project,
            job_id=job.job_id,
            attempt=queued.next_ordinal,
            run_id=run_id_of(job.job_id, queued.next_ordinal),
            gpu_count=job.gpu_count,
            tiers=funding.of(placement.tiers),
            deadline=funding.deadline,
        )
    )
    if lease is None:
        return
    await faults.hit("scheduler.place.after_acquire")
    if not await advance_run(lease, ports=ports):
        # Stopped in this very moment. If this call is lost, the sweep finds the lease.
        async with ports.db.connection() as conn:
            now = await now_of(conn)
        await ports.peers.request_stop(lease.lease_id, stop_time=now, reason=RunEnd.USER_STOPPED)
