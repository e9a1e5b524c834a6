"""What every run of a node works with, built once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from services.trainer_runner.agent.devices import Device
from services.trainer_runner.agent.folders import StateDir
from services.trainer_runner.agent.journal import Journal
from services.trainer_runner.agent.link import Link
from services.trainer_runner.agent.masking import Masker
from services.trainer_runner.agent.peers import Peers
from services.trainer_runner.agent.preparation import Preparation
from services.trainer_runner.agent.reporter import Reporter
from services.trainer_runner.agent.timing import Timing
from services.trainer_runner.agent.transfer import Transfer
from services.trainer_runner.agent.wall import WallClock


@dataclass(frozen=True, slots=True, kw_only=True)
class Modules:
    """Python modules that are started as trainers."""

    trainer: str = "services.trainer_runner.trainer"
    scripted: str = "services.trainer_runner.scripted"
    """For jobs with a script; test support."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """The node's parts by what they do."""

    node_name: str
    boot_id: str
    journal: Journal
    peers: Peers
    transfer: Transfer
    preparation: Preparation
    reporter: Reporter
    state_dir: StateDir
    link: Link
    clock: WallClock
    masker: Masker
    timing: Timing
    devices: Mapping[int, Device]
    """By number."""
    cpu_slots: int
    environment: Mapping[str, str]
    """The agent's own; little of it is passed on to trainers."""
    takes_scripts: bool
    """Test hooks are on."""
    modules: Modules = Modules()
