"""One agent as a real process, the runs that a test wants of it, and what it did."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from lehr import faults
from lehr.api.gpu_allocator.v1 import gpu_allocator_pb2 as pb
from lehr.training.spec import JobSpec
from tests.support.fakes_trainer_runner import FakePeers
from tests.support.one_service import OneService

PATIENCE_SECONDS = 40.0


async def until(
    condition: Callable[[], Any], what: str, *, within: float = PATIENCE_SECONDS
) -> Any:
    """Wait until something holds and return it."""
    give_up_at = time.monotonic() + within
    while not (found := condition()):
        assert time.monotonic() < give_up_at, f"not within {within} s: {what}"
        await asyncio.sleep(0.02)
    return found


@dataclass
class RunUnderTest:
    """One run that the allocator wants."""

    peers: FakePeers
    desired: pb.DesiredLease

    @property
    def lease_id(self) -> str:
        return self.desired.lease.lease_id

    @property
    def run_id(self) -> str:
        return self.desired.lease.run_id

    @property
    def job_id(self) -> str:
        return self.desired.lease.job_id

    @property
    def now(self) -> pb.LeaseReport | None:
        """What was said of it last."""
        said = self.peers.allocator.reports(self.lease_id)
        return said[-1][1] if said else None

    @property
    def committed(self) -> list[int]:
        return self.peers.checkpoint_store.committed(self.job_id)

    @property
    def steps(self) -> list[int]:
        return self.peers.telemetry.steps(self.run_id)

    @property
    def log(self) -> list[str]:
        return self.peers.telemetry.log(self.run_id)

    async def reaches(self, phase: str) -> pb.LeaseReport:
        wanted = pb.LeasePhase.Value(f"LEASE_PHASE_{phase}")
        found: pb.LeaseReport = await until(
            lambda: self.now is not None and self.now.phase == wanted and self.now,
            f"the lease is {phase}",
        )
        return found

    async def closes(self) -> pb.LeaseReport:
        found: pb.LeaseReport = await until(
            lambda: self.peers.allocator.closed.get(self.lease_id), "the lease closes"
        )
        return found

    async def computes(self, step: int) -> None:
        """Wait until a step has reached telemetry."""
        await until(lambda: step in self.steps, f"step {step} is stored")

    def stop(self, reason: str = "USER_STOPPED") -> None:
        self.peers.allocator.stop(self.lease_id, reason)


@dataclass
class AgentUnderTest:
    """The agent's process and its folder."""

    service: OneService
    peers: FakePeers
    state_dir: Path

    def wants(
        self, script: dict[str, Any], *, job_id: str = "", ordinal: int = 0, **spec: Any
    ) -> RunUnderTest:
        """Let the allocator want a scripted run."""
        desired = self.peers.allocator.grant(ordinals=(ordinal,), job_id=job_id)
        run = RunUnderTest(self.peers, desired)
        self.peers.scheduler.leases[run.lease_id] = desired.lease
        told = {"name": "t", "model": "toy", "dataset": "rows", **spec, "script": script}
        self.peers.scheduler.specs[run.lease_id] = JobSpec.model_validate(told)
        return run

    def service_lives(self) -> bool:
        """Whether the agent's own process lives."""
        try:
            return psutil.Process(self.service.control.pid).status() != psutil.STATUS_ZOMBIE
        except (psutil.NoSuchProcess, AssertionError):
            return False

    def arm(self, name: str, **fault: Any) -> None:
        faults.arm(self.service.faults, name, **fault)

    def processes(self, lease_id: str) -> list[psutil.Process]:
        """Return the living processes that carry the mark of a lease."""
        found = []
        for process in psutil.process_iter(["status"]):
            try:
                marked = process.environ().get("LEHR_LEASE_ID") == lease_id
            except psutil.Error:
                continue
            if marked and process.info["status"] != psutil.STATUS_ZOMBIE:
                found.append(process)
        return found

    def device(self, ordinal: int = 0) -> pb.GpuReport:
        """What was said of a device last."""
        return next(gpu for gpu in self.peers.allocator.last.gpus if gpu.ordinal == ordinal)

    def spools(self) -> list[Path]:
        return sorted((self.state_dir / "spool").glob("*.sqlite"))

    def events(self, name: str) -> list[dict[str, Any]]:
        """Return what the agent logged under a constant name."""
        lines = self.service.log.read_text(encoding="utf-8").splitlines()
        entries = [json.loads(line) for line in lines if line.startswith("{")]
        return [entry for entry in entries if entry.get("event") == name]


AgentFactory = Callable[..., AgentUnderTest]
"""Takes settings by name without prefix; returns when the agent is ready."""
