"""``lehr events``: the tenant's CloudEvents, live."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Annotated

import typer

from lehr.cli.output import AsJson, console, print_json_line, run
from lehr.client import AsyncClient

app = typer.Typer(help="CloudEvents.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """CloudEvents."""


@app.command()
def tail(
    event_type: Annotated[
        list[str] | None, typer.Option("--type", help="Only types that begin so: lehr.job.")
    ] = None,
    job_id: Annotated[str, typer.Option("--job", help="Only this job's.")] = "",
    minutes: Annotated[int, typer.Option(help="Begin so many minutes ago.", min=0)] = 0,
    as_json: AsJson = False,
) -> None:
    """Print events as they happen."""
    since = datetime.now(UTC) - timedelta(minutes=minutes) if minutes else None

    async def work(client: AsyncClient) -> None:
        async for event in client.events.tail(types=event_type or (), job_id=job_id, since=since):
            if as_json:
                print_json_line(event)
                continue
            console.print(f"[dim]{event['time']}[/] [bold]{event['type']}[/]", end=" ")
            console.out(f"{event['subject']} {json.dumps(event['data'])}")

    run(work)
