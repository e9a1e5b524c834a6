"""How long a job may take and what it may cost: the analytic first form."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lehr.money import Money, cost_micros
from lehr.training.spec import JobSpec

FLOPS_PER_PARAMETER = 6
"""Of one trained token: 2 forward and 4 backward (Kaplan et al. 2020, section 2.1)."""

FLOPS_PER_PARAMETER_FORWARD = 2
"""Of one evaluated token."""

EFFECTIVE_FLOPS: Mapping[str, float] = {
    # A rough figure for two cores in fp32; a measured pilot replaces it.
    "cpu": 30e9,
    # A third of the vendor's dense bf16 figure, a usual utilisation for small batches.
    "h100-80gb": 330e12,
    "h200-141gb": 330e12,
    "a100-80gb": 104e12,
    "a100-40gb": 104e12,
    "l40s": 120e12,
    "l4": 40e12,
    "a10g": 42e12,
    "t4": 22e12,
    "mi300x": 430e12,
    "mps": 2e12,
}
"""FLOP/s that one GPU of a tier really gives."""

UNKNOWN_TIER_FLOPS = 20e12
"""For a tier of which nothing is known; low, so that the estimate is rather too long."""

LOW, HIGH = 0.5, 3.0
"""Factors of the range around the analytic value: padding, loading and saving are not in it."""

SECONDS_MAX = 2**31


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What is to be computed."""

    parameter_count: int
    train_tokens: int
    """Tokens of one pass over the training rows."""
    train_rows: int
    validation_rows: int
    total_steps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A range of running time and cost, and how it was found."""

    seconds_low: int
    seconds_high: int
    cost_low: Money
    cost_high: Money
    basis: str


def estimate(spec: JobSpec, work: Work, *, prices: Sequence[tuple[str, Money]]) -> Estimate:
    """Return the range over the tiers of ``prices``: tier and price of a GPU hour, at least one."""
    ranges = [(price, *_seconds(spec, work, tier)) for tier, price in prices]
    costs_low = [_cost(price, low, spec.gpus) for price, low, _ in ranges]
    costs_high = [_cost(price, high, spec.gpus) for price, _, high in ranges]
    return Estimate(
        seconds_low=min(low for _, low, _ in ranges),
        seconds_high=max(high for _, _, high in ranges),
        cost_low=min(costs_low),
        cost_high=max(costs_high),
        basis=_basis(spec, work, [tier for tier, _ in prices]),
    )


def operations(spec: JobSpec, work: Work) -> float:
    """Return the floating-point operations of training and of all evaluations."""
    tokens_per_row = work.train_tokens / max(1, work.train_rows)
    rows = (
        work.total_steps
        * spec.training.per_device_train_batch_size
        * spec.training.gradient_accumulation_steps
        * spec.gpus
    )
    evaluations = 0
    if work.validation_rows:
        # The base model is evaluated before the first step.
        evaluations = 1 + work.total_steps // spec.training.eval_steps
    trained = rows * tokens_per_row * FLOPS_PER_PARAMETER
    evaluated = evaluations * work.validation_rows * tokens_per_row * FLOPS_PER_PARAMETER_FORWARD
    return work.parameter_count * (trained + evaluated)


def _seconds(spec: JobSpec, work: Work, tier: str) -> tuple[int, int]:
    script = spec.script
    if script is not None:
        exact = script.total_steps * script.step_seconds
        exact += sum(step.sleep_seconds for step in script.steps.values())
        low = high = exact
    else:
        speed = EFFECTIVE_FLOPS.get(tier, UNKNOWN_TIER_FLOPS) * spec.gpus
        analytic = operations(spec, work) / speed
        low, high = analytic * LOW, analytic * HIGH
    return _whole(low), _whole(high)


def _whole(seconds: float) -> int:
    return min(max(1, math.ceil(seconds)), SECONDS_MAX)


def _cost(price: Money, seconds: int, gpus: int) -> Money:
    return Money(currency=price.currency, micros=cost_micros(seconds, gpus, price.micros))


def _basis(spec: JobSpec, work: Work, tiers: Sequence[str]) -> str:
    if spec.script is not None:
        return "scripted run: the sleeps of its steps"
    speeds = ", ".join(
        f"{tier} {EFFECTIVE_FLOPS.get(tier, UNKNOWN_TIER_FLOPS) / 1e9:,.0f} GFLOP/s"
        for tier in tiers
    )
    return (
        f"analytic: tokens x {FLOPS_PER_PARAMETER} x {work.parameter_count:,} parameters, "
        f"evaluations included, at {speeds} a GPU; range x{LOW:g} to x{HIGH:g}; not measured"
    )
