"""May this job be queued, and what should a person know before it is: pure checks."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from lehr.errors import FieldViolation
from lehr.training.adapters.qlora import QloraSpec
from lehr.training.registry import problems
from lehr.training.spec import STEPS_MAX, JobSpec
from services.scheduler.domain.errors import JobRefused
from services.scheduler.domain.placement import Tier
from services.scheduler.domain.plan import Resolved, total_steps

GIB = 1024**3
WEIGHT_BYTES: Mapping[str, float] = {"fp32": 4, "bf16": 2}
PACKED_BYTES: Mapping[bool, float] = {False: 0.52, True: 1.0}
"""Of a weight of 4 bits with its packed scales (Dettmers et al. 2023, section 3: 0.127 bits), and
of one of 8 bits, by ``load_in_8bit``; embeddings, which are not packed, come on top."""
TRAINED_BYTES = 12
"""Of one trained parameter beside its weight: gradient and two AdamW moments in fp32."""
MASTER_BYTES = 4
"""Of the weight of a trained parameter, whatever the precision."""


def check_spec(spec: JobSpec, *, script_allowed: bool) -> None:
    """Refuse what is wrong whatever data, GPUs and prices there are.

    Raises:
        JobRefused: method and adapter do not fit, or a scripted run where none is allowed.
    """
    wrong = [FieldViolation(field=one.field, description=one.description) for one in problems(spec)]
    if spec.script is not None and not script_allowed:
        told = "scripted runs need an installation with test hooks; leave it out"
        wrong.append(FieldViolation(field="script", description=told))
    refuse(wrong)


def check_capacity(spec: JobSpec, tiers: Mapping[str, Tier]) -> None:
    """Refuse what no node could ever run.

    Raises:
        JobRefused: a tier that does not exist, or more GPUs than any node has.
    """
    wrong = [
        one for field, name in _named_tiers(spec) for one in _impossible(field, name, spec, tiers)
    ]
    if not wrong and not any(tiers[name].node_count_max for name in spec.tiers):
        having = ", ".join(sorted(one.tier for one in tiers.values() if one.node_count_max))
        told = f"no node with {' or '.join(spec.tiers)} is connected; use {having or 'another'}"
        wrong.append(FieldViolation(field="tier", description=told))
    refuse(wrong)


def check_rows(spec: JobSpec, resolved: Resolved) -> None:
    """Refuse an empty training or validation set, and rows that the method cannot learn from.

    Raises:
        JobRefused: with the counts.
    """
    wrong = [
        FieldViolation(field=one.field, description=one.description)
        for one in problems(spec, row_kind=resolved.row_kind)
    ]
    data = resolved.data
    left_out = (
        f"{data.dropped_count} of {data.row_count} rows are longer than {data.max_length} tokens "
        f"and dropped, {data.untrainable_count} hold nothing to train"
    )
    if data.train_count == 0:
        told = f"no training rows are left: {left_out}; use truncate, or a larger max_length"
        wrong.append(FieldViolation(field="data", description=told))
    elif total_steps(spec, resolved.data, row_kind=resolved.row_kind) > STEPS_MAX:
        told = f"would take more than {STEPS_MAX} optimiser steps; lower it, or give max_steps"
        wrong.append(FieldViolation(field="training.num_train_epochs", description=told))
    elif data.validation_count == 0 and (spec.data.share > 0 or spec.data.validation_dataset):
        told = (
            f"no validation rows are left beside {data.train_count} training rows: {left_out}; "
            "add rows, or turn validation off with validation_split 0"
        )
        field = "data.validation_dataset" if spec.data.validation_dataset else "data"
        wrong.append(FieldViolation(field=field, description=told))
    refuse(wrong)


def warnings_of(spec: JobSpec, resolved: Resolved, tiers: Mapping[str, Tier]) -> list[str]:
    """Return what a person should know before launching; ``spec`` as it was asked for."""
    return [
        *resolved.warnings,
        *_row_warnings(resolved),
        *_schedule_warnings(spec, resolved),
        *_tier_warnings(spec, resolved, tiers),
    ]


def refuse(wrong: Sequence[FieldViolation]) -> None:
    """Raise JobRefused if anything is wrong."""
    if wrong:
        told = "; ".join(f"{one.field}: {one.description}" for one in wrong)
        raise JobRefused(f"the job cannot run as it is asked for: {told}", fields=wrong)


def _named_tiers(spec: JobSpec) -> list[tuple[str, str]]:
    backups = [(f"backup_tiers.{index}", name) for index, name in enumerate(spec.backup_tiers)]
    return [("tier", spec.tier), *backups]


def _impossible(
    field: str, name: str, spec: JobSpec, tiers: Mapping[str, Tier]
) -> Iterator[FieldViolation]:
    tier = tiers.get(name)
    if tier is None:
        told = f"there is no tier {name!r}"
        if name == next(one for one in spec.tiers if one not in tiers):
            # Once, however many are unknown.
            told += f"; use one of {', '.join(sorted(tiers)) or 'none yet'}"
        yield FieldViolation(field=field, description=told)
    elif 0 < tier.node_count_max < spec.gpus:
        told = (
            f"{spec.gpus} GPUs of one node are asked for, and no node has more than "
            f"{tier.node_count_max} {name}; lower it"
        )
        yield FieldViolation(field="gpus" if field == "tier" else field, description=told)


def _row_warnings(resolved: Resolved) -> list[str]:
    data = resolved.data
    counts = (
        (data.truncated_count, f"keep only their last {data.max_length} tokens"),
        (data.dropped_count, f"are longer than {data.max_length} tokens and left out"),
        (data.untrainable_count, "are left out because nothing in them would be trained"),
    )
    return [f"{count} of {data.row_count} rows {told}" for count, told in counts if count]


def _schedule_warnings(spec: JobSpec, resolved: Resolved) -> list[str]:
    found = []
    steps = total_steps(spec, resolved.data, row_kind=resolved.row_kind)
    if not resolved.data.validation_count and spec.script is None:
        found.append("early stopping is off and no Best is chosen, because there is no validation")
    elif spec.training.eval_steps > steps:
        found.append(
            f"validation runs every {spec.training.eval_steps} steps and the job has {steps}, so "
            "early stopping cannot act; lower training.eval_steps"
        )
    if spec.training.save_steps > steps:
        found.append(
            f"checkpoints are saved every {spec.training.save_steps} steps and the job has "
            f"{steps}: if it is stopped, only what is saved at the stop can be resumed"
        )
    return found


def _tier_warnings(spec: JobSpec, resolved: Resolved, tiers: Mapping[str, Tier]) -> list[str]:
    found = []
    needed = _memory_bytes(spec, resolved.parameter_count)
    for name in spec.tiers:
        tier = tiers[name]
        if not tier.node_count_max:
            found.append(f"no node with {name} is connected at present")
        if tier.memory_bytes and needed > tier.memory_bytes and spec.script is None:
            found.append(
                f"{name} has {tier.memory_bytes / GIB:.0f} GiB a GPU and weights and optimiser "
                f"alone need about {needed / GIB:.0f} GiB; it may run out of memory"
            )
    return found


def _memory_bytes(spec: JobSpec, parameter_count: int) -> int:
    """Return what weights, gradients and optimiser need at least; activations come on top."""
    a_weight = WEIGHT_BYTES[spec.training.precision]
    match spec.adapter.type:
        case "full":
            return parameter_count * (MASTER_BYTES + TRAINED_BYTES)
        case "qlora":
            a_weight = PACKED_BYTES[spec.adapter_as(QloraSpec).load_in_8bit]
        # What freeze trains depends on the model's layers; its weights are in any case there.
    return math.ceil(parameter_count * a_weight)
