"""Leases and holds for tests of billing, with defaults that make every second count."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from services.billing.domain.holds import Hold, Terms
from services.billing.domain.lease import Lease, LeasePhase

T0 = datetime(2026, 3, 1, 10, 0, 0, tzinfo=UTC)
EUR = 1_000_000
"""Micros of a euro."""


def at(seconds: float) -> datetime:
    """Return an instant by its distance from the beginning of the story."""
    return T0 + timedelta(seconds=seconds)


def a_hold(
    ordinal: int = 1,
    *,
    prices: Mapping[str, int] | None = None,
    max_cost: int = 1000 * EUR,
    max_duration: timedelta | None = None,
    gpu_count: int = 1,
    placed: float = -100,
) -> Hold:
    """A hold placed long before the first lease, at 3.60 an hour on the tier h."""
    locked = dict(prices or {"h": 3_600_000})
    terms = Terms(
        currency="EUR",
        max_cost_micros=max_cost,
        max_duration=max_duration,
        gpu_count=gpu_count,
        tiers=tuple(locked),
    )
    return Hold(
        ordinal=ordinal,
        terms=terms,
        rate_version=1,
        prices=locked,
        place_time=at(placed),
        open_time=at(placed),
    )


def a_lease(
    running: float | None = 0,
    end: float | None = None,
    *,
    phase: str = "RUNNING",
    alive: float | None = None,
    stop: float | None = None,
    funded: float | None = None,
    committed: float | None = None,
    **fields: Any,
) -> Lease:
    """A lease of job ``job_1``; instants are seconds of the story."""
    values: dict[str, Any] = {
        "lease_id": f"lease_{fields.get('epoch', 1)}",
        "tenant": "acme",
        "project": "default",
        "job_id": "job_1",
        "attempt": 1,
        "epoch": 1,
        "tier": "h",
        "gpu_count": 1,
        "phase": LeasePhase(phase),
        "version": 1,
        "hold_ordinal": 1,
        "grant_time": at(-10),
    }
    times = {
        "running_time": running,
        "end_time": end,
        "alive_time": alive,
        "stop_time": stop,
        "funded_until": funded,
        "committed_time": committed,
    }
    known = {name: None if time is None else at(time) for name, time in times.items()}
    return Lease(**{**values, **known, **fields})


def closed(running: float, end: float, reason: str = "COMPLETED", **fields: Any) -> Lease:
    """A lease that is over."""
    return a_lease(running, end, phase="CLOSED", close_reason=reason, **fields)
