"""Lease: GPUs promised to one run, what its node says of it, and the instants that are billed."""

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Self

from lehr.training.ends import RunEnd

COMMITTED_STEP = timedelta(seconds=1)
"""A snapshot this little newer than the last one is the last one, seen through a slower call."""

MESSAGE_LENGTH_MAX = 2000


class LeasePhase(StrEnum):
    """GRANTED -> STARTING -> RUNNING -> DRAINING -> CLOSED, or LOST -> CLOSED."""

    GRANTED = "GRANTED"
    STARTING = "STARTING"
    RUNNING = "RUNNING"
    DRAINING = "DRAINING"
    LOST = "LOST"
    CLOSED = "CLOSED"


P = LeasePhase
#: Every legal move. A report may overtake the one before it, so phases may be skipped.
MOVES: dict[LeasePhase, frozenset[LeasePhase]] = {
    P.GRANTED: frozenset({P.STARTING, P.RUNNING, P.DRAINING, P.CLOSED}),
    P.STARTING: frozenset({P.RUNNING, P.DRAINING, P.LOST, P.CLOSED}),
    P.RUNNING: frozenset({P.DRAINING, P.LOST, P.CLOSED}),
    P.DRAINING: frozenset({P.LOST, P.CLOSED}),
    P.LOST: frozenset({P.CLOSED}),
    P.CLOSED: frozenset(),
}
#: Phases in which a node works for the lease; a job has at most one such lease.
LIVE = frozenset({P.GRANTED, P.STARTING, P.RUNNING, P.DRAINING})
#: Phases in which the GPUs belong to the lease.
KEEPING = frozenset({P.GRANTED, P.STARTING, P.RUNNING, P.LOST})


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseReport:
    """One lease as its node sees it; ages are measured by the node's monotonic clock."""

    lease_id: str
    epoch: int
    phase: LeasePhase
    running_age: timedelta | None = None
    progress_age: timedelta | None = None
    end_age: timedelta | None = None
    committed_age: timedelta | None = None
    close_reason: str = ""
    close_message: str = ""
    pids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """GPUs of one node, held for one attempt of a job; times are those of the database."""

    lease_id: str
    tenant: str
    project: str
    job_id: str
    attempt: int
    run_id: str
    epoch: int
    """Fencing number; grows with every grant."""
    node_id: str
    tier: str
    ordinals: tuple[int, ...]
    """Numbers of its GPUs on the node."""
    funded_duration: timedelta
    """Running time that is paid for."""
    deadline_duration: timedelta | None
    """Running time left before the job's deadline."""
    grant_time: datetime
    phase: LeasePhase = P.GRANTED
    version: int = 1
    """Grows with every change that is told; proof of life alone is not told."""
    is_offered: bool = False
    """A node was told of it, so that processes may exist."""
    running_time: datetime | None = None
    progress_time: datetime | None = None
    """When computing last moved, as the node last said."""
    end_time: datetime | None = None
    alive_time: datetime | None = None
    stop_time: datetime | None = None
    stop_reason: str = ""
    funded_until: datetime | None = None
    committed_time: datetime | None = None
    close_time: datetime | None = None
    close_reason: str = ""
    close_message: str = ""
    pids: tuple[int, ...] = ()

    @property
    def is_live(self) -> bool:
        """Whether a node works for it."""
        return self.phase in LIVE

    @property
    def keeps_gpus(self) -> bool:
        """Whether its GPUs are its own."""
        return self.phase in KEEPING

    def is_fenced_for(self, report: LeaseReport) -> bool:
        """Whether what its node still does for it must be ended and not be listened to."""
        return report.epoch != self.epoch or not self.is_live

    def renew(self, report: LeaseReport, *, now: datetime) -> Self:
        """Return the lease after its node spoke of it at ``now``.

        Instants come from ages, clamped so that nothing begins before the grant, ends before it
        began, or lies in the future. ``running_time`` and ``end_time`` are set once; the moment at
        which somebody notices an end is never taken for the end.
        """
        now = self._not_before_last_word(now)
        heard = replace(self, alive_time=now, pids=report.pids)
        heard = heard._with_instants(report, now=now)
        target = P.STARTING if report.phase is P.GRANTED else report.phase
        if target is P.CLOSED:
            reason, message = _end_of(report)
            return heard._moved(P.CLOSED, since=self, reason=reason, message=message, now=now)
        if target in MOVES[self.phase]:
            return heard._moved(target, since=self, now=now)
        # A node may tell of the beginning only after it told of the end.
        return heard._ended(since=self)._told(since=self)

    def stop(self, *, stop_time: datetime | None, reason: RunEnd, now: datetime) -> Self:
        """Return the lease asked to stop; ``stop_time`` is the last billable instant.

        It only moves earlier and is never in the future; the first reason stays. A closed lease
        is returned as it is.
        """
        wanted = now if stop_time is None else min(stop_time, now)
        if self.phase is P.CLOSED or (self.stop_time is not None and self.stop_time <= wanted):
            return self
        return replace(
            self,
            stop_time=wanted,
            stop_reason=self.stop_reason or reason,
            version=self.version + 1,
        )

    def lose(self, message: str, *, now: datetime) -> Self:
        """Return the lease given up because its node is silent; it ended with its last word."""
        return self._moved(P.LOST, since=self, reason=RunEnd.NODE_LOST, message=message, now=now)

    def close(self, reason: RunEnd, message: str, *, now: datetime) -> Self:
        """Return the lease closed without its node; a lost one keeps the reason it was lost for."""
        return self._moved(P.CLOSED, since=self, reason=reason, message=message, now=now)

    def _moved(
        self,
        phase: LeasePhase,
        *,
        since: Self,
        now: datetime,
        reason: RunEnd | None = None,
        message: str = "",
    ) -> Self:
        if phase not in MOVES[self.phase]:
            raise ValueError(f"lease {self.lease_id} cannot go from {self.phase} to {phase}")
        now = self._not_before_last_word(now)
        moved = replace(self, phase=phase)._ended(since=since)
        if reason is not None and not self.close_reason:
            text = message[:MESSAGE_LENGTH_MAX]
            moved = replace(moved, close_reason=reason, close_message=text)
        if phase is P.CLOSED:
            moved = replace(moved, close_time=now, pids=())
        return moved._told(since=since)

    def _ended(self, *, since: Self) -> Self:
        """Stamp the end of what computes no more and whose end nobody stamped."""
        if self.end_time is not None or self.phase not in {P.DRAINING, P.LOST, P.CLOSED}:
            return self
        return replace(self, end_time=self._last_proof(since))

    def _told(self, *, since: Self) -> Self:
        """Raise the version if anything is new but proof of life."""
        quiet = replace(
            since, alive_time=self.alive_time, progress_time=self.progress_time, pids=self.pids
        )
        return self if self == quiet else replace(self, version=since.version + 1)

    def _with_instants(self, report: LeaseReport, *, now: datetime) -> Self:
        running_time = self.running_time
        age = report.running_age
        if age is None and report.phase is P.RUNNING:
            age = timedelta()
        if running_time is None and age is not None:
            running_time = _clamp(_ago(age, now), self.grant_time, now)
        if running_time is None:
            return self
        return replace(
            self,
            running_time=running_time,
            funded_until=_later(running_time, self.funded_duration),
            progress_time=self._newest_progress(report, running_time, now=now),
            end_time=self._end(report, running_time, now=now),
            committed_time=self._newest_commit(report, running_time, now=now),
        )

    def _newest_progress(
        self, report: LeaseReport, running_time: datetime, *, now: datetime
    ) -> datetime | None:
        if report.progress_age is None:
            return self.progress_time
        progress = _clamp(_ago(report.progress_age, now), running_time, now)
        return max(progress, self.progress_time or progress)

    def _end(
        self, report: LeaseReport, running_time: datetime, *, now: datetime
    ) -> datetime | None:
        if self.end_time is not None or report.end_age is None:
            return self.end_time
        return _clamp(_ago(report.end_age, now), running_time, now)

    def _newest_commit(
        self, report: LeaseReport, running_time: datetime, *, now: datetime
    ) -> datetime | None:
        if report.committed_age is None:
            return self.committed_time
        committed = _clamp(_ago(report.committed_age, now), running_time, now)
        if self.committed_time is not None and committed - self.committed_time <= COMMITTED_STEP:
            return self.committed_time
        return committed

    def _last_proof(self, heard: Self) -> datetime | None:
        """Return when computing ended for all we know, of a lease whose end nobody stamped.

        That is the last progress, or else the last word before this one, ``heard``.
        """
        if self.running_time is None:
            return None
        alive = heard.alive_time or self.running_time
        proof = self.progress_time or alive
        if self.alive_time is not None:
            proof = min(proof, self.alive_time)
        return max(proof, self.running_time)

    def _not_before_last_word(self, now: datetime) -> datetime:
        # The database's clock may step back; what is known does not become unhappened.
        return max(now, self.grant_time, self.alive_time or self.grant_time)


def _end_of(report: LeaseReport) -> tuple[RunEnd, str]:
    """Read the reason; one that nobody knows is the platform's fault, never the user's."""
    try:
        return RunEnd(report.close_reason), report.close_message
    except ValueError:
        message = f"the node closed with the unknown reason {report.close_reason[:80]!r}"
        return RunEnd.PLATFORM_FAULT, f"{message}: {report.close_message}"


def _ago(age: timedelta, now: datetime) -> datetime:
    try:
        return now - age
    except OverflowError:
        return datetime.min.replace(tzinfo=now.tzinfo)


def _later(begin: datetime, length: timedelta) -> datetime:
    try:
        return begin + length
    except OverflowError:
        return datetime.max.replace(tzinfo=begin.tzinfo)


def _clamp(value: datetime, low: datetime, high: datetime) -> datetime:
    return max(low, min(value, high))
