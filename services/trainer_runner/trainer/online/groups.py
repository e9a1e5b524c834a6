"""What GRPO and RLOO share: groups of completions, and trl's losses of clipped ratios."""

# R = rows, which are completions, C = tokens of the longest of them

from __future__ import annotations

from typing import Any

import torch
from transformers import Trainer
from trl.trainer.utils import add_fused_lm_head, disable_dropout_in_model

from lehr.training.methods.online import GroupedHyperparameters
from services.trainer_runner.trainer.data.batches import Batch
from services.trainer_runner.trainer.logps import refuse_trained_head
from services.trainer_runner.trainer.loop import (
    Mean,
    Means,
    Setting,
    arguments,
    stand_ins,
    told_by_trl,
)
from services.trainer_runner.trainer.online.loop import RewardedLoop
from services.trainer_runner.trainer.own import has_adapter

#: What trl counts of a pass that is no mean over its tokens.
_NOT_MEANS = frozenset({"clip_ratio/low_min", "clip_ratio/high_max", "step_time", "entropy_coef"})


class GroupTrainer(RewardedLoop):
    """Mixed into trl's trainer, of which the loss is used; completions and rewards are ours."""

    own: GroupedHyperparameters
    accelerator: Any
    current_gradient_accumulation_steps: int
    _metrics: Any

    def begin_with(self, setting: Setting, config: Any, **options: Any) -> None:
        """Begin with trl's configuration class and the options that belong to the loss."""
        refuse_trained_head(setting.model)
        self.begin(setting)
        own = self.own
        given = stand_ins({"prompt": [""]})
        del given["data_collator"]
        super().__init__(  # type: ignore[call-arg]  # of trl's trainer
            model=setting.model,
            reward_funcs=_no_reward,
            args=config(
                **arguments(setting),
                num_generations=own.num_generations,
                max_completion_length=own.max_completion_length,
                temperature=own.temperature,
                num_iterations=own.num_iterations,
                epsilon=own.epsilon,
                epsilon_high=own.epsilon_high,
                disable_dropout=True,
                # Completions are compared with the reference by us; trl would load one by the
                # place that the model came from, which after a resume is the checkpoint.
                beta=0.0,
                sync_ref_model=False,
                use_vllm=False,
                log_completions=False,
                **options,
            ),
            **given,
        )
        self.own_loop()
        # Passes of a step are cut by us.
        self.args.steps_per_generation = 1
        self.load_judge()
        self.reference = self._reference() if own.beta else None

    def _reference(self) -> Any:
        """Return the model that is compared with: None where it is the base of an adapter."""
        if has_adapter(self.model):
            return None
        model = self.setting.reference()
        disable_dropout_in_model(model)
        add_fused_lm_head(model, temperature=self.own.temperature)
        return self.accelerator.prepare_model(model, evaluation_mode=True)

    def _prepare_inputs(self, inputs: Batch) -> Batch:
        """Move a batch to the device, which is all: it is written and scored already."""
        moved: Batch = Trainer._prepare_inputs(self, inputs)
        return moved

    def completion_logps(self, model: Any, batch: Batch) -> torch.Tensor:
        """Return log-probabilities of completion tokens, shape (R, C), a pass at a time."""
        ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1)
        mask = torch.cat([batch["prompt_mask"], batch["completion_mask"]], dim=1)
        size = self.setting.plan.spec.training.per_device_train_batch_size
        logps, _, _ = self._get_per_token_logps_and_entropies(  # type: ignore[attr-defined]
            model, ids, mask, batch["completion_ids"].shape[1], batch_size=size
        )
        found: torch.Tensor = logps
        return found

    def reference_logps(self, batch: Batch) -> torch.Tensor:
        """Return what the base model gives to the same tokens, shape (R, C)."""
        if self.reference is not None:
            return self.completion_logps(self.reference, batch)
        with self.model.disable_adapter():
            return self.completion_logps(self.model, batch)

    def pass_loss(self, model: Any, batch: Batch) -> tuple[torch.Tensor, dict[str, float]]:
        """Return trl's loss of one pass, as if it were the whole step, and what trl charts."""
        kept = self.current_gradient_accumulation_steps
        self.current_gradient_accumulation_steps = 1
        try:
            loss = self._compute_loss(model, batch)  # type: ignore[attr-defined]
        finally:
            self.current_gradient_accumulation_steps = kept
        values = told_by_trl(self, but=_NOT_MEANS)
        return loss, values


def weighed(values: dict[str, float], weight: float) -> Means:
    """Return means over something else than the terms of a pass; none over nothing."""
    return {name: Mean(value, weight) for name, value in values.items()} if weight else {}


def _no_reward(completions: Any, **_: Any) -> list[float]:
    raise AssertionError("completions are scored by us")
