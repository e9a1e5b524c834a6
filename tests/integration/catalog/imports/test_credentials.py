"""Secrets of imports: stored, used, and shown nowhere (ML-05)."""

import asyncio
import base64
import json
import subprocess
import sys
from pathlib import Path

import asyncpg
import psutil
import pytest

from lehr.api.catalog.v1.hub_pb2 import HubSource, S3Source
from lehr.client import AsyncClient
from lehr.errors import PlatformError
from lehr.stack.ports import LOOPBACK
from tests.support.doors import FIRST_KEY
from tests.support.hub_stub import HubStub
from tests.support.importing import (
    FREE,
    SECRET_KEY,
    TOKEN,
    a_name,
    rows,
    terms,
)
from tests.support.one_service import OneService
from tests.support.stack import DatabaseForTests


async def test_a_credential_is_listed_by_name_and_belongs_to_its_project(
    client: AsyncClient, catalog: OneService
) -> None:
    name = a_name()
    await client.credentials.put_s3_keys(name, access_key="access", secret_key=SECRET_KEY)
    [mine] = [one for one in await client.credentials.list() if one.name == name]
    assert mine.kind == "s3"
    assert SECRET_KEY not in str(mine)
    with pytest.raises(PlatformError, match="is for s3"):
        await client.imports.search("x", credential=name)
    with pytest.raises(PlatformError) as refused:
        await client.credentials.put_hub_token(name, f"{TOKEN} with a slip")
    assert TOKEN not in str(refused.value)


async def test_a_secret_is_found_nowhere_but_encrypted(
    client: AsyncClient,
    hub: HubStub,
    catalog: OneService,
    gateway: OneService,
    database: DatabaseForTests,
) -> None:
    name = a_name()
    await client.credentials.put_hub_token(name, TOKEN)
    await client.credentials.put_s3_keys(f"{name}-s3", access_key="AKIA", secret_key=SECRET_KEY)
    hub.add("dataset", "acme/held", {"train.jsonl": rows(2000)}, is_gated=True, **FREE)
    hub.tokens[TOKEN] = {"acme/held"}
    hub.delays["train.jsonl"] = 2
    source = HubSource(repo_id="acme/held", credential=name)
    importing = asyncio.create_task(client.imports.dataset(source, terms=terms()))
    shown: list[bytes] = []
    while not importing.done():
        shown += await asyncio.to_thread(_what_processes_show, catalog.control.pid)
        await asyncio.sleep(0.1)
    told = [str(await importing)]
    hub.tokens.clear()
    for asked in (
        HubSource(repo_id="acme/held", credential=name),
        HubSource(repo_id=TOKEN, credential=name),
    ):
        with pytest.raises(PlatformError) as refused:
            await client.imports.dataset(asked, terms=terms())
        if asked.repo_id != TOKEN:
            told.append(str(refused.value))
    keys = S3Source(endpoint="http://127.0.0.1:1", bucket="none", credential=f"{name}-s3")
    with pytest.raises(PlatformError) as refused:
        await client.imports.dataset(keys, terms=terms())
    told.append(str(refused.value))
    dumped = await _everything_in(database)
    logged = catalog.log.read_bytes() + gateway.log.read_bytes()
    assert any(b"services.catalog.hub" in one for one in shown)
    assert len(dumped) > 1000
    found = b"\n".join([*shown, "\n".join(told).encode(), dumped, logged])
    for secret in (TOKEN, SECRET_KEY):
        for form in (
            secret.encode(),
            base64.b64encode(secret.encode()),
            secret.encode().hex().encode(),
        ):
            assert form not in found


def _what_processes_show(root: int) -> list[bytes]:
    shown = []
    for one in psutil.Process(root).children(recursive=True):
        for name in ("cmdline", "environ"):
            try:
                shown.append(Path(f"/proc/{one.pid}/{name}").read_bytes())
            except OSError:
                continue
    return shown


async def _everything_in(database: DatabaseForTests) -> bytes:
    """Return all rows of all tables as text."""
    connection = await asyncpg.connect(database.admin_url)
    try:
        tables = await connection.fetch(
            "SELECT schemaname, tablename FROM pg_tables"
            " WHERE schemaname NOT IN ('pg_catalog', 'information_schema')"
        )
        found = []
        for table in tables:
            where = f'"{table["schemaname"]}"."{table["tablename"]}"'
            found += await connection.fetch(f"SELECT t::text AS row FROM {where} AS t")  # noqa: S608
        return "\n".join(row["row"] for row in found).encode()
    finally:
        await connection.close()


def test_credentials_come_from_standard_input_and_never_from_arguments(
    gateway: OneService, catalog: OneService
) -> None:
    environment = {
        "PATH": "/usr/bin:/bin",
        "LEHR_API_ADDRESS": f"{LOOPBACK}:{gateway.port}",
        "LEHR_API_KEY": FIRST_KEY,
    }

    def lehr(*words: str, given: str = "") -> str:
        done = subprocess.run(
            [str(Path(sys.executable).with_name("lehr")), *words],
            input=given,
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    name = a_name()
    assert TOKEN not in lehr("credentials", "put", name, given=f"{TOKEN}\n")
    lehr("credentials", "put", f"{name}-s3", "--s3", given=f"AKIA\n{SECRET_KEY}\n")
    listed = json.loads(lehr("credentials", "list", "--json"))
    assert {one["name"]: one["kind"] for one in listed if one["name"].startswith(name)} == {
        name: "hub",
        f"{name}-s3": "s3",
    }
    lehr("credentials", "delete", name)
    assert name not in {one["name"] for one in json.loads(lehr("credentials", "list", "--json"))}
