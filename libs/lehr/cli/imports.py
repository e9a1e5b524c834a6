"""``lehr datasets import``, ``lehr datasets import-s3``, ``lehr models import``, ``... search``."""

from __future__ import annotations

from typing import Annotated

import typer

from lehr.api.catalog.v1 import catalog_pb2
from lehr.api.catalog.v1 import hub_pb2 as pb
from lehr.cli.bringing import Acknowledge, bars, column_map
from lehr.cli.datasets import show_dataset
from lehr.cli.models import show_models
from lehr.cli.output import AsJson, console, fail, print_json, print_table, run
from lehr.client import AsyncClient
from lehr.client.imports import Terms
from lehr.errors import PlatformError

HubId = Annotated[str, typer.Argument(help="Owner and name, such as HuggingFaceTB/smoltalk.")]
Name = Annotated[str, typer.Option(help="Name in the catalog.")]
Revision = Annotated[str, typer.Option(help="Branch, tag or commit; fixed to a commit at once.")]
Credential = Annotated[str, typer.Option(help="Name of a stored credential.")]
License = Annotated[str, typer.Option("--license", help="SPDX id, where the source names none.")]
Columns = Annotated[
    list[str] | None,
    typer.Option(
        "--column", help="canonical=theirs, such as prompt=question; repeat for each column."
    ),
]


def import_dataset(  # noqa: PLR0913, PLR0917 - the options of one command.
    hub_id: HubId,
    name: Name,
    revision: Revision = "",
    config: Annotated[str, typer.Option(help="Configuration; empty for the default.")] = "",
    split: Annotated[str, typer.Option(help="Split.")] = "train",
    credential: Credential = "",
    column: Columns = None,
    license_id: License = "",
    acknowledge_license: Acknowledge = False,
    as_json: AsJson = False,
) -> None:
    """Import a dataset from the hub; every row is checked before it is accepted."""
    source = pb.HubSource(
        repo_id=hub_id, revision=revision, config=config, split=split, credential=credential
    )
    terms = _terms(name, license_id, acknowledge_license, column)
    _import_dataset(source, terms, as_json=as_json)


def import_s3(  # noqa: PLR0913, PLR0917 - the options of one command.
    address: Annotated[str, typer.Argument(help="s3://bucket/prefix")],
    endpoint: Annotated[str, typer.Option(help="http or https address of the server.")],
    name: Name,
    region: Annotated[str, typer.Option(help="Region.")] = "",
    credential: Credential = "",
    column: Columns = None,
    license_id: License = "",
    acknowledge_license: Acknowledge = False,
    as_json: AsJson = False,
) -> None:
    """Import the objects below a prefix of a bucket as one dataset."""
    bucket, _, prefix = address.removeprefix("s3://").partition("/")
    source = pb.S3Source(
        endpoint=endpoint, bucket=bucket, prefix=prefix, region=region, credential=credential
    )
    terms = _terms(name, license_id, acknowledge_license, column)
    _import_dataset(source, terms, as_json=as_json)


def import_model(  # noqa: PLR0913, PLR0917 - the options of one command.
    hub_id: HubId,
    name: Name,
    revision: Revision = "",
    credential: Credential = "",
    license_id: License = "",
    acknowledge_license: Acknowledge = False,
    as_json: AsJson = False,
) -> None:
    """Import a model from the hub: config, tokenizer and safetensors weights, never code."""
    source = pb.HubSource(repo_id=hub_id, revision=revision, credential=credential)
    terms = _terms(name, license_id, acknowledge_license, None)

    async def work(client: AsyncClient) -> catalog_pb2.Model:
        with bars(total=0, as_json=as_json) as shown:
            return await client.imports.model(source, terms=terms, checking=shown.checking)

    show_models([run(work)], as_json=as_json)


def search(
    text: Annotated[str, typer.Argument(help="Text in names.")],
    kind: Annotated[str, typer.Option(help="model or dataset.")] = "model",
    limit: Annotated[int, typer.Option(help="Most answers.", min=1, max=100)] = 20,
    credential: Credential = "",
    as_json: AsJson = False,
) -> None:
    """Look for models or datasets on the hub; nothing is imported."""
    found = run(
        lambda client: client.imports.search(text, kind=kind, limit=limit, credential=credential)
    )
    if as_json:
        print_json(found)
        return
    print_table(
        ("HUB ID", "COMMIT", "TYPE", "PARAMETERS", "LICENCE", "DOWNLOADS", "NOTES"),
        [
            (
                one.repo_id,
                one.commit[:12],
                one.model_type,
                one.parameter_count,
                one.license,
                one.download_count,
                _notes(one, kind),
            )
            for one in found
        ],
    )


def _notes(entry: pb.HubEntry, kind: str) -> str:
    notes = {
        "gated": entry.is_gated,
        "runs code": entry.has_code,
        "no safetensors": kind == "model" and not entry.has_safetensors,
    }
    return ", ".join(note for note, holds in notes.items() if holds)


def _terms(name: str, license_id: str, acknowledge: bool, columns: list[str] | None) -> Terms:
    try:
        mapped = column_map(columns or [])
    except PlatformError as error:
        fail(error)
    return Terms(name=name, license=license_id, acknowledge_license=acknowledge, columns=mapped)


def _import_dataset(source: pb.HubSource | pb.S3Source, terms: Terms, *, as_json: bool) -> None:
    async def work(client: AsyncClient) -> catalog_pb2.Dataset:
        with bars(total=0, as_json=as_json) as shown:
            return await client.imports.dataset(source, terms=terms, checking=shown.checking)

    dataset = run(work)
    is_accepted = dataset.state == catalog_pb2.ENTRY_STATE_READY
    if as_json:
        print_json(dataset)
    else:
        show_dataset(dataset)
        if not is_accepted:
            console.print("[bold red]refused[/]")
    if not is_accepted:
        raise typer.Exit(1)
