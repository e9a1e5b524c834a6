"""LoRA: low-rank updates beside frozen weights."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from lehr.training.adapters.base import Adapter, Modules, TargetedSpec
from lehr.training.section import Fraction

Pattern = Annotated[dict[Annotated[str, Field(max_length=200)], int], Field(max_length=64)]
"""Values of the layers whose names end so."""


class LowRankSpec(TargetedSpec):
    """Names and defaults of peft LoraConfig, for base models of any precision."""

    r: int = Field(default=8, ge=1, le=1024)
    """Rank of the update matrices (peft LoraConfig default)."""
    lora_alpha: int = Field(default=16, ge=1, le=4096)
    """Scale of the update, divided by ``r``."""
    lora_dropout: Fraction = 0.0
    """Dropout before the update (peft LoraConfig default)."""
    use_rslora: bool = False
    """Divide by the root of ``r`` instead (Kalajdzievski 2023; peft default is no)."""
    use_dora: bool = False
    """Learn length and direction apart (DoRA, Liu et al. 2024; peft default is no)."""
    rank_pattern: Pattern = Field(default_factory=dict)
    """Other ranks for some layers, by the end of their names."""
    alpha_pattern: Pattern = Field(default_factory=dict)
    """Other values of ``lora_alpha`` for some layers."""
    modules_to_save: Modules = ()
    """Parts of the model that are trained whole and saved beside the update."""
    loraplus_lr_ratio: float | None = Field(default=None, ge=1.0, le=1000.0)
    """Times that B learns faster than A: LoRA+ (Hayou et al. 2024, who find 16 good); None is plain
    LoRA."""

    @model_validator(mode="after")
    def _patterns_are_ranks(self) -> LowRankSpec:
        for name, pattern, most in (
            ("rank_pattern", self.rank_pattern, 1024),
            ("alpha_pattern", self.alpha_pattern, 4096),
        ):
            if not all(1 <= value <= most for value in pattern.values()):
                raise ValueError(f"has a value in {name} that is not 1 to {most}")
        return self


class LoraSpec(LowRankSpec):
    """Names and defaults of peft LoraConfig."""

    type: Literal["lora"] = "lora"
    init_lora_weights: Literal[True, "gaussian", "orthogonal", "pissa", "olora", "eva", "loftq"] = (
        True
    )
    """How A and B begin: ``true`` random and zero (peft default); ``pissa`` and ``olora`` with the
    main part of the weight, ``eva`` with the main directions of the layer's input."""

    @model_validator(mode="after")
    def _init_goes_with_the_rest(self) -> LoraSpec:
        ranks = (self.r, *self.rank_pattern.values())
        if self.init_lora_weights == "orthogonal" and any(rank % 2 for rank in ranks):
            raise ValueError("has an odd rank, which orthogonal cannot halve; use an even one")
        if self.init_lora_weights == "eva" and (self.rank_pattern or self.alpha_pattern):
            raise ValueError("leaves ranks to eva; leave rank_pattern and alpha_pattern out")
        if self.init_lora_weights in ("pissa", "olora") and (self.use_dora or self.modules_to_save):
            raise ValueError(
                "takes a part of the weights over with init_lora_weights pissa or olora, which "
                "use_dora and modules_to_save do not go with; leave one of them out"
            )
        return self


ADAPTER = Adapter(
    adapter_id="lora",
    title="Low-rank adaptation",
    source="Hu et al. 2021, section 4.1; peft LoraConfig",
    spec=LoraSpec,
)
