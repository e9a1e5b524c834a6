"""Take in what runs report: many messages in one transaction, each once, in any order."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from lehr import faults
from lehr.errors import PlatformError
from lehr.logs import metrics
from lehr.postgres import Connection, Database
from services.telemetry.domain.errors import ReportRefused, RunNotOpened
from services.telemetry.domain.log import Line, Lines
from services.telemetry.domain.series import Point, PointKey, Report, settle, yield_to
from services.telemetry.storage import jobs, lines, points

Verdict = PlatformError | None
"""None where the message is stored, else why it is not."""

Known = Mapping[tuple[str, str], jobs.Progress]


async def store_reports(reports: Sequence[Report], *, db: Database) -> list[Verdict]:
    """Store points and move the watermarks; one verdict a report.

    What a replaced run says about steps that are computed anew is kept as superseded.
    """
    async with db.transaction() as conn:
        known = await _locked(conn, reports)
        verdicts = [_verdict(report, known) for report in reports]
        taken = [report for report, refused in zip(reports, verdicts, strict=True) if not refused]
        runs = [progress.run for progress in known.values()]
        by_tenant: defaultdict[str, list[Point]] = defaultdict(list)
        spans: defaultdict[tuple[str, str], list[tuple[int, int]]] = defaultdict(list)
        for report in taken:
            by_tenant[report.tenant] += report.points
            spans[report.tenant, report.run_id].append(
                (report.first_sequence, report.last_sequence)
            )
        for tenant, reported in by_tenant.items():
            of_tenant = [run for run in runs if run.tenant == tenant]
            settled = settle(reported, of_tenant)
            if len(of_tenant) > len({run.job_id for run in of_tenant}):
                settled = await _agreed(conn, tenant, settled)
            await points.add(conn, tenant, sorted(settled, key=lambda point: point.step))
        for key, added in spans.items():
            await jobs.save_reports(conn, known[key].run, known[key].reports.add(added))
        await _ring(conn, (report.job_id for report in taken))
        await faults.hit("telemetry.runs.before_commit")
    metrics.add("points_ingested", sum(len(report.points) for report in taken))
    return verdicts


async def store_lines(messages: Sequence[Lines], *, db: Database) -> list[Verdict]:
    """Store lines and give a place in the log to those that miss none before them."""
    async with db.transaction() as conn:
        known = await _locked(conn, messages)
        verdicts = [_verdict(message, known) for message in messages]
        taken = [one for one, refused in zip(messages, verdicts, strict=True) if not refused]
        by_run: defaultdict[tuple[str, str], list[Lines]] = defaultdict(list)
        for message in taken:
            by_run[message.tenant, message.run_id].append(message)
        for key, of_run in by_run.items():
            written = [line for message in of_run for line in message.lines]
            await _write_lines(conn, known[key], written)
        await _ring(conn, (message.job_id for message in taken))
        await faults.hit("telemetry.logs.before_commit")
    metrics.add("log_lines_ingested", sum(len(message.lines) for message in taken))
    return verdicts


async def _write_lines(conn: Connection, before: jobs.Progress, written: Sequence[Line]) -> None:
    spans = [(line.sequence, line.sequence) for line in written]
    watermark = before.shown.add(spans).watermark
    # Where lines wait, the new ones must queue up with them to come in order.
    some_wait = before.shown.has_gap
    await lines.add(conn, before.run, written, placed_up_to=0 if some_wait else watermark)
    if some_wait:
        await lines.place(conn, before.run.tenant, before.run.run_id, watermark=watermark)
    await jobs.save_lines(conn, before.run, before.lines.add(spans))


async def _agreed(conn: Connection, tenant: str, reported: Sequence[Point]) -> list[Point]:
    """Let the highest epoch have the word where several runs of a job speak of one step."""
    steps: defaultdict[str, list[int]] = defaultdict(list)
    for point in reported:
        steps[point.job_id].append(point.step)
    stored: dict[PointKey, points.Counting] = {}
    for job_id, of_job in steps.items():
        stored |= await points.counting(
            conn, tenant, job_id, first_step=min(of_job), last_step=max(of_job)
        )
    agreed = yield_to(reported, {key: one.epoch for key, one in stored.items()})
    beaten = [
        stored[point.key].row
        for point in agreed
        if not point.is_superseded and point.key in stored and stored[point.key].epoch < point.epoch
    ]
    await points.give_way(conn, tenant, beaten)
    return agreed


async def _locked(conn: Connection, messages: Iterable[Report | Lines]) -> Known:
    """Lock the jobs of a batch and return their runs as they are under the lock."""
    keys = {(message.tenant, message.job_id) for message in messages}
    await jobs.lock(conn, keys)
    return await jobs.runs_of(conn, keys)


def _verdict(message: Report | Lines, known: Known) -> Verdict:
    found = known.get((message.tenant, message.run_id))
    if found is None:
        return RunNotOpened(message.run_id)
    run = found.run
    if (run.job_id, run.epoch) != (message.job_id, message.epoch):
        return ReportRefused(
            message.run_id,
            f"it says job {message.job_id} and epoch {message.epoch}, "
            f"but was opened for {run.job_id} and {run.epoch}",
        )
    return None


async def _ring(conn: Connection, job_ids: Iterable[str]) -> None:
    for job_id in sorted(set(job_ids)):
        await jobs.ring(conn, job_id)
