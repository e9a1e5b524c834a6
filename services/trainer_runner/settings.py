"""What a person may set for an agent."""

from __future__ import annotations

import socket
from contextlib import suppress
from dataclasses import fields
from datetime import timedelta
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import BeforeValidator, Field, ValidationInfo, field_validator
from pydantic_settings import SettingsConfigDict

from lehr.settings import ServiceSettings
from services.trainer_runner.agent.devices import PretendGpus, parse_pretend_gpus
from services.trainer_runner.agent.timing import Timing

_SECOND = timedelta(seconds=1)


def _seconds(value: object) -> object:
    """Take a number in text as seconds, as pydantic takes one that is no text."""
    if isinstance(value, str):
        with suppress(ValueError):
            return float(value)
    return value


Duration = Annotated[
    timedelta, BeforeValidator(_seconds), Field(gt=timedelta(0), le=timedelta(days=7))
]
Offset = Annotated[timedelta, BeforeValidator(_seconds)]


def _host_name() -> str:
    letters = (c if c.isalnum() else "-" for c in socket.gethostname().lower().partition(".")[0])
    return "".join(letters).strip("-")[:63] or "node"


class Settings(ServiceSettings):
    """Environment prefix ``TRAINER_RUNNER_``; durations are seconds or ISO 8601."""

    model_config = SettingsConfigDict(
        env_prefix="TRAINER_RUNNER_", frozen=True, hide_input_in_errors=True
    )

    needs_database: ClassVar[bool] = False

    node_name: str = Field(default_factory=_host_name, pattern=r"^[a-z0-9][a-z0-9._-]{0,62}$")
    """Name of this node; unique in the installation."""

    state_dir: Path = Path(".state/trainer_runner")
    """Journal, spools, cached models and folders of runs; one agent a folder."""

    cpu_slots: int = Field(default=1, ge=0, le=64)
    """Runs that may compute on this machine's processors at once, each as a GPU of tier cpu."""

    pretend_gpus: str = ""
    """Test hook: GPUs that do not exist instead of real ones, such as ``h100-80gb:8,l40s:2``."""

    sync_interval: Duration = 2 * _SECOND
    """Time between two syncs with the allocator."""

    unconfirmed_after: Duration = 20 * _SECOND
    """Without an accepted sync for so long, nothing is committed; below the allocator's TTL."""

    unconfirmed_cap: Duration = timedelta(minutes=15)
    """Without an accepted sync for so long, trainers are stopped."""

    stop_grace: Duration = timedelta(minutes=2)
    """What a trainer gets to save after it was asked to stop."""

    kill_after: Duration = 10 * _SECOND
    """What it gets after SIGTERM, before it is killed."""

    stuck_after: Duration = timedelta(minutes=1)
    """A process that outlives its kill for so long takes its GPUs out of service."""

    shutdown_grace: Duration = 10 * _SECOND
    """What trainers get to save when the agent itself must go; below the supervisor's patience."""

    stall_timeout: Duration = timedelta(minutes=4)
    """A trainer that does not move for so long is killed; ten times its longest step if longer."""

    prepare_limit: Duration = timedelta(minutes=5)
    """How long an unavailable peer or object store may keep a run from starting."""

    drain_limit: Duration = timedelta(hours=24)
    """How long uploads of an ended run are tried."""

    salvage_limit: Duration = timedelta(minutes=1)
    """The same for a run whose end sends the job elsewhere."""

    spool_bytes: int = Field(default=64 * 1024 * 1024, ge=64 * 1024)
    """Reports and log lines of one run on this disk that telemetry has not confirmed."""

    model_cache_bytes: int = Field(default=200 * 2**30, ge=0)
    """Base models kept on this disk; the longest unused go first, those of runs stay. At
    most half of the disk."""

    sandbox: Literal["off"] = "off"
    """How trainers are confined; only ``off`` exists so far: they run as this user."""

    wall_clock_offset: Offset = timedelta(0)
    """Test hook: how wrong this node's wall clock is."""

    @field_validator("pretend_gpus")
    @classmethod
    def _pretend_gpus_need_hooks(cls, value: str, info: ValidationInfo) -> str:
        if value:
            parse_pretend_gpus(value)
            _need_hooks(info)
        return value

    @field_validator("wall_clock_offset")
    @classmethod
    def _offset_needs_hooks(cls, value: timedelta, info: ValidationInfo) -> timedelta:
        if value:
            _need_hooks(info)
        return value

    @property
    def timing(self) -> Timing:
        """The durations as seconds."""
        names = (field.name for field in fields(Timing))
        return Timing(**{name: getattr(self, name).total_seconds() for name in names})

    @property
    def pretended(self) -> PretendGpus:
        """The GPUs to pretend, tier and count in order."""
        return parse_pretend_gpus(self.pretend_gpus)


def _need_hooks(info: ValidationInfo) -> None:
    # A refused platform section is absent here and has been reported already.
    platform = info.data.get("platform")
    if platform is not None and not platform.test_hooks:
        raise ValueError("needs LEHR_TEST_HOOKS=true")
