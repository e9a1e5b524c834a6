"""AdaLoRA: ranks are taken from where they matter least (Zhang et al. 2023), by peft."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers import TrainerCallback

from lehr.training.adapters.adalora import AdaloraSpec
from lehr.training.plan import TrainingPlan
from services.trainer_runner.trainer.adapters.base import Making, does_not_fit
from services.trainer_runner.trainer.adapters.tuners import NAME, TunerAdapter, trained_parameters

ALLOCATION = "allocation.safetensors"
"""What ranks are taken away by: importance of each value, and the values that are left."""

_AVERAGES = ("ipt", "exp_avg_ipt", "exp_avg_unc")
_LEFT = "left"


class AdaloraAdapter(TunerAdapter):
    """Saves all ranks, those that are masked too, for they may come back until the end."""

    def more_fields(self, base: Any, making: Making) -> Mapping[str, Any]:
        """Say how long training takes, which the budget goes by."""
        own = making.plan.spec.adapter_as(AdaloraSpec)
        ends = making.total_steps - own.tfinal
        if ends < max(2, own.tinit + 1):
            what = (
                f"ranks are taken away between step {own.tinit} (tinit) and step {ends}, which is "
                f"tfinal steps before the end; lower tinit or tfinal, or train longer"
            )
            raise does_not_fit(what, field="adapter.tfinal")
        return {"total_step": making.total_steps}

    def wrap(self, base: Any, making: Making) -> Any:
        """Return the base model with a new adapter, beside which frozen ones may be put."""
        model = super().wrap(base, making)

        def add_frozen(name: str, config: Any, **options: Any) -> None:
            # trl copies an adapter for a moment, and peft allows one that is trained.
            frozen = replace(config, inference_mode=True)
            type(model).add_adapter(model, name, frozen, **options)

        model.add_adapter = add_frozen
        return model

    def load(self, model: Any, folder: Path) -> None:
        """Load the adapter and what its ranks are taken away by."""
        super().load(model, folder)
        allocator = model.base_model.rankallocator
        left: dict[str, list[bool]] = {}
        for key, tensor in load_file(folder / ALLOCATION).items():
            kind, _, name = key.partition(":")
            if kind == _LEFT:
                left[name] = tensor.tolist()
            else:
                getattr(allocator, kind)[name] = tensor
        model.peft_config[NAME].rank_pattern = left or None

    def join(self, trainer: Any, making: Making) -> None:
        """Take ranks away after each step of the optimizer."""
        trainer.add_callback(_Budget(trainer.model))

    def save(self, model: Any, plan: TrainingPlan, folder: Path) -> None:
        """Write the adapter with all its ranks; peft would leave out those masked just now."""
        config = model.peft_config[NAME]
        left, config.rank_pattern = config.rank_pattern, None
        try:
            super().save(model, plan, folder)
        finally:
            config.rank_pattern = left
        tensors = {f"{_LEFT}:{name}": torch.tensor(kept) for name, kept in (left or {}).items()}
        for kind in _AVERAGES:
            averages = getattr(model.base_model.rankallocator, kind)
            tensors |= {f"{kind}:{name}": one.cpu() for name, one in averages.items()}
        save_file(tensors, folder / ALLOCATION)


class _Budget(TrainerCallback):  # type: ignore[misc]  # transformers is not typed here
    """Keeps factors orthogonal and ranks within the budget."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Add the gradient of the regulariser (equation 4), which no loss of a method holds."""
        weight = self._model.peft_config[NAME].orth_reg_weight
        if weight:
            (weight * _distance_from_orthogonal(self._model)).backward()

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Take ranks away; gradients are still there, and the step is not counted yet."""
        self._model.base_model.update_and_allocate(state.global_step + 1)


def _distance_from_orthogonal(model: Any) -> torch.Tensor:
    """Return the mean Frobenius norm of ``P P' - 1`` over all factors, as peft computes it."""
    factors = [
        one if "lora_A" in name else one.T
        for name, one in trained_parameters(model).items()
        if "lora_A" in name or "lora_B" in name
    ]
    norms = [
        torch.linalg.matrix_norm(one @ one.T - torch.eye(len(one), device=one.device))
        for one in factors
    ]
    return torch.stack(norms).mean()
