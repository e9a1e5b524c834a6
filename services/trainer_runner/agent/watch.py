"""Watches over one trainer: when it began and moved, when it must stop, how it ended."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

from lehr.logs import get_logger
from lehr.training.ends import RunEnd
from lehr.training.progress import read_progress
from services.trainer_runner.agent import limits, processes, verdict
from services.trainer_runner.agent.child import Child
from services.trainer_runner.agent.intake import Intake
from services.trainer_runner.agent.leases import Ending, Instants
from services.trainer_runner.agent.limits import Force
from services.trainer_runner.agent.timing import Timing

TICK_SECONDS = 0.2
LINGER_SECONDS = 30.0
"""What a trainer that has said its last word gets to exit."""

_FIRST_STEP_FACTOR = 3
"""The first step compiles and allocates; it may take longer than the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowance:
    """Computing that is paid for and allowed, in seconds from its beginning; None for no limit."""

    funded_seconds: float | None = None
    deadline_seconds: float | None = None


class Watch:
    """One trainer from its start to its exit."""

    def __init__(
        self,
        child: Child,
        intake: Intake,
        *,
        progress_file: Path,
        timing: Timing,
        on_begin: Callable[[float], None],
        on_stop: Callable[[RunEnd], None],
    ) -> None:
        self.allowance = Allowance()
        """The newest that the allocator said."""
        self.stop_reason: RunEnd | None = None
        """Why it was asked to stop; the first reason stays."""
        self._child = child
        self._intake = intake
        self._progress_file = progress_file
        self._timing = timing
        self._on_begin = on_begin
        self._on_stop = on_stop
        self._asked_at = 0.0
        self._until: float | None = None
        self._force = Force.ASK
        self._done_at: float | None = None
        self._killed_for: Ending | None = None
        self._instants = Instants()
        self._kills_before = processes.out_of_memory_kills()
        self._log = get_logger()

    @property
    def instants(self) -> Instants:
        """When computing began, moved and ended, as last looked up."""
        return self._instants

    def ask(self, reason: RunEnd, *, until: float | None = None) -> None:
        """Ask the trainer to save and stop; asking again changes nothing.

        What it computes at the moment is paid for up to ``until``, and by nobody after that; once
        somebody else asks as well, by nobody at once.
        """
        if self._intake.done is not None:
            return
        if self.stop_reason is not None:
            if until is None and self._until is not None:
                self._until = None
                self._child.ask_to_stop(self.stop_reason, until=None)
            return
        self.stop_reason = reason
        self._until = until
        self._asked_at = monotonic()
        self._intake.is_stopping = True
        self._child.ask_to_stop(reason, until=until)
        self._on_stop(reason)
        self._log.info("stop_asked", reason=reason.value)
        self._push(monotonic())

    def kill(self) -> None:
        """End it at once; nothing of it is wanted any more."""
        self._child.kill()

    async def until_exit(self, end_family: Callable[[], Awaitable[None]]) -> Ending:
        """Wait for the end of the trainer, seeing to its limits; return why it ended.

        ``end_family`` kills what it has left behind, for that may keep the pipes open.
        """
        exited = asyncio.create_task(self._child.exited())
        try:
            while not exited.done():
                self._look()
                await asyncio.wait({exited}, timeout=TICK_SECONDS)
        finally:
            exited.cancel()
        code = exited.result()
        self._read_instants(monotonic())
        await end_family()
        await self._child.drained(within=self._timing.kill_after)
        for take in (self._intake.take_output, self._intake.take_reports):
            take(b"")
        return verdict.ending_of(self._exit(code))

    def _exit(self, code: int) -> verdict.Exit:
        killed = code in (-9, 137) and self._force is not Force.KILL
        kernel = killed and processes.out_of_memory_kills() > self._kills_before
        return verdict.Exit(
            code=code,
            done=self._intake.done,
            stop_reason=self.stop_reason,
            killed_for=self._killed_for,
            is_out_of_memory=kernel or self._intake.spoke_of_memory,
            has_begun=self._instants.began is not None,
            has_final=self._intake.has_final,
        )

    def _look(self) -> None:
        now = monotonic()
        self._read_instants(now)
        if self._intake.done is not None:
            self._done_at = self._done_at or now
            if now - self._done_at > LINGER_SECONDS:
                self._child.kill()
        elif self.stop_reason is not None:
            self._push(now)
        elif self._instants.began is not None:
            self._check_limits(now, self._instants.began)

    def _push(self, now: float) -> None:
        """Be as hard on a trainer that was asked to stop as is due by now."""
        force = limits.force_due(
            now - self._asked_at,
            has_begun=self._instants.began is not None,
            grace=self._timing.stop_grace,
            kill_after=self._timing.kill_after,
        )
        if force is Force.KILL:
            self._child.kill()
        elif force is Force.TERMINATE and self._force is Force.ASK:
            self._child.terminate()
        if force is not self._force:
            self._log.info("stop_forced", force=force.name)
        self._force = force

    def _check_limits(self, now: float, began: float) -> None:
        reached = limits.limit_reached(
            now - began,
            funded=self.allowance.funded_seconds,
            deadline=self.allowance.deadline_seconds,
            reserve=limits.reserve_seconds(
                step_seconds=self._intake.last_step, save_seconds=self._intake.save_seconds
            ),
        )
        if reached is not None and self._instants.ended is None:
            self.ask(reached.end, until=began + reached.seconds)
            return
        still = now - (self._instants.moved or began)
        timeout = self._timing.stall_timeout
        if self._intake.longest_step == 0.0:
            timeout *= _FIRST_STEP_FACTOR
        if limits.is_stalled(still, longest_step=self._intake.longest_step, timeout=timeout):
            self._killed_for = Ending(
                end=RunEnd.PLATFORM_FAULT,
                message=f"The trainer did not move for {still:.0f} s and was ended.",
            )
            self._log.warning("trainer_stalled", still_seconds=round(still))
            self._child.kill()

    def _read_instants(self, now: float) -> None:
        """Look at the progress clock, believing nothing that cannot be.

        What was told once is not taken back: a trainer cannot move the beginning of its bill.
        """
        clock = read_progress(self._progress_file)
        began = self._instants.began
        if began is None:
            began = _between(clock.running_began, self._child.began, now)
            if began is None and (self._intake.running or self._intake.longest_step):
                began = now
            if began is None:
                return
            self._on_begin(began)
        moved = _between(clock.last_progress, self._instants.moved or began, now)
        ended = self._instants.ended or _between(clock.compute_ended, began, now)
        self._instants = Instants(
            began=began, moved=moved or self._instants.moved or began, ended=ended
        )


def _between(instant: float, low: float, high: float) -> float | None:
    """Return an instant moved into its possible range; None for one that was not stamped."""
    if not math.isfinite(instant) or instant <= 0.0:
        return None
    return min(max(instant, low), high)
