"""``lehr checkpoints``: list, download, pin, delete."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.progress import Progress

from lehr.api.checkpoint_store.v1 import checkpoint_store_pb2 as pb
from lehr.cli.output import AsJson, console, print_json, print_table, run, size, when
from lehr.client import AsyncClient

app = typer.Typer(help="Saved states of jobs.", no_args_is_help=True)

CheckpointId = Annotated[str, typer.Argument(help="Id of the checkpoint.")]


@app.command("list")
def list_checkpoints(
    job_id: Annotated[str, typer.Argument(help="Id of the job.")], as_json: AsJson = False
) -> None:
    """List a job's checkpoints by step."""
    found = run(lambda client: client.checkpoints.list(job_id))
    if as_json:
        print_json(found)
        return
    print_table(
        ("CHECKPOINT", "STEP", "WHAT", "VALIDATION LOSS", "SIZE", "USE", "COMMITTED (UTC)"),
        [
            (
                one.checkpoint_id,
                one.step,
                _roles(one),
                one.eval_loss or "-",
                size(one.size_bytes),
                "resume, deploy" if one.is_resumable else "deploy only",
                when(one.commit_time),
            )
            for one in found
        ],
    )


@app.command()
def download(
    which: Annotated[str, typer.Argument(help="Checkpoint id, JOB:best or JOB:final.")],
    folder: Annotated[Path, typer.Argument(help="Where to.")],
    with_training_state: Annotated[bool, typer.Option(help="The optimiser's state too.")] = False,
    as_json: AsJson = False,
) -> None:
    """Download a checkpoint; every file is verified."""

    async def work(client: AsyncClient) -> pb.Checkpoint:
        with Progress(console=console, transient=True, disable=as_json) as bars:
            bar = bars.add_task("downloading", total=None)
            return await client.checkpoints.download(
                which,
                folder,
                with_training_state=with_training_state,
                progress=lambda _, count: bars.advance(bar, count),
            )

    found = run(work)
    if as_json:
        print_json(found)
    else:
        console.print(f"step {found.step} is in {folder}", markup=False)


@app.command()
def delete(
    checkpoint_id: CheckpointId,
    best_or_final: Annotated[
        bool, typer.Option("--best-or-final", help="Needed to delete Best or final.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Delete a checkpoint; twice is the same as once."""
    run(lambda client: client.checkpoints.delete(checkpoint_id, allow_best_or_final=best_or_final))
    if as_json:
        print_json({"checkpoint_id": checkpoint_id, "is_deleted": True})
    else:
        console.print(f"{checkpoint_id} is deleted", markup=False)


@app.command()
def pin(
    checkpoint_id: CheckpointId,
    off: Annotated[bool, typer.Option("--off", help="Let it be pruned again.")] = False,
    as_json: AsJson = False,
) -> None:
    """Keep a checkpoint from being pruned."""
    found = run(lambda client: client.checkpoints.pin(checkpoint_id, is_pinned=not off))
    if as_json:
        print_json(found)
    else:
        console.print(f"{found.checkpoint_id} is {'no longer ' if off else ''}pinned")


def _roles(one: pb.Checkpoint) -> str:
    roles = (("Best", one.is_best), ("final", one.is_final), ("pinned", one.is_pinned))
    return ", ".join(word for word, is_so in roles if is_so) or "ordinary"
