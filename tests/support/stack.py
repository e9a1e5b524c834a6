"""Fixtures with real servers and whole stacks.

    postgres_server   session   a server
    database          module    a fresh database with every service's role, schema and tables
    nats_server       module    a fresh server with the declared streams and durables
    s3                module    a fresh bucket
    stack_factory     module    whole stacks with options; test hooks on
    stack             module    a whole stack with one runner ``local``

No process outlives pytest, however that ends.
"""

import asyncio
import contextlib
import itertools
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from lehr.objects import ObjectStore
from lehr.postgres import bootstrap
from lehr.settings import ADMIN_URL_ENV, PlatformSettings
from lehr.stack import SERVICES, Options, Stack, StackStatus
from lehr.stack.bootstrap import apply_streams
from lehr.stack.layout import write_private
from tests.support.servers import (
    PASSWORD,
    NatsForTests,
    ObjectsForTests,
    PostgresForTests,
    a_folder,
    a_nats_server,
    a_postgres_server,
    an_object_server,
    run,
    sweep_folders,
)

_numbers = itertools.count(1)


@dataclass(frozen=True, kw_only=True)
class DatabaseForTests:
    """A database as an installation has it; with test hooks, so that its clock can be moved."""

    name: str
    server: PostgresForTests

    @property
    def admin_url(self) -> str:
        """The administrator's address of this database."""
        return self.server.server.url(self.name)

    def url(self, service: str) -> str:
        """Return the address for the role of a service."""
        return self.admin_url.replace("//postgres:", f"//{service}:")


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresForTests]:
    """A Postgres server for all modules."""
    sweep_folders()
    with a_postgres_server() as server:
        yield server


@pytest.fixture(scope="session")
def _database_template(postgres_server: PostgresForTests) -> DatabaseForTests:
    """A bootstrapped database that others are copied from, as migrations take their time."""
    made = DatabaseForTests(name="template_for_tests", server=postgres_server)
    run(_create(made, template="template0"))
    return made


@pytest.fixture(scope="module")
def database(
    postgres_server: PostgresForTests, _database_template: DatabaseForTests
) -> Iterator[DatabaseForTests]:
    """A fresh database for a module."""
    made = DatabaseForTests(name=f"module_{next(_numbers)}", server=postgres_server)
    run(_create(made, template=_database_template.name))
    yield made
    run(_administer(postgres_server.admin_url, f"DROP DATABASE {made.name} WITH (FORCE)"))


@pytest.fixture(scope="module")
def nats_server() -> Iterator[NatsForTests]:
    """A fresh NATS server for a module, with the declared streams and durables."""
    with a_nats_server() as server:
        settings = PlatformSettings(
            nats_url=server.url, nats_user=server.user, nats_password=server.password
        )
        run(apply_streams(settings))
        yield server


@pytest.fixture(scope="session")
def s3_server() -> Iterator[ObjectsForTests]:
    """An S3 server for all modules."""
    with an_object_server() as server:
        yield server


@pytest.fixture(scope="module")
def s3(s3_server: ObjectsForTests) -> ObjectsForTests:
    """A fresh bucket for a module."""
    fresh = replace(s3_server, bucket=f"module-{next(_numbers)}")
    store = ObjectStore(
        fresh.endpoint, fresh.access_key, fresh.secret_key, fresh.bucket, fresh.region
    )
    run(store.ensure_bucket())
    return fresh


class StackUnderTest:
    """A whole stack and what a test does to it. Parts are named as in ``status``."""

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        self.kill = stack.kill
        """Kill a part without warning; it is restarted."""
        self.pause = stack.pause
        """Freeze a part with all that it started."""
        self.resume = stack.resume
        """Let a frozen part go on."""
        self.stop_part = stack.stop_part
        """Stop a part cleanly; nobody restarts it."""
        self.start_part = stack.start_part
        """Want a stopped part again."""
        self.status = stack.status

    @property
    def folder(self) -> Path:
        """The state folder."""
        return self.stack.layout.root

    @property
    def api_key(self) -> str:
        """The first API key: tenant ``default``, project ``default``."""
        return self.stack.secrets().api_key

    @property
    def environment(self) -> dict[str, str]:
        """All ``LEHR_`` variables, the administrator's database included."""
        return self.stack.environment()

    @property
    def admin_url(self) -> str:
        """The administrator's address of the database."""
        return self.environment[ADMIN_URL_ENV]

    def address(self, service: str) -> str:
        """Return the gRPC address of a service."""
        return str(json.loads(self.environment["LEHR_ADDRESSES"])[service])

    def identity_key(self, service: str) -> str:
        """Return the private key of a service, PEM, to call others in its name."""
        return self.stack.secrets().identity[service]

    def pid(self, part: str) -> int:
        """Return the living process of a part."""
        pid = self.status().part(part).pid
        assert pid is not None, f"{part} does not run"
        return pid

    def log(self, part: str, lines: int = 200) -> list[str]:
        """Return the last lines of a part's log."""
        return list(self.stack.logs(part, lines=lines))

    def arm(self, **faults: dict[str, Any]) -> None:
        """Arm fault points, all others are disarmed; a dot in a name is written ``__``."""
        named = {name.replace("__", "."): fault for name, fault in faults.items()}
        write_private(self.stack.layout.faults, json.dumps(named).encode())

    async def wait_ready(self, *parts: str, within: float = 60.0) -> StackStatus:
        """Wait until these parts serve, or all."""
        return await asyncio.to_thread(self.stack.wait_ready, *parts, within=within)


StackFactory = Callable[..., StackUnderTest]
"""Takes fields of ``lehr.stack.Options``; returns when the stack is ready."""


@pytest.fixture(scope="module")
def stack_factory(request: pytest.FixtureRequest) -> Iterator[StackFactory]:
    """Whole stacks, stopped at the end of the module."""
    sweep_folders()
    failed_before = request.session.testsfailed
    with contextlib.ExitStack() as cleanup:

        def keep_logs(stack: Stack) -> None:
            if request.session.testsfailed > failed_before:
                _keep_logs(stack, request.config)

        def start(**options: Any) -> StackUnderTest:
            folder = cleanup.enter_context(a_folder()) / "state"
            chosen = Options.from_environment(**{"test_hooks": True} | options)
            stack = Stack(folder, options=chosen)
            cleanup.callback(keep_logs, stack)
            cleanup.callback(stack.down)
            stack.up(owned=True)
            return StackUnderTest(stack)

        yield start


@pytest.fixture(scope="module")
def stack(stack_factory: StackFactory) -> StackUnderTest:
    """A whole stack with one runner named ``local`` and one slot of the tier ``cpu``."""
    return stack_factory()


def _keep_logs(stack: Stack, config: pytest.Config) -> None:
    """Keep the logs of a stack on which a test failed, until the next session sweeps them."""
    kept = Path(tempfile.mkdtemp(prefix=f"lehr-test-{os.getpid()}-"))
    shutil.copytree(stack.layout.logs, kept, dirs_exist_ok=True)
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None:
        reporter.write_line(f"\nlogs of the stack: {kept}")


async def _create(made: DatabaseForTests, *, template: str) -> None:
    await _administer(
        made.server.admin_url, f"CREATE DATABASE {made.name} TEMPLATE {template} STRATEGY FILE_COPY"
    )
    # Rights on the database itself are not copied with it.
    await bootstrap(made.admin_url, passwords=dict.fromkeys(SERVICES, PASSWORD), test_hooks=True)


async def _administer(url: str, statement: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(statement)
    finally:
        await connection.close()
