"""What a training method is, as far as everything but the trainer is concerned. No torch here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from lehr.samples.rows import RowKind
from lehr.training.adapters import ADAPTERS
from lehr.training.section import Section

Signal = Literal[
    "sft", "continued_pretraining", "preference", "unpaired", "reward_based", "prompts", "stepwise"
]
"""What a method learns from: its kind, as far as data is concerned."""

ROW_KINDS: Mapping[Signal, tuple[RowKind, ...]] = {
    "sft": ("messages", "prompt_completion", "text"),
    "continued_pretraining": ("text",),
    "preference": ("preference",),
    # The two answers of a preference are a good and a bad one.
    "unpaired": ("unpaired_preference", "preference"),
    "reward_based": ("prompt_answer",),
    "prompts": ("prompt_answer",),
    "stepwise": ("stepwise",),
}
"""Kinds of dataset rows that each kind of method takes, the usual one first."""

Head = Literal["causal_lm", "sequence_classification"]
"""What stands on the base model: its vocabulary, or one score for the whole text."""

Defaults = Mapping[str, Mapping[str, Any]]
"""Values by section of a job and field, such as ``{"training": {"learning_rate": 5e-6}}``."""


class Hyperparameters(Section):
    """What a method has beside the optimisation loop; subclasses fix ``type`` to their method."""

    type: str

    @property
    def other_models(self) -> tuple[str, ...]:
        """Catalog references of models that the run needs beside the base model."""
        return ()

    @property
    def answers_per_step_min(self) -> int:
        """The fewest rows of an optimiser step from which the loss can be computed."""
        return 1

    @property
    def rows_per_prompt(self) -> int:
        """Rows of batches that one prompt makes; an optimiser step holds all of them."""
        return 1

    def rows_per_epoch(self, rows: int, *, rows_per_step: int) -> int:
        """Return the rows of batches of one pass over ``rows``, of which some may come back."""
        del rows_per_step
        return rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """A way to train."""

    method_id: str
    title: str
    signal: Signal
    source: str
    """Where its loss and defaults come from."""
    hyperparameters: type[Hyperparameters] = Hyperparameters
    defaults: Defaults = field(default_factory=dict)
    """What differs from the defaults of the spec's sections, for adapters."""
    full_defaults: Defaults = field(default_factory=dict)
    """The same for the training of all weights, on top of ``defaults``."""
    head: Head = "causal_lm"
    packs: bool = False
    """Whether several samples may share a row."""

    @property
    def row_kinds(self) -> tuple[RowKind, ...]:
        """Kinds of dataset rows that it learns from, the usual one first."""
        return ROW_KINDS[self.signal]

    def batch_rows(self, row_kind: str, own: Hyperparameters | None) -> int:
        """Return how many rows of a batch one row of a dataset makes.

        Methods that look at answers one by one take a preference apart; ``own`` are the method's
        hyperparameters, of which some say how many answers a prompt is given.
        """
        if self.signal == "unpaired" and row_kind == "preference":
            return 2
        return 1 if own is None else own.rows_per_prompt

    def defaults_for(self, adapter_type: str) -> Defaults:
        """Return its own defaults, by section and field."""
        adapter = ADAPTERS.get(adapter_type)
        if adapter is None or not adapter.trains_base_weights:
            return self.defaults
        sections = {**self.defaults, **self.full_defaults}
        return {
            name: {**self.defaults.get(name, {}), **self.full_defaults.get(name, {})}
            for name in sections
        }
