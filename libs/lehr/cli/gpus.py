"""``lehr gpus``: what there is to run on."""

from __future__ import annotations

import typer

from lehr.api.gpu_allocator.v1 import gpu_allocator_pb2 as pb
from lehr.cli.output import AsJson, console, print_json, print_table, run, size

app = typer.Typer(help="GPU tiers and nodes.", no_args_is_help=True)


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
        ("NODE", "LIVE", "GPU", "TIER", "STATE"),
        [
            (
                node.name,
                "yes" if node.is_live else "no",
                gpu.ordinal,
                gpu.tier,
                pb.GpuState.Name(gpu.state).removeprefix("GPU_STATE_").lower(),
            )
            for node in found
            for gpu in node.gpus
        ],
    )


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
