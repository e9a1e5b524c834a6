"""``lehr models``: add, look at, list and delete base models."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lehr.api.catalog.v1 import catalog_pb2 as pb
from lehr.cli.bringing import (
    Acknowledge,
    License,
    Origin,
    ThroughGateway,
    bars,
    bytes_below,
    show_terms,
)
from lehr.cli.output import AsJson, console, errors, fail, print_json, print_table, run, size
from lehr.cli.unpacking import unpacked
from lehr.client import AsyncClient
from lehr.client.catalog import UploadOptions
from lehr.errors import PlatformError

app = typer.Typer(help="Base models.", no_args_is_help=True)

Name = Annotated[str, typer.Option(help="Name in the catalog.")]


@app.command()
def add(  # noqa: PLR0913, PLR0917 - each option is a parameter.
    model: Annotated[
        Path, typer.Argument(help="Folder of the model, or a GGUF file.", exists=True)
    ],
    name: Name,
    license_id: License = "",
    acknowledge_license: Acknowledge = False,
    origin: Origin = "",
    through_gateway: ThroughGateway = False,
    tokenizer: Annotated[
        Path | None, typer.Option(help="Folder of the original tokenizer, for a GGUF file.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Upload a model: config.json, tokenizer files and safetensors weights. Repeat to go on.

    A GGUF file is unpacked first, on this machine.
    """
    options = UploadOptions(
        license=license_id,
        acknowledge_license=acknowledge_license,
        origin=origin,
        through_gateway=through_gateway,
    )
    if model.is_dir():
        _add(model, name, options, as_json=as_json)
        return
    if not as_json:
        console.print(f"unpacking {model.name}; this may take minutes", markup=False)
    try:
        with unpacked(model, tokenizer) as found:
            if found.warning:
                errors.print(f"warning: {found.warning}", markup=False, soft_wrap=True)
            options["origin"] = " ".join(filter(None, (origin, found.origin)))
            _add(found.folder, name, options, as_json=as_json)
    except PlatformError as error:
        fail(error)


@app.command()
def add_checkpoint(
    checkpoint: Annotated[str, typer.Argument(help="Checkpoint id, JOB:best or JOB:final.")],
    name: Name,
    license_id: License = "",
    acknowledge_license: Acknowledge = False,
    through_gateway: ThroughGateway = False,
    as_json: AsJson = False,
) -> None:
    """Make a checkpoint of full fine-tuning a model to train on; its files go through here."""

    async def work(client: AsyncClient) -> pb.Model:
        with bars(total=None, as_json=as_json) as shown:
            return await client.models.add_checkpoint(
                checkpoint,
                name=name,
                progress=shown.sent,
                checking=None if as_json else shown.checking,
                license=license_id,
                acknowledge_license=acknowledge_license,
                through_gateway=through_gateway,
            )

    show_models([run(work)], as_json=as_json)


@app.command()
def show(
    model: Annotated[str, typer.Argument(help="Name, name@revision, or id.")],
    as_json: AsJson = False,
) -> None:
    """Show what is known of a model: its shape, its chat template, its licence and source."""
    found = run(lambda client: client.models.get(model))
    if as_json:
        print_json(found)
        return
    show_models([found], as_json=False)
    print_table(("FACT", ""), _facts(found))
    show_terms(found, lambda text: console.print(text, markup=False, soft_wrap=True))
    if found.refusal:
        told = "refused" if found.state == pb.ENTRY_STATE_REFUSED else "waits"
        console.print(f"{told}: {found.refusal}", markup=False, soft_wrap=True)


@app.command()
def delete(
    model: Annotated[str, typer.Argument(help="Name, name@revision, or id.")],
    as_json: AsJson = False,
) -> None:
    """Delete a model and its bytes; jobs that were planned with it can no longer start."""
    model_id = run(lambda client: client.models.delete(model))
    if as_json:
        print_json({"model_id": model_id, "is_deleted": True})
    else:
        console.print(f"{model_id} is deleted", markup=False)


@app.command("list")
def list_models(as_json: AsJson = False) -> None:
    """List models by name."""
    show_models(run(lambda client: client.models.list()), as_json=as_json)


def show_models(found: list[pb.Model], *, as_json: bool) -> None:
    """Print models."""
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


def _add(folder: Path, name: str, options: UploadOptions, *, as_json: bool) -> None:
    async def work(client: AsyncClient) -> pb.Model:
        with bars(total=bytes_below([folder]), as_json=as_json) as shown:
            return await client.models.add(
                folder,
                name=name,
                progress=shown.sent,
                checking=None if as_json else shown.checking,
                **options,
            )

    show_models([run(work)], as_json=as_json)


def _facts(model: pb.Model) -> list[tuple[str, object]]:
    """Return what a person wants to know of a model's shape, without what it has none of."""
    facts = model.facts
    heads = f"{facts.attention_head_count}, {facts.key_value_head_count} of keys and values"
    told: list[tuple[str, object]] = [
        ("architecture", facts.architecture),
        ("number type", facts.dtype),
        ("quantisation", facts.quantization),
        *((f"parameters, {kind}", count) for kind, count in sorted(facts.parameter_counts.items())),
        ("layers", facts.layer_count),
        ("hidden size", facts.hidden_size),
        ("intermediate size", facts.intermediate_size),
        ("attention heads", heads if facts.attention_head_count else ""),
        ("vocabulary", facts.vocabulary_size),
        ("head is the embedding", "yes" if facts.is_tied else ""),
        ("experts", facts.expert_count),
        ("experts of a token", facts.active_expert_count),
        ("reads images", "yes" if facts.has_vision else ""),
        ("adapters by default on", ", ".join(facts.default_target_modules)),
        ("adapters possible on", ", ".join(facts.target_modules)),
        ("chat template", facts.chat_template),
        ("", facts.chat_template_advice),
    ]
    return [(what, value) for what, value in told if value]
