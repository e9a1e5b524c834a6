"""``lehr keys``: API keys."""

from __future__ import annotations

from typing import Annotated

import typer

from lehr.cli.output import AsJson, console, print_json, print_table, run, when

app = typer.Typer(help="API keys.", no_args_is_help=True)


@app.command()
def whoami(as_json: AsJson = False) -> None:
    """Show what the key in use stands for."""
    who = run(lambda client: client.keys.whoami())
    if as_json:
        print_json(who)
    else:
        told = f"{who.role} of {who.tenant}/{who.project} ({who.principal})"
        console.print(told, markup=False)


@app.command()
def create(
    name: Annotated[str, typer.Argument(help="What it is for.")],
    tenant: Annotated[str, typer.Option(help="Another tenant; operators only.")] = "",
    project: Annotated[str, typer.Option(help="Project.")] = "",
    role: Annotated[str, typer.Option(help="member, admin or operator.")] = "",
    as_json: AsJson = False,
) -> None:
    """Make a key; it is shown once."""
    answer = run(lambda client: client.keys.create(name, tenant=tenant, project=project, role=role))
    if as_json:
        print_json(answer)
        return
    told = f"{answer.key.key_id}: {answer.key.role} of {answer.key.tenant}/{answer.key.project}"
    console.print(told, markup=False)
    console.out(answer.secret)


@app.command("list")
def list_keys(as_json: AsJson = False) -> None:
    """List the tenant's keys."""
    found = run(lambda client: client.keys.list())
    if as_json:
        print_json(found)
        return
    print_table(
        ("KEY", "NAME", "ROLE", "PROJECT", "BEGINS WITH", "MADE (UTC)", "REVOKED (UTC)"),
        [
            (
                one.key_id,
                one.name,
                one.role,
                one.project,
                one.prefix,
                when(one.create_time),
                when(one.revoke_time),
            )
            for one in found
        ],
    )


@app.command()
def revoke(
    key_id: Annotated[str, typer.Argument(help="Id of the key.")], as_json: AsJson = False
) -> None:
    """End a key at once."""
    key = run(lambda client: client.keys.revoke(key_id))
    if as_json:
        print_json(key)
    else:
        console.print(f"{key.key_id} is revoked")
