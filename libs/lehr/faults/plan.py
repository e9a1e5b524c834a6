"""The file that arms fault points, and the counts beside it that outlive a killed process."""

import fcntl
import json
import os
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, RootModel

from lehr.faults.names import FAULTS

Action = Literal["kill", "error", "delay", "hang"]


class Fault(BaseModel):
    """What happens at one fault point."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    action: Action
    """kill: SIGKILL to itself; error: Unavailable; delay: wait; hang: wait until disarmed."""

    seconds: float = Field(default=1, ge=0)
    """Length of a delay."""

    times: int | None = Field(default=1, ge=1)
    """How many hits break, counted for each process name; None breaks every one."""

    skip: int = Field(default=0, ge=0)
    """How many hits pass first."""

    arming: str = ""
    """Tells one arming from another, so that the same fault can be armed again."""


class Plan(RootModel[dict[str, Fault]]):
    """The armed faults by name."""

    @classmethod
    def read(cls, file: Path) -> "Plan":
        """Read the file; a missing one arms nothing, and an unknown fault point is refused."""
        try:
            plan = cls.model_validate_json(file.read_bytes())
        except FileNotFoundError:
            return cls({})
        _check_names(plan.root)
        return plan


class Counts:
    """Hits of one process name, kept in a file so that they survive a kill."""

    def __init__(self, faults_file: Path, process: str) -> None:
        self._file = faults_file.with_name(f"{faults_file.name}.{process}.counts")

    def add(self, name: str, fault: Fault) -> bool:
        """Count a hit; return whether it is one that breaks."""
        with self._file.open("a+", encoding="utf-8") as file:
            # Several processes of one name share the counts.
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            counts: dict[str, dict[str, int]] = json.loads(file.read() or "{}")
            count = counts.setdefault(_key(name, fault), {"hits": 0, "fired": 0})
            count["hits"] += 1
            left = fault.times is None or count["fired"] < fault.times
            due = count["hits"] > fault.skip and left
            count["fired"] += due
            file.seek(0)
            file.truncate()
            file.write(json.dumps(counts))
        return due


def arm(
    file: Path,
    name: str,
    *,
    action: Action,
    seconds: float = 1,
    times: int | None = 1,
    skip: int = 0,
) -> None:
    """Arm one fault point, leaving the others; arming again counts from zero."""
    fault = Fault(
        action=action, seconds=seconds, times=times, skip=skip, arming=uuid.uuid4().hex[:8]
    )
    _write(file, Plan.read(file).root | {name: fault})


def disarm(file: Path, name: str | None = None) -> None:
    """Disarm one fault point, or all; a hanging process goes on."""
    kept = {key: fault for key, fault in Plan.read(file).root.items() if name and key != name}
    _write(file, kept)


def fired(file: Path, name: str) -> int:
    """Return how often the fault, as armed now, has broken something in all processes."""
    fault = Plan.read(file).root.get(name)
    if fault is None:
        return 0
    sidecars = file.parent.glob(f"{file.name}.*.counts")
    counts = [json.loads(sidecar.read_text(encoding="utf-8") or "{}") for sidecar in sidecars]
    return sum(count.get(_key(name, fault), {}).get("fired", 0) for count in counts)


def _check_names(names: Iterable[str]) -> None:
    unknown = sorted(set(names) - set(FAULTS))
    if unknown:
        raise ValueError(f"no fault points, see lehr/faults/names.py: {', '.join(unknown)}")


def _key(name: str, fault: Fault) -> str:
    return f"{name} {fault.model_dump_json()}"


def _write(file: Path, faults: dict[str, Fault]) -> None:
    _check_names(faults)
    partial = file.with_name(f"{file.name}.{os.getpid()}.part")
    partial.write_text(Plan(faults).model_dump_json(indent=2), encoding="utf-8")
    # A reader sees the old file or the new one, never a half.
    partial.replace(file)
