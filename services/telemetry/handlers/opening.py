"""OpenSeries and GetWatermark: which run reports from which step on, and what is stored."""

from lehr.postgres import Database
from services.telemetry.domain.errors import Fenced, RunDiffers
from services.telemetry.domain.owner import Owner
from services.telemetry.domain.series import Run
from services.telemetry.storage import jobs, points


async def open_series(owner: Owner, run: Run, *, db: Database) -> int:
    """Raise the job's fence to the run's epoch; return up to where its loss has no gap.

    What earlier runs said of steps past the resume step is superseded, now and when it comes late.
    Asked again, the answer is the same.

    Raises:
        Fenced: a newer run has taken over.
        RunDiffers: run or epoch are known with other facts.
        JobNotFound: the job is another project's.
    """
    async with db.transaction() as conn:
        fence = await jobs.raise_fence(conn, owner, run.job_id, run.epoch)
        if run.epoch < fence:
            raise Fenced(run.job_id, epoch=run.epoch, fence_epoch=fence)
        if not await jobs.add_run(conn, run):
            known = await jobs.run_at(conn, run.tenant, run.job_id, run.epoch)
            if known != run:
                raise RunDiffers(run.run_id, _difference(known, run))
        await points.supersede(conn, run)
        return await points.stored_step(conn, run.tenant, run.job_id)


async def watermarks(tenant: str, run_id: str, *, db: Database) -> tuple[int, int]:
    """Return the numbers up to which reports and lines of a run are stored without a gap.

    Raises:
        RunNotFound: no such run of the tenant.
    """
    async with db.connection() as conn:
        return await jobs.watermarks(conn, tenant, run_id)


def _difference(known: Run | None, wanted: Run) -> str:
    if known is None:
        return "it was opened for another job or epoch"
    if known.run_id != wanted.run_id:
        return f"epoch {wanted.epoch} belongs to run {known.run_id}"
    return f"it continues from step {known.resume_step}, not {wanted.resume_step}"
