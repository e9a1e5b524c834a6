"""What does not go together in a spec: methods, adapters and how they are trained. No torch here.

Every refusal says why, and what comes nearest.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from lehr.training.adapters import ADAPTERS
from lehr.training.adapters.base import Adapter
from lehr.training.adapters.lora import LoraSpec
from lehr.training.methods.base import Method
from lehr.training.spec import JobSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Why a spec cannot run: the field and what to do about it."""

    field: str
    description: str


def combination_problems(spec: JobSpec, method: Method) -> list[Problem]:
    """Say which parts of ``spec``, whose method is known, cannot be had together."""
    adapter = ADAPTERS[spec.adapter.type]
    found = (rule(spec, method, adapter) for rule in _RULES)
    return [problem for problem in found if problem is not None]


def _new_head(spec: JobSpec, method: Method, adapter: Adapter) -> Problem | None:
    if method.head == "causal_lm" or adapter.trains_head:
        return None
    told = (
        f"{spec.method} trains a new head, which {adapter.adapter_id} neither trains nor saves; "
        "use lora"
    )
    return Problem(field="adapter.type", description=told)


def _packed_prompt(spec: JobSpec, method: Method, adapter: Adapter) -> Problem | None:
    if not (spec.data.packing and adapter.learns_prompt):
        return None
    told = (
        f"{adapter.adapter_id} puts what it learns before a row once, and of several samples in a "
        "row only the first would follow it; leave packing out, or use lora"
    )
    return Problem(field="data.packing", description=told)


def _recomputed_prefix(spec: JobSpec, method: Method, adapter: Adapter) -> Problem | None:
    if not (spec.training.gradient_checkpointing and adapter.adapter_id == "prefix_tuning"):
        return None
    told = (
        "prefix_tuning hands keys and values to each layer, which are lost where layers are "
        "computed again; turn it off, or use prompt_tuning"
    )
    return Problem(field="training.gradient_checkpointing", description=told)


def _kept_base(spec: JobSpec, method: Method, adapter: Adapter) -> Problem | None:
    own = spec.adapter
    if not (isinstance(own, LoraSpec) and own.init_lora_weights == "loftq"):
        return None
    told = (
        "loftq needs a CUDA GPU, and trains beside rounded weights that are no base model's, so "
        "its result would not fit the model that it names; use pissa, or the adapter qlora"
    )
    return Problem(field="adapter.init_lora_weights", description=told)


_RULES: tuple[Callable[[JobSpec, Method, Adapter], Problem | None], ...] = (
    _new_head,
    _packed_prompt,
    _recomputed_prefix,
    _kept_base,
)
