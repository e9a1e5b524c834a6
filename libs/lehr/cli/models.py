"""``lehr models``: add and list base models."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.progress import DownloadColumn, Progress

from lehr.api.catalog.v1 import catalog_pb2 as pb
from lehr.cli.output import AsJson, console, print_json, print_table, run, size
from lehr.client import AsyncClient

app = typer.Typer(help="Base models.", no_args_is_help=True)


@app.command()
def add(
    folder: Annotated[
        Path, typer.Argument(help="Folder of the model.", exists=True, file_okay=False)
    ],
    name: Annotated[str, typer.Option(help="Name in the catalog.")],
    license_id: Annotated[str, typer.Option("--license", help="SPDX id of its licence.")],
    as_json: AsJson = False,
) -> None:
    """Upload a model: config.json, tokenizer files and safetensors weights."""

    async def work(client: AsyncClient) -> pb.Model:
        total = sum(path.stat().st_size for path in folder.iterdir() if path.is_file())
        columns = (*Progress.get_default_columns(), DownloadColumn())
        with Progress(*columns, console=console, transient=True, disable=as_json) as bars:
            bar = bars.add_task("uploading", total=total)
            return await client.models.add(
                folder,
                name=name,
                license=license_id,
                progress=lambda _, count: bars.advance(bar, count),
            )

    _show([run(work)], as_json=as_json)


@app.command("list")
def list_models(as_json: AsJson = False) -> None:
    """List models by name."""
    _show(run(lambda client: client.models.list()), as_json=as_json)


def _show(found: list[pb.Model], *, as_json: bool) -> None:
    if as_json:
        print_json(found)
        return
    print_table(
        ("NAME", "REVISION", "TYPE", "PARAMETERS", "CONTEXT", "SIZE", "LICENCE"),
        [
            (
                one.name,
                one.revision[:12],
                one.model_type,
                one.parameter_count,
                one.context_length,
                size(one.size_bytes),
                one.license,
            )
            for one in found
        ],
    )
