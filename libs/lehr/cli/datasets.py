"""``lehr datasets``: upload, inspect, preview."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.progress import DownloadColumn, Progress
from rich.text import Text

from lehr.api.catalog.v1 import catalog_pb2 as pb
from lehr.cli.output import AsJson, console, print_json, print_table, run, size, when
from lehr.client import AsyncClient

app = typer.Typer(help="Training data.", no_args_is_help=True)

DatasetName = Annotated[str, typer.Argument(help="Name, name@revision, or id.")]


@app.command()
def upload(
    path: Annotated[Path, typer.Argument(help="JSON lines file.", exists=True, dir_okay=False)],
    name: Annotated[str, typer.Option(help="Name in the catalog.")],
    as_json: AsJson = False,
) -> None:
    """Upload a dataset; every row is checked before it is accepted."""

    async def work(client: AsyncClient) -> pb.CommitDatasetResponse:
        columns = (*Progress.get_default_columns(), DownloadColumn())
        with Progress(*columns, console=console, transient=True, disable=as_json) as bars:
            bar = bars.add_task("uploading", total=path.stat().st_size)
            return await client.datasets.upload(
                path, name=name, progress=lambda _, count: bars.advance(bar, count)
            )

    answer = run(work)
    if as_json:
        print_json(answer)
    else:
        show_dataset(answer.dataset)
        if not answer.is_accepted:
            console.print("[bold red]refused[/]: mend the rows above and upload it again")
    if not answer.is_accepted:
        raise typer.Exit(1)


@app.command("list")
def list_datasets(as_json: AsJson = False) -> None:
    """List datasets by name."""
    found = run(lambda client: client.datasets.list())
    if as_json:
        print_json(found)
        return
    print_table(
        ("NAME", "REVISION", "ROWS", "KIND", "SIZE", "ADDED (UTC)"),
        [
            (
                one.name,
                one.revision[:12],
                one.row_count,
                one.row_kind,
                size(one.size_bytes),
                when(one.create_time),
            )
            for one in found
        ],
    )


@app.command()
def inspect(
    dataset: DatasetName,
    model: Annotated[str, typer.Option(help="Model whose tokenizer counts.")] = "",
    as_json: AsJson = False,
) -> None:
    """Show what is in a dataset and, for a model, how long its samples are."""
    answer = run(lambda client: client.datasets.inspect(dataset, model=model))
    if as_json:
        print_json(answer)
        return
    show_dataset(answer.dataset)
    if model:
        _show_lengths(answer.lengths)


@app.command()
def preview(
    dataset: DatasetName,
    model: Annotated[str, typer.Option(help="Model whose tokenizer and template render.")],
    line: Annotated[list[int] | None, typer.Option(help="Line numbers from 1.")] = None,
    max_length: Annotated[int, typer.Option(help="Tokens of a sample; 0 for no limit.")] = 0,
    overlong: Annotated[str, typer.Option(help="truncate or drop.")] = "truncate",
    as_json: AsJson = False,
) -> None:
    """Show rows exactly as they are trained; trained tokens are highlighted."""
    samples = run(
        lambda client: client.datasets.preview(
            dataset, model=model, lines=line or (), max_length=max_length, overlong=overlong
        )
    )
    if as_json:
        print_json(samples)
        return
    for sample in samples:
        console.print(
            f"[bold]line {sample.line}[/] {sample.outcome}, {sample.token_count} tokens,"
            f" {sample.trained_count} trained"
        )
        text = Text()
        for token, is_trained in zip(sample.tokens, sample.trained, strict=True):
            text.append(token, style="bold green" if is_trained else "dim")
        console.print(text)


def show_dataset(dataset: pb.Dataset) -> None:
    """Print a dataset and what was found in its rows."""
    console.print(
        f"[bold]{dataset.name}[/] {dataset.revision[:12]}: {dataset.row_count} {dataset.row_kind}"
        f" rows, {dataset.distinct_count} distinct, {size(dataset.size_bytes)}"
    )
    for problem in dataset.problems:
        style = "red" if problem.is_error else "yellow"
        lines = ", ".join(map(str, problem.lines))
        more = ", ..." if problem.row_count > len(problem.lines) else ""
        console.print(f"  [{style}]{problem.reason}[/] {problem.row_count} rows", end=" ")
        told = f"(lines {lines}{more}): {problem.description}"
        console.print(told, markup=False, soft_wrap=True)


def _show_lengths(lengths: pb.LengthFacts) -> None:
    console.print(
        f"longest sample {lengths.longest_tokens} tokens; recommended max_length"
        f" [bold]{lengths.recommended_max_length}[/] covers 95 % of the rows"
    )
    for warning in lengths.warnings:
        console.print("  [yellow]warning[/]", end=" ")
        console.print(warning, markup=False)
    most = max(lengths.bin_counts, default=0)
    for bound, count in zip(lengths.bin_bounds, lengths.bin_counts, strict=True):
        bar = "#" * round(40 * count / most) if most else ""
        console.print(f"  up to {bound:>6}  {count:>7}  {bar}")
