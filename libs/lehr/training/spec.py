"""JobSpec: what a user asks for, field by field; the same model reads YAML, JSON and gRPC.

Hyperparameters keep the spelling of transformers, trl and peft. A default names its source.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationInfo,
    field_validator,
    model_validator,
)

from lehr.training.reports import Number

Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,62}$")]
Reference = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,62}(@[0-9a-f]{12,64})?$")]
Fraction = Annotated[float, Field(ge=0.0, lt=1.0, allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0.0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0.0, allow_inf_nan=False)]
Word = Annotated[str, Field(max_length=63)]
"""An id of a registry or a tier; whether there is such a one is looked up elsewhere."""

STEPS_MAX = 100_000_000
TARGET_MODULES_MAX = 64
BACKUP_TIERS_MAX = 16


class Section(BaseModel):
    """A part of a spec: frozen, and an unknown field is a mistake."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @field_validator("*", mode="before")
    @classmethod
    def _no_truth_for_a_number(cls, value: object, info: ValidationInfo) -> object:
        # A bare `yes` in YAML is true, which Python would take for 1.
        field = cls.model_fields[str(info.field_name)]
        if isinstance(value, bool) and field.annotation is not bool:
            raise ValueError("is not yes or no; write the value, in quotes if it is text")
        return value


class AdapterSpec(Section):
    """How many of the model's parameters are trained, and through what."""

    type: Literal["lora", "full"] = "lora"
    r: int = Field(default=8, ge=1, le=1024)
    """Rank of the update matrices (peft LoraConfig default)."""
    lora_alpha: int = Field(default=16, ge=1, le=4096)
    """Scale of the update, divided by ``r``."""
    lora_dropout: Fraction = 0.0
    """Dropout before the update (peft LoraConfig default)."""
    target_modules: str | tuple[str, ...] = "all-linear"
    """Names of the layers that get an update, or ``all-linear``."""

    @field_validator("target_modules")
    @classmethod
    def _few_printable_names(cls, value: str | tuple[str, ...]) -> str | tuple[str, ...]:
        names = (value,) if isinstance(value, str) else value
        if len(names) > TARGET_MODULES_MAX:
            raise ValueError(f"names {len(names)} layers; name at most {TARGET_MODULES_MAX}")
        if not all(len(name) <= 200 and name.isprintable() for name in names):
            raise ValueError("holds a name that is not printable or has over 200 characters")
        return value


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
    """Training method, an id of ``lehr.training.registry.METHODS``."""
    adapter: AdapterSpec = AdapterSpec()
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

    @property
    def tiers(self) -> tuple[str, ...]:
        """The tier and its backups, in the order in which they are tried."""
        return (self.tier, *(tier for tier in self.backup_tiers if tier != self.tier))
