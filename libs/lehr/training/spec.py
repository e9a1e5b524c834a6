"""JobSpec: what a user asks for, field by field; the same model reads YAML, JSON and gRPC.

Hyperparameters keep the spelling of transformers, trl and peft. A default names its source.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field, field_validator, model_validator

from lehr.training.adapters import AnyAdapter
from lehr.training.adapters.base import AdapterSpec
from lehr.training.adapters.lora import LoraSpec
from lehr.training.methods import METHODS, AnyHyperparameters
from lehr.training.methods.base import Hyperparameters
from lehr.training.reports import Number
from lehr.training.section import Fraction, NotNegative, Positive, Reference, Section

Word = Annotated[str, Field(max_length=63)]
"""An id of a registry or a tier; whether there is such a one is looked up elsewhere."""

H = TypeVar("H", bound=Hyperparameters)
A = TypeVar("A", bound=AdapterSpec)

STEPS_MAX = 100_000_000
BACKUP_TIERS_MAX = 16


class TrainingSpec(Section):
    """Hyperparameters of the optimisation loop."""

    learning_rate: Positive = 2e-4
    """Peak learning rate (QLoRA, Dettmers et al. 2023, table 9: 2e-4 for adapters up to 13B)."""
    per_device_train_batch_size: int = Field(default=4, ge=1, le=4096)
    """Rows of one forward pass on one device."""
    per_device_eval_batch_size: int = Field(default=4, ge=1, le=4096)
    """Rows of one evaluation pass on one device."""
    gradient_accumulation_steps: int = Field(default=1, ge=1, le=4096)
    """Forward passes of one optimiser step."""
    num_train_epochs: Annotated[Positive, Field(le=100_000)] = 1.0
    """Passes over the training rows; ignored when ``max_steps`` is positive."""
    max_steps: int = Field(default=-1, ge=-1, le=STEPS_MAX)
    """Optimiser steps; -1 derives them from the epochs."""
    lr_scheduler_type: Literal["linear", "cosine", "constant", "constant_with_warmup"] = "linear"
    """Shape of the learning rate (transformers default)."""
    warmup_steps: int = Field(default=0, ge=0, le=STEPS_MAX)
    """Steps in which the learning rate rises from zero."""
    weight_decay: NotNegative = 0.0
    max_grad_norm: NotNegative = 1.0
    """Gradient norm above which gradients are scaled down; 0 turns clipping off."""
    optim: Literal["adamw_torch"] = "adamw_torch"
    seed: int = Field(default=42, ge=0, le=2**31 - 1)
    """Seed of initialisation, dropout and row order."""
    precision: Literal["fp32", "bf16"] = "fp32"
    gradient_checkpointing: bool = False
    eval_steps: int = Field(default=50, ge=1, le=STEPS_MAX)
    """Optimiser steps between two evaluations."""
    save_steps: int = Field(default=50, ge=1, le=STEPS_MAX)
    """Optimiser steps between two ordinary checkpoints."""

    @property
    def rows_per_step(self) -> int:
        """Rows of one optimiser step on one device."""
        return self.per_device_train_batch_size * self.gradient_accumulation_steps


class DataSpec(Section):
    """Which rows are used, and what happens to those that are too long."""

    max_length: int | None = Field(default=None, ge=8, le=10_000_000)
    """Tokens of a sample; None takes the recommendation that covers 95 % of the rows."""
    overlong: Literal["truncate", "drop"] = "truncate"
    """``truncate`` keeps the last ``max_length`` tokens, ``drop`` leaves the row out."""
    validation_split: Fraction | None = None
    """Share of the rows held out; None means 0.1 unless ``validation_dataset`` is given, 0 none."""
    validation_dataset: Reference | None = None
    """A dataset of validation rows, instead of a share."""
    split_seed: int = Field(default=42, ge=0, le=2**31 - 1)
    max_train_samples: int | None = Field(default=None, ge=1, le=2**31 - 1)
    """At most so many training rows, the first after the split; None for all."""
    max_eval_samples: int | None = Field(default=None, ge=1, le=2**31 - 1)
    """At most so many validation rows; None for all."""
    packing: bool = False
    """Put several samples into one row of ``max_length`` tokens; none of them sees another."""
    chat_template: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,62}$")] | None = None
    """A bundled template (``lehr.samples.templates``) in place of the model's own."""

    @model_validator(mode="after")
    def _one_source_of_validation(self) -> DataSpec:
        if self.validation_dataset is not None and self.validation_split:
            raise ValueError("give validation_split or validation_dataset, not both")
        return self

    @property
    def share(self) -> float:
        """The share held out, 0.0 to below 1.0, with the default resolved."""
        if self.validation_split is not None:
            return self.validation_split
        return 0.0 if self.validation_dataset is not None else 0.1


class EarlyStoppingSpec(Section):
    """When to stop because validation loss no longer falls."""

    patience: Literal[3, 4, 5] | None = 3
    """Evaluations in a row without a strictly lower loss; None never stops early."""

    @field_validator("patience", mode="before")
    @classmethod
    def _off(cls, value: object) -> object:
        # YAML 1.1 reads a bare `off` as false.
        return None if value is False or value == "off" else value


class CheckpointsSpec(Section):
    """What is kept."""

    max_checkpoints: int = Field(default=2, ge=1, le=1000)
    """Ordinary checkpoints kept; Best and final come on top and are never pruned."""


class ScriptedStep(Section):
    """One step of the scripted trainer."""

    loss: Number | None = None
    eval_loss: Number | None = None
    grad_norm: Number | None = None
    sleep_seconds: float = Field(default=0.0, ge=0.0, le=3600.0)
    print_bytes_base64: str | None = Field(default=None, pattern=r"^[A-Za-z0-9+/]*={0,2}$")
    """Bytes written to standard output before the step, in base64."""
    die: Literal["kill", "exit", "oom", "hang", "ignore_stop"] | None = None
    """How the process ends, hangs, or stops listening, at this step."""


class ScriptSpec(Section):
    """A run that computes nothing: the product's test support; refused in production mode."""

    total_steps: int = Field(default=10, ge=1, le=1_000_000)
    step_seconds: float = Field(default=0.0, ge=0.0, le=3600.0)
    start_seconds: float = Field(default=0.0, ge=0.0, le=3600.0)
    save_seconds: float = Field(default=0.0, ge=0.0, le=3600.0)
    checkpoint_bytes: int = Field(default=1024, ge=0, le=1_000_000_000)
    steps: dict[int, ScriptedStep] = Field(default={}, max_length=10_000)
    """What happens at given steps; others report a loss of 1 / step."""
    ignore_term: bool = False
    child_processes: int = Field(default=0, ge=0, le=64)


class JobSpec(Section):
    """One fine-tuning job as its user wrote it."""

    name: Annotated[str, Field(min_length=1, max_length=100)]
    """What people call it; any printable text."""
    model: Reference
    """Catalog name of the base model, with ``@revision`` to pin it."""
    dataset: Reference
    """Catalog name of the dataset, with ``@revision`` to pin it."""
    method: Word = "sft"
    """Training method, an id of ``lehr.training.methods.METHODS``."""
    hyperparameters: AnyHyperparameters | None = None
    """Those of the method; with every default. None where the method is unknown."""
    adapter: AnyAdapter = LoraSpec()
    tier: Word = "cpu"
    """GPU tier to run on."""
    backup_tiers: tuple[Word, ...] = Field(default=(), max_length=BACKUP_TIERS_MAX)
    """Tiers tried in this order when ``tier`` is not available."""
    backup_after_seconds: int = Field(default=15, ge=0, le=86_400)
    """How long each tier is waited for before the next one is tried too."""
    gpus: int = Field(default=1, ge=1, le=1024)
    """GPUs of one node."""
    priority: int = Field(default=0, ge=-100, le=100)
    """Higher runs earlier among the jobs of a project; ten minutes of waiting weigh as one."""
    training: TrainingSpec = TrainingSpec()
    data: DataSpec = DataSpec()
    early_stopping: EarlyStoppingSpec = EarlyStoppingSpec()
    checkpoints: CheckpointsSpec = CheckpointsSpec()
    script: ScriptSpec | None = None
    """Test support: run the scripted trainer instead of a real one."""

    @model_validator(mode="before")
    @classmethod
    def _complete(cls, values: Any) -> Any:
        """Say which adapter and method the fields belong to, and fill in the method's defaults."""
        if not isinstance(values, Mapping):
            return values
        told = dict(values)
        adapter = told.get("adapter", {})
        if isinstance(adapter, Mapping):
            adapter = told["adapter"] = {"type": "lora", **adapter}
        method_id = told.get("method", "sft")
        method = METHODS.get(method_id) if isinstance(method_id, str) else None
        if method is None:
            # The registry refuses it by name.
            told.pop("hyperparameters", None)
            return told
        own = told.get("hyperparameters") or {}
        if isinstance(own, Mapping):
            told["hyperparameters"] = {"type": method_id, **own}
        adapter_type = adapter["type"] if isinstance(adapter, Mapping) else adapter.type
        for section, defaults in method.defaults_for(adapter_type).items():
            given = told.get(section, {})
            if isinstance(given, Mapping):
                told[section] = {**defaults, **given}
        return told

    @model_validator(mode="after")
    def _of_its_method(self) -> JobSpec:
        if self.hyperparameters is not None and self.hyperparameters.type != self.method:
            raise ValueError(
                f"has hyperparameters of {self.hyperparameters.type}; leave their type out"
            )
        return self

    @field_validator("name")
    @classmethod
    def _printable(cls, value: str) -> str:
        if not value.isprintable():
            raise ValueError("holds control characters; use printable text")
        return value

    @field_validator("backup_tiers")
    @classmethod
    def _distinct(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(value)) != len(value):
            raise ValueError("names a tier twice")
        return value

    def hyperparameters_as(self, kind: type[H]) -> H:
        """Return the method's hyperparameters, which are known to be of ``kind``."""
        if not isinstance(self.hyperparameters, kind):
            raise TypeError(f"{self.method} has no {kind.__name__}")
        return self.hyperparameters

    def adapter_as(self, kind: type[A]) -> A:
        """Return the adapter's fields, which are known to be of ``kind``."""
        if not isinstance(self.adapter, kind):
            raise TypeError(f"{self.adapter.type} has no {kind.__name__}")
        return self.adapter

    @property
    def tiers(self) -> tuple[str, ...]:
        """The tier and its backups, in the order in which they are tried."""
        return (self.tier, *(tier for tier in self.backup_tiers if tier != self.tier))
