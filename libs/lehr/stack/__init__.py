"""The embedded stack: servers, services and runners of one machine under one supervisor."""

from lehr.stack.errors import (
    FolderRefused,
    OptionsRefused,
    OtherMajorVersion,
    StackDown,
    StackRuns,
    StartFailed,
    StopFailed,
    UnknownPart,
)
from lehr.stack.part import PartState
from lehr.stack.settings import RUNNER, SERVICES, External, Node, Options, state_dir
from lehr.stack.stack import Stack
from lehr.stack.state import PartStatus, Phase
from lehr.stack.status import StackStatus

__all__ = [
    "RUNNER",
    "SERVICES",
    "External",
    "FolderRefused",
    "Node",
    "Options",
    "OptionsRefused",
    "OtherMajorVersion",
    "PartState",
    "PartStatus",
    "Phase",
    "Stack",
    "StackDown",
    "StackRuns",
    "StackStatus",
    "StartFailed",
    "StopFailed",
    "UnknownPart",
    "state_dir",
]
