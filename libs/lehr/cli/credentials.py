"""``lehr credentials``: secrets for imports."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from lehr.cli.output import AsJson, console, print_json, print_table, run, when

app = typer.Typer(help="Secrets that imports are made with.", no_args_is_help=True)

CredentialName = Annotated[str, typer.Argument(help="Name of the secret.")]


@app.command()
def put(
    name: CredentialName,
    s3: Annotated[bool, typer.Option("--s3", help="Keys of an S3 server, not a token.")] = False,
    as_json: AsJson = False,
) -> None:
    """Store a hub token, or S3 keys; asked for without echo, or read from standard input.

    A pipe gives the token in one line, or the access key and the secret key in one line each.
    """
    if s3:
        access_key = _secret("access key")
        secret_key = _secret("secret key")
        run(
            lambda client: client.credentials.put_s3_keys(
                name, access_key=access_key, secret_key=secret_key
            )
        )
    else:
        token = _secret("hub token")
        run(lambda client: client.credentials.put_hub_token(name, token))
    _tell(name, "stored", as_json=as_json)


@app.command("list")
def list_credentials(as_json: AsJson = False) -> None:
    """List the names of stored secrets."""
    found = run(lambda client: client.credentials.list())
    if as_json:
        print_json(found)
        return
    print_table(
        ("NAME", "KIND", "STORED (UTC)"),
        [(one.name, one.kind, when(one.create_time)) for one in found],
    )


@app.command()
def delete(name: CredentialName, as_json: AsJson = False) -> None:
    """Forget a secret."""
    run(lambda client: client.credentials.delete(name))
    _tell(name, "forgotten", as_json=as_json)


def _tell(name: str, done: str, *, as_json: bool) -> None:
    if as_json:
        print_json({"name": name, done: True})
    else:
        console.print(f"{name} is {done}", markup=False)


def _secret(what: str) -> str:
    # Never an option: arguments are seen by everybody who lists processes.
    if sys.stdin.isatty():
        return str(typer.prompt(what, hide_input=True)).strip()
    return sys.stdin.readline().strip()
