"""FourierFT: the update is learnt as few frequencies."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from lehr.training.adapters.base import Adapter, TargetedSpec
from lehr.training.section import Positive


class FourierftSpec(TargetedSpec):
    """Names and defaults of peft FourierFTConfig."""

    type: Literal["fourierft"] = "fourierft"
    n_frequency: int = Field(default=1000, ge=1, le=100_000_000)
    """Frequencies of a layer, at most its inputs times its outputs."""
    scaling: Positive = 150.0
    """Scale of the update."""
    random_loc_seed: int = Field(default=777, ge=0, le=2**31 - 1)
    """Seed of which frequencies are learnt."""


ADAPTER = Adapter(
    adapter_id="fourierft",
    title="Fourier fine-tuning",
    source="Gao et al. 2024; peft FourierFTConfig",
    spec=FourierftSpec,
)
