"""What a person may ask of a stack, and what of the caller's environment the parts may see."""

import json
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from lehr.errors import FieldViolation
from lehr.settings import ADMIN_URL_ENV, MODE_ENV, TEST_HOOKS_ENV
from lehr.stack.errors import OptionsRefused
from lehr.stack.layout import write_private

STATE_DIR_ENV = "LEHR_STATE_DIR"
DEFAULT_STATE_DIR = ".state"

RUNNER = "trainer_runner"
SERVICES = (
    "catalog",
    "checkpoint_store",
    "telemetry",
    "billing",
    "gpu_allocator",
    "scheduler",
    "gateway",
)
"""Services of which one process runs, each with a role in the database; runners come on top."""

_NODE_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_PRETEND_GPUS = re.compile(r"[a-z0-9.-]+:[1-9][0-9]*(,[a-z0-9.-]+:[1-9][0-9]*)*")

# What every program needs to find itself, its language and its libraries.
_FOR_ALL = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "PYTHONPATH", "LD_LIBRARY_PATH")
_FOR_SERVICES = ("LEHR_LOG_FORMAT", "LEHR_OTLP_ENDPOINT")
# A node's devices, as their drivers and libraries are told of them.
_FOR_RUNNERS = re.compile(r"(CUDA|NVIDIA|HIP|ROCR|OMP|HF|NCCL)_\w+")
_TRUE = frozenset({"1", "true", "yes", "on"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One runner's agent and what it offers."""

    name: str
    """Lower-case letters, digits and hyphens."""

    cpu_slots: int = 1
    """How many jobs of the tier ``cpu`` it takes at a time."""

    pretend_gpus: str | None = None
    """GPUs that do not exist, such as ``h100-80gb:8``; for tests, refused in production."""


@dataclass(frozen=True, slots=True, kw_only=True)
class External:
    """Servers that run already; one that is given is not started."""

    nats_url: str | None = None
    nats_user: str | None = None
    nats_password: str | None = field(default=None, repr=False)
    postgres_admin_url: str | None = field(default=None, repr=False)
    """Of a role that may create roles and schemas, with the database to use."""
    s3_endpoint: str | None = None
    s3_access_key: str | None = None
    s3_secret_key: str | None = field(default=None, repr=False)
    s3_bucket: str | None = None
    s3_region: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How to run a stack."""

    nodes: tuple[Node, ...] = (Node(name="local"),)
    """Runners to start on this machine."""

    services: tuple[str, ...] = SERVICES
    """Services to start."""

    mode: str = "development"
    """``production`` demands external servers."""

    test_hooks: bool = False
    """Fault points, a movable clock, scripted trainers."""

    external: External = External()
    """Servers that are not ours."""

    environment: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """More variables for a service by its name, or for all as ``*``; they win over ours."""

    inherited: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The caller's environment; each part sees a small part of it."""

    def __post_init__(self) -> None:
        problems = [*self._mistakes(), *self._dangers()]
        if problems:
            lines = "".join(f"\n  {problem.field}: {problem.description}" for problem in problems)
            raise OptionsRefused(f"the stack cannot run like this:{lines}", fields=problems)

    @classmethod
    def from_environment(cls, **changes: Any) -> Self:
        """Read ``LEHR_`` variables, with ``changes`` by field name on top."""
        given = {name: os.environ.get(f"LEHR_{name.upper()}") for name in External.__slots__}
        given["postgres_admin_url"] = os.environ.get(ADMIN_URL_ENV)
        found: dict[str, Any] = {
            "mode": os.environ.get(MODE_ENV, "development"),
            "test_hooks": os.environ.get(TEST_HOOKS_ENV, "").lower() in _TRUE,
            "external": External(**given),
            "inherited": dict(os.environ),
        }
        return cls(**found | changes)

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read what ``write`` wrote."""
        return cls.loads(path.read_text())

    def write(self, path: Path) -> None:
        """Store all that a supervisor needs, readable by the owner alone."""
        write_private(path, self.dumps().encode())

    @classmethod
    def loads(cls, text: str) -> Self:
        """Read what ``dumps`` returned."""
        saved = json.loads(text)
        nodes = tuple(Node(**node) for node in saved.pop("nodes"))
        external = External(**saved.pop("external"))
        services = tuple(saved.pop("services"))
        return cls(nodes=nodes, external=external, services=services, **saved)

    def dumps(self) -> str:
        """Return a text with secrets, but without variables that no part may see."""
        seen = {name: value for name, value in self.inherited.items() if self._is_seen(name)}
        return json.dumps(asdict(replace(self, inherited=seen)), indent=1)

    def for_all(self) -> dict[str, str]:
        """Return the environment of every part, servers included."""
        chosen = {name: self.inherited[name] for name in _FOR_ALL if name in self.inherited}
        # A relative entry would mean another folder in the part's working folder.
        paths = chosen.pop("PYTHONPATH", "").split(os.pathsep)
        absolute = os.pathsep.join(os.path.abspath(path) for path in paths if path)
        programs = os.path.dirname(os.path.abspath(sys.executable))
        chosen["PATH"] = os.pathsep.join([programs, chosen.get("PATH", os.defpath)])
        return {"LANG": "C.UTF-8"} | chosen | ({"PYTHONPATH": absolute} if absolute else {})

    def for_service(self, name: str) -> dict[str, str]:
        """Return what a service sees of the caller's environment: its own settings."""
        prefix = f"{name.upper()}_"
        return self.for_all() | {
            variable: value
            for variable, value in self.inherited.items()
            if variable.startswith(prefix)
            or variable in _FOR_SERVICES
            or (name == RUNNER and _FOR_RUNNERS.fullmatch(variable))
        }

    def more_for(self, name: str) -> dict[str, str]:
        """Return what was asked for a service on top of everything."""
        return {**self.environment.get("*", {}), **self.environment.get(name, {})}

    def _is_seen(self, variable: str) -> bool:
        own = tuple(f"{name.upper()}_" for name in (*SERVICES, RUNNER))
        return (
            variable in {*_FOR_ALL, *_FOR_SERVICES}
            or variable.startswith(own)
            or _FOR_RUNNERS.fullmatch(variable) is not None
        )

    def _mistakes(self) -> list[FieldViolation]:
        found = []
        names = [node.name for node in self.nodes]
        for node in self.nodes:
            if not _NODE_NAME.fullmatch(node.name) or names.count(node.name) > 1:
                found.append((f"nodes.{node.name}", "a name of a-z, 0-9 and -, used once"))
            if node.cpu_slots < 0:
                found.append((f"nodes.{node.name}.cpu_slots", "must not be negative"))
            if node.pretend_gpus is not None and not _PRETEND_GPUS.fullmatch(node.pretend_gpus):
                found.append((f"nodes.{node.name}.pretend_gpus", "must be like h100-80gb:8"))
        unknown = sorted({*self.services, *self.environment} - {*SERVICES, RUNNER, "*"})
        found += [(name, f"is no service: choose of {', '.join(SERVICES)}") for name in unknown]
        keys = self.external.s3_access_key, self.external.s3_secret_key
        if self.external.s3_endpoint is not None and None in keys:
            found.append(("LEHR_S3_ENDPOINT", "needs LEHR_S3_ACCESS_KEY and LEHR_S3_SECRET_KEY"))
        if self.mode not in {"development", "production"}:
            found.append((MODE_ENV, "must be development or production"))
        return [FieldViolation(field=name, description=text) for name, text in found]

    def _dangers(self) -> list[FieldViolation]:
        """What production refuses."""
        if self.mode != "production":
            return []
        found = []
        if self.test_hooks:
            found.append((TEST_HOOKS_ENV, "test hooks must be off in production"))
        if any(node.pretend_gpus for node in self.nodes):
            found.append(("nodes", "GPUs must be real in production"))
        needed = {
            "LEHR_NATS_URL": self.external.nats_url,
            ADMIN_URL_ENV: self.external.postgres_admin_url,
            "LEHR_S3_ENDPOINT": self.external.s3_endpoint,
        }
        found += [
            (name, "must name a server in production: the embedded ones have no TLS and no copy")
            for name, given in needed.items()
            if given is None
        ]
        return [FieldViolation(field=name, description=text) for name, text in found]


def state_dir(given: Path | str | None = None) -> Path:
    """Return the absolute state folder: as given, of the environment, or ``.state`` here."""
    chosen = given or os.environ.get(STATE_DIR_ENV) or DEFAULT_STATE_DIR
    return Path(os.path.abspath(chosen))
