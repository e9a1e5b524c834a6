"""IA3: activations are scaled by what is learnt."""

from __future__ import annotations

from typing import Literal

from pydantic import model_validator

from lehr.training.adapters.base import Adapter, Modules, TargetedSpec, Targets


class Ia3Spec(TargetedSpec):
    """Names of peft IA3Config; layers are named as Llama and its relatives do."""

    type: Literal["ia3"] = "ia3"
    target_modules: Targets = ("k_proj", "v_proj", "down_proj")
    """Layers whose activations are scaled: keys, values and the inner of the feed-forward part
    (Liu et al. 2022, section 3.3; peft's mapping for llama)."""
    feedforward_modules: Modules = ("down_proj",)
    """Those of ``target_modules`` whose input is scaled, not their output."""

    @model_validator(mode="after")
    def _among_the_targets(self) -> Ia3Spec:
        targets = self.target_modules
        others = () if isinstance(targets, str) else set(self.feedforward_modules) - set(targets)
        if others:
            told = ", ".join(sorted(others))
            raise ValueError(f"scales the input of {told}; name it in target_modules too")
        return self


ADAPTER = Adapter(
    adapter_id="ia3",
    title="Scaled activations",
    source="Liu et al. 2022, section 3.3; peft IA3Config",
    spec=Ia3Spec,
)
