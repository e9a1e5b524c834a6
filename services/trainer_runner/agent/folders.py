"""The agent's part of the disk: what lies where, and what is removed when."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from lehr.errors import FailedPrecondition
from lehr.ids import parse_id


class StateDirTaken(FailedPrecondition):
    """Another agent lives in the folder."""

    reason = "STATE_DIR_TAKEN"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFolder:
    """Where one run works; gone when the run is over."""

    root: Path

    @property
    def plan_file(self) -> Path:
        """The trainer's orders."""
        return self.root / "plan.json"

    @property
    def progress_file(self) -> Path:
        """The progress clock."""
        return self.root / "progress"

    @property
    def output_dir(self) -> Path:
        """Where the trainer leaves its checkpoints."""
        return self.root / "output"

    @property
    def input_dir(self) -> Path:
        """The dataset's files."""
        return self.root / "input"

    @property
    def resume_dir(self) -> Path:
        """The checkpoint to go on from."""
        return self.root / "resume"

    @property
    def model_file(self) -> Path:
        """Names the revision of the model that must stay on this node as long as the run."""
        return self.root / "model"

    @property
    def home_dir(self) -> Path:
        """Home and working folder of the trainer."""
        return self.root / "home"

    @property
    def temporary_dir(self) -> Path:
        """For temporary files of the trainer."""
        return self.root / "tmp"

    def make(self) -> None:
        """Make it anew and empty."""
        remove(self.root)
        for folder in (self.output_dir, self.input_dir, self.home_dir, self.temporary_dir):
            folder.mkdir(parents=True, mode=0o700)
        self.progress_file.write_bytes(b"\0" * 24)


class StateDir:
    """One agent's folder."""

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()
        self.journal_file = self.root / "journal.sqlite"
        self.spool_dir = self.root / "spool"
        self.models_dir = self.root / "models"
        self.runs_dir = self.root / "runs"
        self._lock: IO[str] | None = None

    def take(self) -> None:
        """Make the folder and be its only agent until the end of the process.

        Raises:
            StateDirTaken: another agent lives in it.
        """
        for folder in (self.spool_dir, self.models_dir, self.runs_dir):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._lock = (self.root / "lock").open("w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise StateDirTaken(
                f"another agent lives in {self.root}: give each agent its own "
                "TRAINER_RUNNER_STATE_DIR",
                folder=self.root,
            ) from None

    def run(self, run_id: str) -> RunFolder:
        """Return the folder of a run.

        Raises:
            InvalidArgument: that is no id, and could name another folder.
        """
        return RunFolder(root=self.runs_dir / parse_id(run_id, "run"))

    def runs(self) -> list[RunFolder]:
        """Return the folders of all runs."""
        return [RunFolder(root=root) for root in self.runs_dir.iterdir()]

    def tidy(self, *, living: Collection[str]) -> None:
        """Remove what dead runs and broken downloads left."""
        for folder in self.runs_dir.iterdir():
            if folder.name not in living:
                remove(folder)
        for folder in self.models_dir.glob(".*"):
            remove(folder)


def remove(path: Path) -> None:
    """Remove a folder, or whatever is there; nothing is fine too."""
    if path.is_symlink() or path.is_file():
        path.unlink()
    else:
        shutil.rmtree(path, ignore_errors=True)


def sync_folder(folder: Path) -> None:
    """Bring names in a folder to the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
