"""Which method trains which adapter; the one place that every service asks. No torch here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from lehr.samples.rows import RowKind
from lehr.training.spec import JobSpec

Signal = Literal[
    "sft", "continued_pretraining", "preference", "unpaired", "reward_based", "stepwise"
]
"""What a method learns from: its kind, as far as data is concerned."""

ROW_KINDS: Mapping[Signal, tuple[RowKind, ...]] = {
    "sft": ("messages", "prompt_completion", "text"),
    "continued_pretraining": ("text",),
    "preference": ("preference",),
    # The two answers of a preference are a good and a bad one.
    "unpaired": ("unpaired_preference", "preference"),
    "reward_based": ("prompt_answer",),
    "stepwise": ("stepwise",),
}
"""Kinds of dataset rows that each kind of method takes, the usual one first."""

_TO_MAP: Mapping[RowKind, str] = {
    "messages": "messages",
    "prompt_completion": "prompt and completion",
    "text": "text",
    "preference": "chosen and rejected, and prompt where they do not hold it",
    "unpaired_preference": "prompt, completion and label",
    "prompt_answer": "prompt, and answer where there is one",
    "stepwise": "prompt, completions and labels",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """A way to train."""

    method_id: str
    title: str
    signal: Signal
    adapters: frozenset[str]
    source: str
    """Where its loss and defaults come from."""

    @property
    def row_kinds(self) -> tuple[RowKind, ...]:
        """Kinds of dataset rows that it learns from, the usual one first."""
        return ROW_KINDS[self.signal]


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
        signal="sft",
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
        found.append(Problem(field="dataset", description=_wrong_rows(method, row_kind)))
    return found


def _wrong_rows(method: Method, row_kind: str) -> str:
    kinds = " or ".join(method.row_kinds)
    maps = "; or ".join(_TO_MAP[kind] for kind in method.row_kinds)
    return (
        f"{method.method_id} needs {kinds} rows; this dataset has {row_kind} rows; "
        f"add it again with a column map of {maps}"
    )
