"""When silence ends a lease; time in which the allocator itself was away does not count."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import assert_never

from lehr.training.ends import RunEnd
from services.gpu_allocator.domain.lease import Lease, LeasePhase

BEAT_GAP_MAX = timedelta(seconds=5)
"""A longer time between two heartbeats of the allocator is an outage."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outage:
    """A time in which no replica of the allocator could write to its database."""

    begin_time: datetime
    end_time: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Amnesty:
    """What of the past does not count as a node's silence."""

    beat_time: datetime
    """The newest heartbeat; what follows it may be an outage that is not written down yet."""
    outages: tuple[Outage, ...] = ()
    """Disjoint."""

    def silence(self, since: datetime, now: datetime) -> timedelta:
        """Return how long somebody has been silent who was heard at ``since``; never negative."""
        away = [*self.outages]
        if now - self.beat_time > BEAT_GAP_MAX:
            away.append(Outage(begin_time=self.beat_time, end_time=now))
        excused = sum(
            (_overlap(outage, since, now) for outage in away),
            start=timedelta(),
        )
        return max(now - since - excused, timedelta())


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How long silence is borne."""

    lease_ttl: timedelta
    """Without an accepted sync that shows the lease."""
    unseen: timedelta
    """Of a granted lease that no sync has shown."""
    starting: timedelta
    """From the grant to computing."""
    lost: timedelta
    """From the last word of a lost lease to its end on paper; its GPUs wait on for proof."""


def beat(last_time: datetime, now: datetime) -> Outage | None:
    """Return the outage that a heartbeat at ``now`` brings to an end."""
    if now - last_time > BEAT_GAP_MAX:
        return Outage(begin_time=last_time, end_time=now)
    return None


def expire(lease: Lease, *, amnesty: Amnesty, limits: Limits, now: datetime) -> Lease:
    """Return the lease as silence leaves it; the same one if it is in time."""
    alive_time = lease.alive_time or lease.grant_time
    silence = amnesty.silence(alive_time, now)
    match lease.phase:
        case LeasePhase.GRANTED:
            if amnesty.silence(lease.grant_time, now) > limits.unseen:
                seconds = int(limits.unseen.total_seconds())
                message = f"node {lease.node_id} did not take the lease within {seconds} s"
                return lease.close(RunEnd.NODE_LOST, message, now=now)
        case LeasePhase.STARTING | LeasePhase.RUNNING | LeasePhase.DRAINING:
            if silence > limits.lease_ttl:
                seconds = int(silence.total_seconds())
                message = f"node {lease.node_id} was silent for {seconds} s"
                return lease.lose(message, now=now)
            if (
                lease.phase is LeasePhase.STARTING
                and amnesty.silence(lease.grant_time, now) > limits.starting
            ):
                minutes = int(limits.starting.total_seconds() // 60)
                message = f"the run did not begin to compute within {minutes} minutes"
                return lease.close(RunEnd.PLATFORM_FAULT, message, now=now)
        case LeasePhase.LOST:
            if silence > limits.lost:
                return lease.close(RunEnd.NODE_LOST, "", now=now)
        case LeasePhase.CLOSED:
            pass
        case _:
            assert_never(lease.phase)
    return lease


def _overlap(outage: Outage, begin: datetime, end: datetime) -> timedelta:
    return max(min(outage.end_time, end) - max(outage.begin_time, begin), timedelta())
