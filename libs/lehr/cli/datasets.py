"""``lehr datasets``: upload, inspect, preview, download, delete."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import Progress
from rich.text import Text

from lehr.api.catalog.v1 import catalog_pb2 as pb
from lehr.api.common.v1.common_pb2 import FileLink
from lehr.cli.bringing import (
    Acknowledge,
    License,
    Origin,
    ThroughGateway,
    bars,
    bytes_below,
    column_map,
    show_terms,
)
from lehr.cli.output import AsJson, console, fail, print_json, print_table, run, size, when
from lehr.client import AsyncClient
from lehr.errors import PlatformError

app = typer.Typer(help="Training data.", no_args_is_help=True)

ChatTemplate = Annotated[
    str, typer.Option(help="A bundled chat template in place of the model's own.")
]
DatasetName = Annotated[str, typer.Argument(help="Name, name@revision, or id.")]


@app.command()
def upload(  # noqa: PLR0913, PLR0917 - each option is a parameter.
    paths: Annotated[
        list[Path],
        typer.Argument(help="Files of one dataset, or a folder with images.", exists=True),
    ],
    name: Annotated[str, typer.Option(help="Name in the catalog.")],
    column: Annotated[
        list[str] | None,
        typer.Option(help="canonical=theirs, such as prompt=question; repeat for each column."),
    ] = None,
    license_id: License = "",
    acknowledge_license: Acknowledge = False,
    origin: Origin = "",
    through_gateway: ThroughGateway = False,
    as_json: AsJson = False,
) -> None:
    """Upload a dataset; every row is checked before it is accepted. Run it again to go on."""
    try:
        columns = column_map(column or [])
    except PlatformError as error:
        fail(error)

    async def work(client: AsyncClient) -> pb.CommitDatasetResponse:
        with bars(total=bytes_below(paths), as_json=as_json) as shown:
            return await client.datasets.upload(
                paths,
                name=name,
                progress=shown.sent,
                checking=None if as_json else shown.checking,
                columns=columns,
                license=license_id,
                acknowledge_license=acknowledge_license,
                origin=origin,
                through_gateway=through_gateway,
            )

    answer = run(work)
    if as_json:
        print_json(answer)
    else:
        show_dataset(answer.dataset)
        if not answer.is_accepted:
            console.print("[bold red]refused[/]: mend what is told above and upload it again")
    if not answer.is_accepted:
        raise typer.Exit(1)


@app.command()
def download(
    dataset: DatasetName,
    folder: Annotated[Path, typer.Argument(help="Where to.")],
    as_json: AsJson = False,
) -> None:
    """Download the files of a dataset as they were uploaded; every file is verified."""

    async def work(client: AsyncClient) -> Sequence[FileLink]:
        with Progress(console=console, transient=True, disable=as_json) as shown:
            bar = shown.add_task("downloading", total=None)
            return await client.datasets.download(
                dataset, folder, progress=lambda _, count: shown.advance(bar, count)
            )

    files = run(work)
    if as_json:
        print_json({"files": [file.name for file in files]})
    else:
        console.print(f"{len(files)} files are in {folder}", markup=False)


@app.command()
def delete(dataset: DatasetName, as_json: AsJson = False) -> None:
    """Delete a dataset and its bytes; jobs that were planned with it can no longer start."""
    dataset_id = run(lambda client: client.datasets.delete(dataset))
    if as_json:
        print_json({"dataset_id": dataset_id, "is_deleted": True})
    else:
        console.print(f"{dataset_id} is deleted", markup=False)


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
    chat_template: ChatTemplate = "",
    as_json: AsJson = False,
) -> None:
    """Show what is in a dataset and, for a model, how long its samples are."""
    answer = run(
        lambda client: client.datasets.inspect(dataset, model=model, chat_template=chat_template)
    )
    if as_json:
        print_json(answer)
        return
    show_dataset(answer.dataset)
    if model:
        _show_lengths(answer.lengths)


@app.command()
def preview(  # noqa: PLR0913, PLR0917 - the options of one command.
    dataset: DatasetName,
    model: Annotated[str, typer.Option(help="Model whose tokenizer and template render.")],
    line: Annotated[list[int] | None, typer.Option(help="Line numbers from 1.")] = None,
    max_length: Annotated[int, typer.Option(help="Tokens of a sample; 0 for no limit.")] = 0,
    overlong: Annotated[str, typer.Option(help="truncate or drop.")] = "truncate",
    chat_template: ChatTemplate = "",
    file: Annotated[str, typer.Option(help="File of several that the lines are in.")] = "",
    as_json: AsJson = False,
) -> None:
    """Show rows exactly as they are trained; trained tokens are highlighted."""
    samples = run(
        lambda client: client.datasets.preview(
            dataset,
            model=model,
            lines=line or (),
            max_length=max_length,
            overlong=overlong,
            chat_template=chat_template,
            file=file,
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
    _line(_layouts(dataset))
    show_terms(dataset, _line)
    if not dataset.problems:
        return
    print_table(
        ("  FOUND", "ROWS", "WHERE", "WHAT IT MEANS AND WHAT TO DO"),
        [
            (
                f"  {'error' if one.is_error else 'note'} {one.reason}",
                one.row_count,
                _where(one),
                one.description,
            )
            for one in dataset.problems
        ],
    )


def _layouts(dataset: pb.Dataset) -> str:
    layouts = [f"{count} {name}" for name, count in sorted(dataset.layouts.items())]
    images = [f"{dataset.image_row_count} with images"] if dataset.image_row_count else []
    return ", ".join(layouts + images)


def _where(problem: pb.RowProblem) -> str:
    if not problem.lines:
        return problem.file
    more = ", ..." if problem.row_count > len(problem.lines) else ""
    lines = ", ".join(map(str, problem.lines))
    return f"{problem.file} line {lines}{more}".strip()


def _line(text: str) -> None:
    if text:
        console.print(f"  {text}", markup=False, soft_wrap=True)


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
