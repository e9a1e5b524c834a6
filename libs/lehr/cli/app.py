"""The commands, put together."""

from __future__ import annotations

from typing import Annotated

import typer

from lehr.cli import (
    billing,
    checkpoints,
    credentials,
    datasets,
    events,
    gpus,
    imports,
    jobs,
    keys,
    models,
    stack,
)

app = typer.Typer(
    name="lehr",
    help="Plan, authorise, run, watch and bill fine-tuning jobs on your own GPUs.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
datasets.app.command("import")(imports.import_dataset)
datasets.app.command("import-s3")(imports.import_s3)
models.app.command("import")(imports.import_model)
models.app.command("search")(imports.search)

app.add_typer(jobs.app, name="jobs")
app.add_typer(checkpoints.app, name="checkpoints")
app.add_typer(datasets.app, name="datasets")
app.add_typer(models.app, name="models")
app.add_typer(gpus.app, name="gpus")
app.add_typer(billing.app, name="billing")
app.add_typer(events.app, name="events")
app.add_typer(keys.app, name="keys")
app.add_typer(credentials.app, name="credentials")
app.command("plan")(jobs.plan)
app.command("up")(stack.up)
app.command("status")(stack.status)
app.command("logs")(stack.logs)
app.command("down")(stack.down)


@app.command()
def demo(
    keep: Annotated[bool, typer.Option(help="Leave the stack running afterwards.")] = False,
) -> None:
    """Fine-tune a real small model on this machine, from nothing to a bill."""
    # Imported late: nobody else needs it.
    from lehr.demo.run import run_demo  # noqa: PLC0415

    raise typer.Exit(run_demo(keep=keep))
