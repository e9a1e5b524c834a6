"""Which method trains which adapter; the one place that every service asks. No torch here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lehr.training.spec import JobSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """A way to train."""

    method_id: str
    title: str
    row_kinds: frozenset[str]
    """Kinds of dataset rows it learns from: ``messages``, ``prompt_completion``."""
    adapters: frozenset[str]
    source: str
    """Where its loss and defaults come from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapter:
    """What is trained of the base model."""

    adapter_id: str
    title: str
    trains_base_weights: bool
    source: str


METHODS: Mapping[str, Method] = {
    "sft": Method(
        method_id="sft",
        title="Supervised fine-tuning",
        row_kinds=frozenset({"messages", "prompt_completion"}),
        adapters=frozenset({"lora", "full"}),
        source="Ouyang et al. 2022, section 3.1; token cross-entropy on the answers only",
    ),
}

ADAPTERS: Mapping[str, Adapter] = {
    "lora": Adapter(
        adapter_id="lora",
        title="Low-rank adaptation",
        trains_base_weights=False,
        source="Hu et al. 2021, section 4.1; peft LoraConfig",
    ),
    "full": Adapter(
        adapter_id="full",
        title="All weights",
        trains_base_weights=True,
        source="every parameter of the base model is updated",
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Why a spec cannot run: the field and what to do about it."""

    field: str
    description: str


def problems(spec: JobSpec, *, row_kind: str | None = None) -> list[Problem]:
    """Say what the registry refuses in ``spec``; empty when it can run.

    ``row_kind`` is the kind of the dataset's rows where it is already known.
    """
    method = METHODS.get(spec.method)
    if method is None:
        known = ", ".join(sorted(METHODS))
        return [Problem(field="method", description=f"unknown method {spec.method!r}; use {known}")]
    found: list[Problem] = []
    if spec.adapter.type not in method.adapters:
        allowed = ", ".join(sorted(method.adapters))
        found.append(
            Problem(field="adapter.type", description=f"{spec.method} trains {allowed} only")
        )
    if row_kind is not None and row_kind not in method.row_kinds:
        kinds = " or ".join(sorted(method.row_kinds))
        found.append(
            Problem(
                field="dataset",
                description=f"{spec.method} needs {kinds} rows; this dataset has {row_kind} rows",
            )
        )
    return found
