"""``lehr jobs``: plan, launch, follow, stop, resume."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated, Any

import typer

from lehr.api.scheduler.v1 import job_pb2
from lehr.api.telemetry.v1 import telemetry_pb2
from lehr.cli.amounts import read_duration, read_money
from lehr.cli.follow import follow
from lehr.cli.output import (
    AsJson,
    clock,
    console,
    errors,
    fail,
    money,
    print_json,
    print_json_line,
    print_table,
    run,
    when,
)
from lehr.cli.plan import show_plan
from lehr.client import AsyncClient
from lehr.errors import InvalidArgument, PlatformError

app = typer.Typer(help="Fine-tuning jobs.", no_args_is_help=True)

JobId = Annotated[str, typer.Argument(help="Id of the job.")]
JobFile = Annotated[Path, typer.Argument(help="YAML file that describes the job.")]


def state_name(state: int) -> str:
    """Return a state as people read it."""
    return job_pb2.JobState.Name(state).removeprefix("JOB_STATE_").lower()  # type: ignore[arg-type]


def plan(file: JobFile, as_json: AsJson = False) -> None:
    """Check a job and say what would happen and at what cost; nothing is spent."""
    made = run(lambda client: client.jobs.plan(file))
    if as_json:
        print_json(made)
    else:
        show_plan(made)
        console.print(
            f"\nlaunch it with  lehr jobs create --plan {made.plan_digest} --max-cost ..."
        )


@app.command()
def create(  # noqa: PLR0913, PLR0917 - the options of one command.
    file: Annotated[Path | None, typer.Argument(help="YAML file that describes the job.")] = None,
    plan_digest: Annotated[str | None, typer.Option("--plan", help="Digest of a plan.")] = None,
    max_cost: Annotated[str, typer.Option(help="Most that may be charged: 5.00 EUR.")] = "",
    max_duration: Annotated[str, typer.Option(help="Most running time: 90s, 30m or 2h.")] = "24h",
    request_id: Annotated[str | None, typer.Option(help="Key for safe repetition.")] = None,
    dry_run: Annotated[bool, typer.Option(help="Check everything, launch nothing.")] = False,
    watch: Annotated[bool, typer.Option(help="Follow the job to its end.")] = False,
    as_json: AsJson = False,
) -> None:
    """Launch a job; what it may cost must be said."""
    try:
        cost, duration = read_money(max_cost), read_duration(max_duration)
        if (file is None) == (plan_digest is None):
            raise InvalidArgument("give the job's file or --plan, one of them")
    except PlatformError as error:
        fail(error)
    what: Path | str | None = file or plan_digest

    async def work(client: AsyncClient) -> job_pb2.Job:
        assert what is not None  # noqa: S101 - decided above.
        job = await client.jobs.create(
            what,
            max_cost=cost,
            max_duration=duration,
            request_id=request_id,
            dry_run=dry_run,
        )
        if watch and not dry_run:
            return await follow(client, job.job_id, out=errors if as_json else console)
        return job

    _show(run(work), as_json=as_json)


@app.command("list")
def list_jobs(
    name: Annotated[str, typer.Option(help="Only names that contain this.")] = "",
    limit: Annotated[int, typer.Option(help="Most jobs.", min=1, max=500)] = 50,
    as_json: AsJson = False,
) -> None:
    """List jobs, newest first."""
    answer = run(lambda client: client.jobs.page(name_contains=name, page_size=limit))
    if as_json:
        print_json(answer.jobs)
        return
    print_table(
        ("JOB", "NAME", "STATE", "STEP", "WHY", "CREATED (UTC)"),
        [
            (
                job.job_id,
                job.spec.name,
                state_name(job.state),
                f"{job.progress.step}/{job.progress.total_steps}",
                job.end_reason or job.state_message,
                when(job.create_time),
            )
            for job in answer.jobs
        ],
    )


@app.command()
def get(job_id: JobId, as_json: AsJson = False) -> None:
    """Show one job."""
    _show(run(lambda client: client.jobs.get(job_id)), as_json=as_json)


@app.command()
def watch(job_id: JobId, as_json: AsJson = False) -> None:
    """Follow a job live until it rests or ends."""
    if as_json:

        async def stream(client: AsyncClient) -> None:
            async for job in client.jobs.watch(job_id):
                print_json_line(job)

        run(stream)
        return
    _show(run(lambda client: follow(client, job_id)), as_json=False)


@app.command()
def logs(
    job_id: JobId,
    follow_on: Annotated[bool, typer.Option("--follow", "-f", help="Wait for more.")] = False,
    as_json: AsJson = False,
) -> None:
    """Print the job's log."""

    def show(line: telemetry_pb2.LogLine) -> None:
        if as_json:
            print_json_line(line)
        else:
            console.print(f"{when(line.time)} {line.level:8}", style="dim", end=" ", markup=False)
            console.out(line.text)

    async def work(client: AsyncClient) -> None:
        lines: AsyncIterator[Any] = (
            client.jobs.watch_logs(job_id) if follow_on else client.jobs.logs(job_id)
        )
        async for line in lines:
            show(line)

    run(work)


@app.command()
def metrics(
    job_id: JobId,
    name: Annotated[list[str] | None, typer.Option(help="Only these series.")] = None,
    as_json: AsJson = False,
) -> None:
    """Print the points of the job's series."""
    points = run(lambda client: client.jobs.metrics(job_id, names=name or ()))
    if as_json:
        print_json(points)
        return
    print_table(("STEP", "SERIES", "VALUE"), [(one.step, one.name, one.value) for one in points])


@app.command()
def stop(job_id: JobId, as_json: AsJson = False) -> None:
    """Stop a job; what is billed is fixed when this returns."""
    _show(run(lambda client: client.jobs.stop(job_id)), as_json=as_json)


@app.command()
def resume(
    job_id: JobId,
    max_cost: Annotated[str, typer.Option(help="New limit in all: 5.00 EUR.")] = "",
    max_duration: Annotated[str, typer.Option(help="New limit in all: 90s, 30m or 2h.")] = "",
    request_id: Annotated[str | None, typer.Option(help="Key for safe repetition.")] = None,
    as_json: AsJson = False,
) -> None:
    """Continue a stopped or failed job from its newest checkpoint."""
    try:
        if bool(max_cost) != bool(max_duration):
            raise InvalidArgument("give --max-cost and --max-duration, or neither")
        cost = read_money(max_cost) if max_cost else None
        duration = read_duration(max_duration) if max_duration else None
    except PlatformError as error:
        fail(error)
    job = run(
        lambda client: client.jobs.resume(
            job_id, max_cost=cost, max_duration=duration, request_id=request_id
        )
    )
    _show(job, as_json=as_json)


@app.command()
def cost(job_id: JobId, as_json: AsJson = False) -> None:
    """Show what a job has cost, line by line."""
    found = run(lambda client: client.jobs.cost(job_id))
    if as_json:
        print_json(found)
        return
    print_table(
        ("TIER", "GPUS", "PRICE PER GPU HOUR", "SECONDS", "AMOUNT"),
        [
            (
                line.tier,
                line.gpu_count,
                money(line.price_per_gpu_hour),
                line.billed_seconds,
                money(line.amount),
            )
            for line in found.lines
        ],
    )
    still = " so far" if found.is_provisional else ""
    console.print(f"{money(found.total)}{still} of at most {money(found.max_cost)}")


def _show(job: job_pb2.Job, *, as_json: bool) -> None:
    if as_json:
        print_json(job)
        return
    progress = job.progress
    rows: list[tuple[str, str]] = [
        ("job", job.job_id),
        ("name", job.spec.name),
        ("state", state_name(job.state)),
        ("why", job.end_reason or job.state_message),
        ("step", f"{progress.step} of {progress.total_steps}"),
        ("left", clock(progress.remaining_seconds) if progress.remaining_seconds else ""),
        (
            "best",
            f"{progress.best_loss:.6g} at step {progress.best_step}" if progress.best_step else "",
        ),
        ("tier", job.runs[-1].tier if job.runs else job.spec.tier),
        ("may cost", money(job.authorization.max_cost)),
        ("created", when(job.create_time)),
    ]
    for name, value in rows:
        if value:
            console.print(f"[bold]{name:9}[/]", end=" ")
            console.print(value, markup=False)
