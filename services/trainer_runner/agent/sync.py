"""SyncNode every two seconds: what runs goes out, what should run comes back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import monotonic

import grpc.aio
from google.protobuf.duration_pb2 import Duration

from lehr import faults
from lehr.api.gpu_allocator.v1 import gpu_allocator_pb2 as pb
from lehr.api.gpu_allocator.v1.gpu_allocator_pb2_grpc import GpuAllocatorServiceStub
from lehr.errors import FailedPrecondition, PlatformError
from lehr.logs import get_logger, metrics
from lehr.rpc.auth import acting_for
from lehr.rpc.client import raises_platform_errors
from lehr.text import shortened
from lehr.training.ends import RunEnd
from services.trainer_runner.agent.leases import Grant, LeaseState, Phase, Wish, age
from services.trainer_runner.agent.link import Link

TIMEOUT_SECONDS = 1.5
MESSAGE_BYTES_MAX = 8 * 1024
"""Words about one end; the allocator keeps fewer."""

_APART_SECONDS = 0.1
"""Least time between two syncs, however much changes."""

_PHASES = {
    Phase.STARTING: pb.LEASE_PHASE_STARTING,
    Phase.RUNNING: pb.LEASE_PHASE_RUNNING,
    Phase.DRAINING: pb.LEASE_PHASE_DRAINING,
    Phase.CLOSED: pb.LEASE_PHASE_CLOSED,
}


class NodeFenced(FailedPrecondition):
    """A newer agent of this node's name has been accepted; this one must go."""

    reason = "FENCED"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceState:
    """What the node says of one device."""

    ordinal: int
    tier: str
    memory_bytes: int
    device_id: str
    is_clear: bool
    epoch: int
    is_stuck: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeState:
    """Everything that a node has to say."""

    devices: Sequence[DeviceState]
    leases: Sequence[LeaseState]


class Sync:
    """Keeps the allocator and this node in step; nothing here waits for anything else."""

    def __init__(
        self,
        channel: grpc.aio.Channel,
        link: Link,
        *,
        node_name: str,
        incarnation: int,
        boot_id: str,
        interval: float,
    ) -> None:
        self._allocator = GpuAllocatorServiceStub(channel)
        self._link = link
        self._node_name = node_name
        self._incarnation = incarnation
        self._boot_id = boot_id
        self._interval = interval
        self._sequence = 0
        self._unknown_tiers: frozenset[str] = frozenset()
        self._log = get_logger()

    async def run(
        self,
        look: Callable[[], NodeState],
        follow: Callable[[Sequence[Wish], NodeState], None],
    ) -> None:
        """Sync until cancelled: ``look`` says what is, ``follow`` hears what should be.

        Raises:
            NodeFenced: another agent has this node's name.
        """
        while True:
            began = monotonic()
            await self.once(look, follow)
            spent = monotonic() - began
            await asyncio.sleep(_APART_SECONDS)
            await self._link.pause(max(0.0, self._interval - spent - _APART_SECONDS))

    async def once(
        self,
        look: Callable[[], NodeState],
        follow: Callable[[Sequence[Wish], NodeState], None],
    ) -> bool:
        """Sync one time; say whether it was accepted.

        Raises:
            NodeFenced: another agent has this node's name.
        """
        self._sequence += 1
        state, sent_at = look(), monotonic()
        try:
            await faults.hit("trainer_runner.before_sync")
            with acting_for(""), raises_platform_errors():
                answer = await self._allocator.SyncNode(
                    self._request(state, now=sent_at), timeout=TIMEOUT_SECONDS
                )
        except PlatformError as problem:
            if isinstance(problem, FailedPrecondition) and problem.reason == "FENCED":
                raise NodeFenced(f"this node is fenced: {problem}") from None
            if problem.reason == "TIER_UNKNOWN":
                # The other devices must not suffer from one that nobody has a price for.
                self._unknown_tiers |= frozenset(problem.facts.get("tiers", "").split())
            self._log.warning("sync_failed", error=str(problem), reason=problem.reason)
            return False
        metrics.observe("node_sync_seconds", monotonic() - sent_at)
        self._link.accept(sent_at)
        if answer.HasField("sync_interval"):
            asked = answer.sync_interval.ToTimedelta().total_seconds()
            # An allocator may slow us down, not beyond what keeps leases alive.
            self._interval = min(max(asked, 0.1), 10.0) if asked else self._interval
        follow([_wish(one) for one in answer.leases], state)
        return True

    def _request(self, state: NodeState, *, now: float) -> pb.SyncNodeRequest:
        return pb.SyncNodeRequest(
            node_name=self._node_name,
            incarnation=self._incarnation,
            boot_id=self._boot_id,
            sync_sequence=self._sequence,
            gpus=[
                pb.GpuReport(
                    ordinal=one.ordinal,
                    tier=one.tier,
                    memory_bytes=one.memory_bytes,
                    device_id=one.device_id,
                    is_clear=one.is_clear,
                    epoch=one.epoch,
                    is_stuck=one.is_stuck,
                )
                for one in state.devices
                if one.tier not in self._unknown_tiers
            ],
            leases=[_lease_report(one, now=now) for one in state.leases],
            is_draining=self._link.is_draining,
        )


def _lease_report(state: LeaseState, *, now: float) -> pb.LeaseReport:
    instants, ending = state.instants, state.ending
    is_closed = state.phase is Phase.CLOSED
    words = ending.message if ending and is_closed else ""
    return pb.LeaseReport(
        lease_id=state.lease_id,
        epoch=state.epoch,
        phase=_PHASES[state.phase],
        running_age=_duration(age(now, instants.began)),
        progress_age=_duration(age(now, instants.moved)),
        end_age=_duration(age(now, instants.ended)),
        committed_age=_duration(age(now, instants.committed)),
        close_reason=ending.end.value if ending and is_closed else "",
        # It may quote anything; text that gRPC cannot carry would silence the whole node.
        close_message=shortened(words, bytes_max=MESSAGE_BYTES_MAX),
        pids=state.pids,
    )


def _duration(seconds: float | None) -> Duration | None:
    if seconds is None:
        return None
    found = Duration()
    found.FromNanoseconds(round(seconds * 1_000_000_000))
    return found


def _wish(desired: pb.DesiredLease) -> Wish:
    lease = desired.lease
    return Wish(
        grant=Grant(
            lease_id=lease.lease_id,
            run_id=lease.run_id,
            job_id=lease.job_id,
            tenant=lease.tenant,
            project=lease.project,
            epoch=lease.epoch,
            tier=lease.tier,
            ordinals=tuple(sorted(desired.ordinals)),
        ),
        stop_reason=_reason(desired.stop_reason) if desired.should_stop else None,
        is_fenced=desired.is_fenced,
        funded_seconds=_seconds(desired, "funded_duration"),
        deadline_seconds=_seconds(desired, "deadline_duration"),
    )


def _seconds(desired: pb.DesiredLease, field: str) -> float | None:
    if not desired.HasField(field):  # type: ignore[arg-type]
        return None
    seconds: float = getattr(desired, field).ToTimedelta().total_seconds()
    return seconds


def _reason(word: str) -> RunEnd:
    try:
        return RunEnd(word)
    except ValueError:
        get_logger().warning("stop_reason_unknown", word=word)
        return RunEnd.USER_STOPPED
