"""A plan: everything that will happen, frozen under a digest."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from lehr.money import Money
from lehr.training.canonical import canonical_json, digest_of, spec_json
from lehr.training.methods import METHODS
from lehr.training.spec import JobSpec
from lehr.training.steps import count_steps
from services.scheduler.domain.errors import PriceChanged
from services.scheduler.domain.estimate import Estimate, Work, estimate
from services.scheduler.domain.job import Inputs


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFacts:
    """Exact numbers of the rows that a job trains on."""

    row_count: int
    train_count: int
    validation_count: int
    longest_tokens: int
    max_length: int
    truncated_count: int
    dropped_count: int
    untrainable_count: int
    token_count: int
    trained_token_count: int
    packed_row_count: int = 0
    """Rows that the training samples are packed into; 0 where each has a row of its own."""

    @property
    def batch_row_count(self) -> int:
        """Rows of one pass over the training samples."""
        return self.packed_row_count or self.train_count


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """What the catalog found for a spec."""

    inputs: Inputs
    row_kind: str
    parameter_count: int
    data: DataFacts
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """One tier of a plan with its price."""

    tier: str
    price: Money
    """Of one GPU for one hour."""
    memory_bytes: int
    free_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What CreateJob launches."""

    plan_digest: str
    tenant: str
    project: str
    spec: JobSpec
    inputs: Inputs
    data: DataFacts
    total_steps: int
    offers: tuple[Offer, ...]
    estimate: Estimate
    destination: str
    not_done: tuple[str, ...]
    warnings: tuple[str, ...]
    create_time: datetime
    expire_time: datetime

    @property
    def currency(self) -> str:
        """The currency of its prices."""
        return self.offers[0].price.currency

    def check_prices(self, prices: Mapping[str, Money]) -> None:
        """Raise PriceChanged unless these are the prices that the plan shows."""
        shown = {one.tier: one.price for one in self.offers}
        changed = {tier: price for tier, price in prices.items() if price != shown.get(tier, price)}
        if changed:
            raise PriceChanged(self.plan_digest, shown=shown, now=changed)


def total_steps(spec: JobSpec, data: DataFacts, *, row_kind: str = "") -> int:
    """Return the optimiser steps of the whole schedule; each GPU gets its share of the rows."""
    if spec.script is not None:
        return spec.script.total_steps
    if not data.batch_row_count:
        return 0
    method = METHODS.get(spec.method)
    own, rows = spec.hyperparameters, data.batch_row_count
    if method is not None:
        rows *= method.batch_rows(row_kind, own)
    if own is not None:
        rows = own.rows_per_epoch(rows, rows_per_step=spec.training.rows_per_step)
    return count_steps(math.ceil(rows / spec.gpus), spec.training).total


NOT_DONE = (
    "the result is not published and not deployed",
    "the base model is not changed",
    "the training data is not kept in the checkpoints",
)


def resolve_spec(spec: JobSpec, data: DataFacts) -> JobSpec:
    """Return the spec with every default made explicit, as the trainer will read it."""
    rows = spec.data.model_copy(
        update={"max_length": data.max_length, "validation_split": spec.data.share}
    )
    stopping = spec.early_stopping
    if not data.validation_count and spec.script is None:
        stopping = stopping.model_copy(update={"patience": None})
    return spec.model_copy(update={"data": rows, "early_stopping": stopping})


def make_plan(
    spec: JobSpec,
    resolved: Resolved,
    *,
    owner: tuple[str, str],
    offers: Sequence[Offer],
    warnings: Sequence[str],
    times: tuple[datetime, datetime],
) -> Plan:
    """Freeze a plan; ``owner`` is tenant and project, ``times`` when it is made and expires."""
    steps = total_steps(spec, resolved.data, row_kind=resolved.row_kind)
    work = Work(
        parameter_count=resolved.parameter_count,
        train_tokens=resolved.data.token_count,
        train_rows=resolved.data.train_count,
        validation_rows=resolved.data.validation_count,
        total_steps=steps,
    )
    tenant, project = owner
    return Plan(
        plan_digest=_digest(spec, resolved, offers=offers, owner=owner),
        tenant=tenant,
        project=project,
        spec=spec,
        inputs=resolved.inputs,
        data=resolved.data,
        total_steps=steps,
        offers=tuple(offers),
        estimate=estimate(spec, work, prices=[(one.tier, one.price) for one in offers]),
        destination=f"checkpoints of the job in project {project}, in this installation's storage",
        not_done=NOT_DONE,
        warnings=tuple(warnings),
        create_time=times[0],
        expire_time=times[1],
    )


def _digest(
    spec: JobSpec, resolved: Resolved, *, offers: Sequence[Offer], owner: tuple[str, str]
) -> str:
    """Cover what will happen and what it costs, and nothing that changes by the minute."""
    inputs = resolved.inputs
    content: dict[str, Any] = {
        "owner": list(owner),
        "spec": spec_json(spec),
        "model": [inputs.model_id, inputs.model_revision],
        "dataset": [inputs.dataset_id, inputs.dataset_revision],
        "validation": [inputs.validation_dataset_id, inputs.validation_revision],
        "rows": [resolved.data.train_count, resolved.data.validation_count],
        "prices": [[one.tier, one.price.currency, one.price.micros] for one in offers],
    }
    return digest_of(canonical_json(content))
