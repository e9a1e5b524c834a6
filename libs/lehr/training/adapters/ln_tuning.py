"""LN tuning: the weights of normalisation layers are trained."""

from __future__ import annotations

from typing import Literal

from lehr.training.adapters.base import Adapter, TargetedSpec, Targets


class LnTuningSpec(TargetedSpec):
    """Names of peft LNTuningConfig; layers are named as Llama and its relatives do."""

    type: Literal["ln_tuning"] = "ln_tuning"
    target_modules: Targets = ("input_layernorm", "post_attention_layernorm", "norm")
    """Normalisation layers that are trained (peft's mapping for llama)."""


ADAPTER = Adapter(
    adapter_id="ln_tuning",
    title="Normalisation layers",
    source="Zhao et al. 2024; peft LNTuningConfig",
    spec=LnTuningSpec,
)
