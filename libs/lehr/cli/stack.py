"""``lehr up``, ``status``, ``logs``, ``down``: the embedded stack on this machine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from lehr.cli.output import AsJson, console, errors, fail, print_json, print_table, size
from lehr.errors import PlatformError
from lehr.stack import Stack, StackStatus

StateDir = Annotated[
    Path | None,
    typer.Option("--state-dir", envvar="LEHR_STATE_DIR", help="Folder of the stack; .state here."),
]


def up(
    state_dir: StateDir = None,
    foreground: Annotated[bool, typer.Option(help="Stay here until Ctrl-C.")] = False,
    as_json: AsJson = False,
) -> None:
    """Start servers, services and a runner, and leave them running."""
    try:
        status = Stack(state_dir).up(
            detach=not foreground, progress=tell_progress(errors if as_json else console)
        )
    except PlatformError as error:
        fail(error)
    if as_json:
        print_json(_plain(status))
    elif not foreground:
        console.print(
            f"ready: gateway at [bold]{status.gateway}[/], REST at [bold]{status.rest}[/],"
            f" key in {status.api_key_file}"
        )


def status(
    state_dir: StateDir = None,
    as_json: AsJson = False,
) -> None:
    """Show every part: its state, process, port, restarts and memory."""
    try:
        found = Stack(state_dir).status()
    except PlatformError as error:
        fail(error)
    if as_json:
        print_json(_plain(found))
        return
    print_table(
        ("PART", "STATE", "PID", "PORT", "RESTARTS", "MEMORY"),
        [
            (
                part.name,
                part.state.value,
                part.pid or "-",
                part.port or "-",
                part.restart_count,
                size(part.memory_bytes),
            )
            for part in found.parts
        ],
    )
    console.print(f"{found.phase.value}; {size(found.memory_bytes)} in all")
    if found.rest is not None:
        console.print(f"gateway at {found.gateway}, REST at {found.rest}")


def logs(
    service: Annotated[str | None, typer.Argument(help="Part, such as scheduler.")] = None,
    state_dir: StateDir = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Wait for more.")] = False,
    lines: Annotated[int, typer.Option("-n", help="Last lines to show.")] = 100,
) -> None:
    """Print what a part of the stack logs."""
    try:
        for line in Stack(state_dir).logs(service, follow=follow, lines=lines):
            console.out(line)
    except PlatformError as error:
        fail(error)
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


def down(state_dir: StateDir = None, as_json: AsJson = False) -> None:
    """Stop everything; the data stays."""
    try:
        ran = Stack(state_dir).down()
    except PlatformError as error:
        fail(error)
    if as_json:
        print_json({"did_run": ran})
    else:
        console.print("stopped" if ran else "nothing ran")


def tell_progress(out: Console = console) -> Callable[[StackStatus], None]:
    """Return a function that prints each part as it becomes ready."""
    told: set[str] = set()

    def tell(found: StackStatus) -> None:
        for part in found.parts:
            if part.state.value == "ready" and part.name not in told:
                told.add(part.name)
                out.print(f"  [green]ready[/] {part.name}")

    return tell


def _plain(found: StackStatus) -> dict[str, Any]:
    return {
        "phase": found.phase.value,
        "gateway": found.gateway,
        "rest": found.rest,
        "memory_bytes": found.memory_bytes,
        "parts": [
            {
                "name": part.name,
                "state": part.state.value,
                "pid": part.pid,
                "port": part.port,
                "restarts": part.restart_count,
                "memory_bytes": part.memory_bytes,
            }
            for part in found.parts
        ],
    }
