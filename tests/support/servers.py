"""Real servers for tests, each in a folder of its own; all die with the test process."""

import asyncio
import contextlib
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Awaitable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import psutil

from lehr.stack.logfile import last_lines
from lehr.stack.nats import USER, NatsServer
from lehr.stack.part import Part
from lehr.stack.ports import Ports
from lehr.stack.postgres import PostgresServer
from lehr.stack.processes import exited, send, send_family, spawn
from lehr.stack.s3 import REGION, ObjectServer
from lehr.stack.settings import Options

T = TypeVar("T")

PASSWORD = "test"
READY_SECONDS = 60.0

_FOLDER = re.compile(r"lehr-test-(\d+)-\w+")


def run(awaited: Awaitable[T]) -> T:
    """Wait for something from outside of any loop, also where a loop of the test is there."""

    async def wait() -> T:
        return await awaited

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, wait()).result()


@contextlib.contextmanager
def a_folder() -> Iterator[Path]:
    """Give a folder that an account without rights can reach, unlike pytest's own."""
    folder = Path(tempfile.mkdtemp(prefix=f"lehr-test-{os.getpid()}-"))
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def sweep_folders() -> None:
    """Delete what killed test processes left behind."""
    for folder in Path(tempfile.gettempdir()).glob("lehr-test-*"):
        named = _FOLDER.fullmatch(folder.name)
        if named is None or psutil.pid_exists(int(named[1])):
            continue
        # Another session may sweep at the same time.
        with contextlib.suppress(FileNotFoundError):
            if folder.stat().st_uid == os.getuid():
                shutil.rmtree(folder, ignore_errors=True)


class RunningPart:
    """A server that a test may stop, kill and freeze; nobody restarts it but the test.

    Call its methods from the main thread: the kernel ends a server with the thread that started it.
    """

    def __init__(self, part: Part, folder: Path) -> None:
        self._part = part
        self._log = folder / f"{part.name}.log"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """The living process."""
        assert self._process is not None, f"{self._part.name} does not run"
        return self._process.pid

    def start(self) -> None:
        """Start it and wait until it serves."""
        if self._part.prepare is not None:
            self._part.prepare()
        self._process = spawn(self._part, self._log)
        deadline = time.monotonic() + READY_SECONDS
        while True:
            try:
                run(self._part.probe())
                break
            except Exception as error:
                dead = self._process.poll() is not None
                if dead or time.monotonic() > deadline:
                    self.kill()
                    lines = "\n".join(last_lines(self._log, 20))
                    raise AssertionError(f"{self._part.name}: {error!r}\n{lines}") from error
            time.sleep(0.02)

    def stop(self) -> None:
        """End it cleanly."""
        if self._process is not None:
            send(self._process.pid, self._part.stop_signal)
            self._await_end()

    def kill(self) -> None:
        """Kill it without warning, also while it is frozen."""
        if self._process is not None:
            send(self._process.pid, signal.SIGKILL)
            self._await_end()

    def pause(self) -> None:
        """Freeze it: connections stay open and nothing answers."""
        send_family(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on."""
        send_family(self.pid, signal.SIGCONT)

    def _await_end(self) -> None:
        assert self._process is not None
        run(asyncio.wait_for(exited(self._process), READY_SECONDS))
        self._process.wait()
        self._process = None


@dataclass(frozen=True, kw_only=True)
class PostgresForTests:
    """A Postgres server that forgets on power loss, and only then."""

    server: PostgresServer
    control: RunningPart

    @property
    def admin_url(self) -> str:
        """The administrator's address, in the database ``postgres``."""
        return self.server.url()


@dataclass(frozen=True, kw_only=True)
class NatsForTests:
    """A NATS server with JetStream."""

    server: NatsServer
    control: RunningPart
    user: str = USER

    @property
    def url(self) -> str:
        """Address without user and password."""
        return self.server.url

    @property
    def password(self) -> str:
        """Of the one user."""
        return self.server.password

    @property
    def variables(self) -> dict[str, str]:
        """``LEHR_NATS_`` variables for a service."""
        given = {"URL": self.url, "USER": self.user, "PASSWORD": self.password}
        return {f"LEHR_NATS_{name}": value for name, value in given.items()}


@dataclass(frozen=True, kw_only=True)
class ObjectsForTests:
    """One bucket of an S3 server."""

    server: ObjectServer
    control: RunningPart
    bucket: str
    region: str = REGION

    @property
    def endpoint(self) -> str:
        """Address for clients."""
        return self.server.endpoint

    @property
    def access_key(self) -> str:
        """Name of the key pair."""
        return self.server.access_key

    @property
    def secret_key(self) -> str:
        """Its secret half."""
        return self.server.secret_key

    @property
    def variables(self) -> dict[str, str]:
        """``LEHR_S3_`` variables for a service."""
        given = {
            "ENDPOINT": self.endpoint,
            "ACCESS_KEY": self.access_key,
            "SECRET_KEY": self.secret_key,
            "BUCKET": self.bucket,
            "REGION": self.region,
        }
        return {f"LEHR_S3_{name}": value for name, value in given.items()}


@contextlib.contextmanager
def a_postgres_server() -> Iterator[PostgresForTests]:
    """Run a server; every role's password is ``PASSWORD``."""
    base = Options.from_environment().for_all()
    with a_folder() as folder, Ports.claim({}) as ports:
        server = PostgresServer(
            place=folder / "postgres",
            port=ports.port("postgres"),
            password=PASSWORD,
            is_safe=False,
        )
        server.initialise(base)
        with _running(server.part(base), folder) as control:
            yield PostgresForTests(server=server, control=control)


@contextlib.contextmanager
def a_nats_server() -> Iterator[NatsForTests]:
    """Run a server without streams."""
    with a_folder() as folder, Ports.claim({}) as ports:
        server = NatsServer(
            folder=folder,
            port=ports.port("nats"),
            monitor_port=ports.port("nats_monitor"),
            password=PASSWORD,
        )
        with _running(server.part(Options.from_environment().for_all()), folder) as control:
            yield NatsForTests(server=server, control=control)


@contextlib.contextmanager
def an_object_server() -> Iterator[ObjectsForTests]:
    """Run a server; its bucket is not made yet."""
    with a_folder() as folder, Ports.claim({}) as ports:
        (folder / "objects").mkdir()
        server = ObjectServer(
            folder=folder / "objects",
            port=ports.port("s3"),
            access_key="TESTKEY",
            secret_key=PASSWORD,
        )
        with _running(server.part(Options.from_environment().for_all()), folder) as control:
            yield ObjectsForTests(server=server, control=control, bucket="unmade")


@contextlib.contextmanager
def _running(part: Part, folder: Path) -> Iterator[RunningPart]:
    control = RunningPart(part, folder)
    try:
        control.start()
        yield control
    finally:
        control.kill()
