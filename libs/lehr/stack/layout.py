"""Where an installation keeps what, below its state folder."""

import contextlib
import fcntl
import json
import os
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from lehr.stack.errors import FolderRefused, StackRuns
from lehr.stack.processes import ProcessMark

# An address of a Unix socket holds 107 bytes.
_SOCKET_PATH_LENGTH_MAX = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The folders and files of one installation."""

    root: Path
    """The state folder, absolute."""

    @property
    def logs(self) -> Path:
        """One file a part."""
        return self.root / "logs"

    @property
    def secrets(self) -> Path:
        """Generated passwords and keys, readable by the owner alone."""
        return self.root / "secrets"

    @property
    def postgres(self) -> Path:
        """Place of the database; a link where nobody could not reach a folder here."""
        return self.root / "postgres"

    @property
    def nats(self) -> Path:
        """Configuration and streams of NATS."""
        return self.root / "nats"

    @property
    def objects(self) -> Path:
        """Buckets of the object store, as plain folders."""
        return self.root / "objects"

    @property
    def work(self) -> Path:
        """Working folder of the services, empty on purpose."""
        return self.root / "work"

    @property
    def state(self) -> Path:
        """Ports, processes and phase, as JSON."""
        return self.root / "state.json"

    @property
    def options(self) -> Path:
        """What the stack was last started with; may hold secrets."""
        return self.root / "options.json"

    @property
    def faults(self) -> Path:
        """Armed fault points, where test hooks are on."""
        return self.root / "faults.json"

    @property
    def api_key(self) -> Path:
        """The first API key, for the person who started the stack."""
        return self.secrets / "api_key"

    @property
    def lock(self) -> Path:
        """Held by whoever has the installation; a supervisor writes into it who it is."""
        return self.root / "lock"

    def cache(self, service: str) -> Path:
        """What a service can fetch again; emptied when it starts."""
        return self.root / "cache" / service

    def node(self, name: str) -> Path:
        """Journal, spool and caches of a runner's agent."""
        return self.root / "nodes" / name

    def log(self, part: str) -> Path:
        """What a part printed."""
        return self.logs / f"{part}.log"

    def check(self) -> None:
        """Refuse a state folder that is none; one that is not there yet will be made.

        Raises:
            FolderRefused: something else is there, or it cannot be reached.
        """
        try:
            is_none = self.root.exists() and not self.root.is_dir()
        except OSError as error:
            raise _unusable(self.root, error) from error
        if is_none:
            raise FolderRefused(
                f"{self.root} is no folder: name the state folder of a stack", folder=self.root
            )

    def make(self) -> None:
        """Create the folders.

        Raises:
            FolderRefused: the folder belongs to another user or cannot be written.
        """
        try:
            if not self.root.exists():
                self.root.mkdir(parents=True)
                # Whatever the umask: the database below may belong to another account.
                self.root.chmod(0o755)
            owner = self.root.stat().st_uid
            if owner != os.getuid():
                raise FolderRefused(
                    f"the state folder {self.root} belongs to user id {owner}, not to you"
                    f" ({os.getuid()}): use its owner or another folder",
                    folder=self.root,
                    owner=owner,
                )
            self.secrets.mkdir(mode=0o700, exist_ok=True)
            for folder in (self.logs, self.nats, self.objects, self.work):
                folder.mkdir(mode=0o700, exist_ok=True)
            for folder in (self.root / "nodes", self.root / "run"):
                folder.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise _unusable(self.root, error) from error

    def control(self) -> Path:
        """Where a supervisor listens for commands; a short folder where the path is too long."""
        path = self.root / "run" / "control.sock"
        if len(os.fsencode(path)) <= _SOCKET_PATH_LENGTH_MAX:
            return path
        return Path(tempfile.mkdtemp(prefix="lehr-")) / "control.sock"

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Hold the installation for this process; the kernel lets go when the process dies.

        Raises:
            StackRuns: another process holds it.
        """
        descriptor = os.open(self.lock, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            # Somebody who only looks, by is_held, has it for an instant.
            for _ in range(20):
                if _lock(descriptor):
                    break
                time.sleep(0.05)
            else:
                raise StackRuns(f"a stack already runs on {self.root}", folder=self.root)
            yield
        finally:
            os.close(descriptor)

    def sign(self) -> None:
        """Write into the lock that this process, which holds it, is the supervisor."""
        mark = ProcessMark.of(os.getpid())
        # On a full disk the state file says it.
        with contextlib.suppress(OSError):
            self.lock.write_text(json.dumps(mark and asdict(mark)))

    def supervisor(self) -> ProcessMark | None:
        """Return who signed the lock last; it may be dead."""
        try:
            saved = json.loads(self.lock.read_text())
            return ProcessMark(**saved | {"command": tuple(saved["command"])})
        except (OSError, ValueError, TypeError, KeyError, RecursionError):
            return None

    def is_held(self) -> bool:
        """Say whether a supervisor lives.

        Raises:
            FolderRefused: the folder cannot be looked into.
        """
        try:
            descriptor = os.open(self.lock, os.O_RDWR)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise _unusable(self.root, error) from error
        try:
            return not _lock(descriptor)
        finally:
            os.close(descriptor)


def _unusable(root: Path, error: OSError) -> FolderRefused:
    return FolderRefused(f"the state folder {root} cannot be used: {error}", folder=root)


def write_private(path: Path, content: bytes) -> None:
    """Replace a file in one step, readable by the owner alone, safe against power loss."""
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
