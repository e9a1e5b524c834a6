"""``lehr gpus``: what there is to run on."""

from __future__ import annotations

from typing import Annotated

import typer

from lehr.api.gpu_allocator.v1 import gpu_allocator_pb2 as pb
from lehr.cli.output import AsJson, console, print_json, print_table, run, size

app = typer.Typer(help="GPU tiers and nodes.", no_args_is_help=True)


def _state(gpu: pb.Gpu) -> str:
    return pb.GpuState.Name(gpu.state).removeprefix("GPU_STATE_").lower()


@app.command("list")
def list_gpus(as_json: AsJson = False) -> None:
    """List the tiers with what exists and what is free."""
    tiers = run(lambda client: client.gpus.tiers())
    if as_json:
        print_json(tiers)
        return
    print_table(
        ("TIER", "NAME", "MEMORY", "EXIST", "FREE"),
        [
            (one.tier, one.title, size(one.memory_bytes), one.total_count, one.free_count)
            for one in tiers
        ],
    )


@app.command()
def nodes(as_json: AsJson = False) -> None:
    """List nodes and the state of their GPUs."""
    found = run(lambda client: client.gpus.nodes())
    if as_json:
        print_json(found)
        return
    print_table(
        ("NODE", "LIVE", "GPU", "TIER", "STATE", "ID"),
        [
            (
                node.name,
                "yes" if node.is_live else "no",
                gpu.ordinal,
                gpu.tier,
                _state(gpu),
                gpu.gpu_id,
            )
            for node in found
            for gpu in node.gpus
        ],
    )


@app.command()
def release(
    gpu_id: Annotated[str, typer.Argument(help="Id of the GPU, as `lehr gpus nodes` shows it.")],
    reason: Annotated[str, typer.Option(help="How you know that its old process is dead.")],
    request_id: Annotated[str | None, typer.Option(help="Key for safe repetition.")] = None,
    as_json: AsJson = False,
) -> None:
    """Take a GPU out of quarantine; operators only."""
    gpu = run(lambda client: client.gpus.release(gpu_id, reason=reason, request_id=request_id))
    if as_json:
        print_json(gpu)
    else:
        told = f"{gpu.gpu_id} is {_state(gpu)}; its node decides at its next sync"
        console.print(told, markup=False)


@app.command()
def check(as_json: AsJson = False) -> None:
    """Compare what leases hold with what nodes say runs."""
    answer = run(lambda client: client.gpus.check_held())
    if as_json:
        print_json(answer)
    else:
        console.print(f"{answer.held_count} GPUs held, {answer.used_count} used")
        for difference in answer.differences:
            console.print(f"  {difference}", style="red", markup=False, soft_wrap=True)
    if answer.differences:
        raise typer.Exit(1)
