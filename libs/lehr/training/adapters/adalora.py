"""AdaLoRA: low-rank updates whose ranks move to where they matter."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from lehr.training.adapters.base import Adapter, Rank, TargetedSpec
from lehr.training.section import Fraction, NotNegative

Steps = Annotated[int, Field(ge=0, le=100_000_000)]
Smoothing = Annotated[float, Field(gt=0.0, lt=1.0)]


class AdaloraSpec(TargetedSpec):
    """Names and defaults of peft AdaLoraConfig."""

    type: Literal["adalora"] = "adalora"
    init_r: Rank = 12
    """Rank of every update at the beginning."""
    target_r: Rank = 8
    """Mean rank at the end; less than ``init_r``."""
    lora_alpha: int = Field(default=8, ge=1, le=4096)
    """Scale of the update, divided by its rank."""
    lora_dropout: Fraction = 0.0
    """Dropout before the update."""
    tinit: Steps = 0
    """Steps before ranks are taken away (Zhang et al. 2023, equation 12)."""
    tfinal: Steps = 0
    """Last steps, in which ranks stay as they are."""
    deltaT: Steps = Field(default=1, ge=1)  # noqa: N815 - peft's spelling
    """Steps between two changes of ranks."""
    beta1: Smoothing = 0.85
    """Smoothing of the importance (equation 8)."""
    beta2: Smoothing = 0.85
    """Smoothing of its uncertainty (equation 9)."""
    orth_reg_weight: NotNegative = 0.5
    """Weight of how far the factors are from orthogonal (equation 4)."""

    @model_validator(mode="after")
    def _ranks_fall(self) -> AdaloraSpec:
        if self.target_r >= self.init_r:
            raise ValueError("has no rank to give away; set init_r above target_r")
        return self


ADAPTER = Adapter(
    adapter_id="adalora",
    title="Low-rank adaptation with a budget",
    source="Zhang et al. 2023, algorithm 1; peft AdaLoraConfig",
    spec=AdaloraSpec,
)
