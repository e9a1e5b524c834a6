"""Adapters that learn what stands before each row: prompt tuning, prefix tuning and P-tuning."""

# B = rows of the batch, T = their positions, P = learnt positions, K = positions asked for

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from peft import PeftType
from safetensors.torch import load_file, save_file

from lehr.training.adapters.prompt_tuning import PromptTuningSpec
from lehr.training.plan import TrainingPlan
from services.trainer_runner.trainer.adapters.base import Making
from services.trainer_runner.trainer.adapters.tuners import NAME, TunerAdapter

ENCODER = "prompt_encoder.safetensors"
"""What is trained: peft saves what a small network makes of it, without the network."""


class PromptAdapter(TunerAdapter):
    """The model gives scores for the positions of the row only, as without the adapter."""

    def more_fields(self, base: Any, making: Making) -> Mapping[str, Any]:
        """Say where the tokenizer is that a text needs to begin with."""
        own = making.plan.spec.adapter
        if isinstance(own, PromptTuningSpec) and own.prompt_tuning_init == "TEXT":
            return {"tokenizer_name_or_path": str(making.plan.model_dir)}
        return {}

    def wrap(self, base: Any, making: Making) -> Any:
        """Return the base model with learnt positions, which its callers do not see."""
        model = super().wrap(base, making)
        config = model.peft_config[NAME]
        if config.peft_type != PeftType.PREFIX_TUNING:
            model.register_forward_pre_hook(_ask_for_later_positions, with_kwargs=True)
            model.register_forward_hook(_leave_out_learnt_positions, with_kwargs=True)
        return model

    def load(self, model: Any, folder: Path) -> None:
        """Load what is trained, from which follows what peft saves."""
        model.prompt_encoder[NAME].load_state_dict(load_file(folder / ENCODER))

    def save(self, model: Any, plan: TrainingPlan, folder: Path) -> None:
        """Write what peft loads, and what training goes on from."""
        was_training = model.training
        # Else a network with dropout would be saved as one of many.
        model.eval()
        super().save(model, plan, folder)
        model.train(was_training)
        encoder = model.prompt_encoder[NAME].state_dict()
        save_file({name: one.contiguous() for name, one in encoder.items()}, folder / ENCODER)
        if model.peft_config[NAME].to_dict().get("tokenizer_name_or_path"):
            self.rewrite_config(plan, folder, {"tokenizer_name_or_path": plan.model_name})


def _ask_for_later_positions(
    model: Any, given: tuple[Any, ...], named: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Shift positions K whose scores are asked for by the P that are learnt."""
    kept = named.get("logits_to_keep")
    if isinstance(kept, torch.Tensor):
        learnt = model.peft_config[NAME].num_virtual_tokens
        named = {**named, "logits_to_keep": kept + learnt}
    return given, named


def _leave_out_learnt_positions(
    model: Any, given: tuple[Any, ...], named: dict[str, Any], output: Any
) -> Any:
    """Cut scores of shape (B, P + T, V) to (B, T, V)."""
    asked = named.get("logits_to_keep", 0)
    is_whole = not isinstance(asked, torch.Tensor) and asked == 0
    if is_whole and getattr(output, "logits", None) is not None:
        output.logits = output.logits[:, model.peft_config[NAME].num_virtual_tokens :]
    return output
