"""Kahneman-Tversky optimisation (Ethayarajh et al. 2024, equation 7), by trl.

The loss compares each answer with how far the model as a whole has moved from the reference, z.
The paper estimates z from prompts with the answers of other rows of the batch. A batch is an
optimiser step here: z is computed before the first pass of a step and holds for all of them, so it
does not depend on how a step is cut into passes. For an evaluation the batch is all rows held out.
Where that is a single row, which has no other, z is 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from trl import KTOConfig, KTOTrainer

from lehr.training.methods.kto import KtoHyperparameters
from services.trainer_runner.course import Evaluation
from services.trainer_runner.trainer.data.batches import Batch
from services.trainer_runner.trainer.data.unpaired import StepBatches
from services.trainer_runner.trainer.logps import refuse_trained_head
from services.trainer_runner.trainer.loop import Means, Setting, arguments, stand_ins, told_by_trl
from services.trainer_runner.trainer.own import reference_of
from services.trainer_runner.trainer.unpaired import AnswerLoop, by_side

#: What trl counts or derives that the loop does itself.
_OURS = frozenset({"num_tokens", "rewards/margins"})


class KahnemanTverskyTrainer(AnswerLoop, KTOTrainer):  # type: ignore[misc]  # trl is not typed here
    """Raises good answers and lowers bad ones against a reference, which is the base model."""

    def __init__(self, setting: Setting) -> None:
        refuse_trained_head(setting.model)
        self.begin(setting)
        own = setting.plan.spec.hyperparameters_as(KtoHyperparameters)
        training = setting.plan.spec.training
        self.gives_others = own.loss_type == "kto"
        if self.gives_others:
            self.batches = StepBatches(
                setting.row_count,
                batch_size=training.per_device_train_batch_size,
                batches_per_step=training.gradient_accumulation_steps,
                seed=training.seed,
            )
        reference = reference_of(setting)
        told = arguments(setting)
        # Rows come from our own batches; trl, whose batch is a pass, would refuse passes of one.
        told["per_device_train_batch_size"] = max(training.per_device_train_batch_size, 2)
        super().__init__(
            model=setting.model,
            ref_model=reference,
            args=KTOConfig(
                **told,
                trust_remote_code=False,
                max_length=None,
                precompute_ref_log_probs=False,
                disable_dropout=True,
                train_sampling_strategy="sequential",
                loss_type=own.loss_type,
                beta=own.beta,
                desirable_weight=own.desirable_weight,
                undesirable_weight=own.undesirable_weight,
                sync_ref_model=False,
                activation_offloading=False,
            ),
            **stand_ins({"prompt_ids": [0], "completion_ids": [0], "label": True}),
        )
        self.args.per_device_train_batch_size = training.per_device_train_batch_size
        if reference is None:
            # As for DPO: the reference is the base model, not the adapter as it begins.
            self.model.delete_adapter("ref")
        self.own_loop()
        self._moved = 0.0
        self._kl_logps: Iterator[torch.Tensor] = iter(())

    def get_batch_samples(
        self, epoch_iterator: Iterator[Batch], num_batches: int, device: torch.device
    ) -> tuple[list[Batch], int]:
        """Return the batches of one optimiser step, for which ``z`` is computed."""
        batches, answers = super().get_batch_samples(epoch_iterator, num_batches, device)
        if self.gives_others:
            self._move(batches, lambda: True)
        return batches, answers

    def evaluate_rows(self, go_on: Callable[[], bool]) -> Evaluation | None:
        """Return the mean loss of the answers held out, or None once ``go_on`` says no."""
        if self.gives_others and not self._move(self.evaluation_batches(), go_on):
            return None
        return super().evaluate_rows(go_on)

    def loss_sum(self, model: Any, batch: Batch) -> tuple[torch.Tensor, Means]:
        """Return trl's mean loss times the answers, and its rewards and log-probabilities."""
        # trl asks for the model's and then for the reference's, and takes the difference.
        moved = torch.tensor([self._moved, 0.0], device=batch["label"].device)
        self._kl_logps = iter(moved)
        loss = self._compute_loss(model, batch, return_outputs=False)
        values = told_by_trl(self, but=_OURS)
        return loss * self.term_count(batch), by_side(values, batch["label"])

    def _compute_kl_logps(self, model: Any, batch: Batch) -> torch.Tensor | None:
        return next(self._kl_logps) if self.gives_others else None

    def _move(self, batches: Iterable[Batch], go_on: Callable[[], bool]) -> bool:
        """Compute ``z`` for batches; return false once ``go_on`` does."""
        total, count = 0.0, 0
        self.model.eval()
        for batch in batches:
            if not go_on():
                return False
            with torch.no_grad(), self.compute_loss_context_manager():
                inputs = self._prepare_inputs(batch)
                ours = super()._compute_kl_logps(self.model, inputs)
                total += (ours - self._reference_kl_logps(inputs)).sum().item()
            count += len(ours)
        # trl takes 0 for what is below.
        self._moved = total / count if count > 1 else 0.0
        return True

    def _reference_kl_logps(self, inputs: Batch) -> torch.Tensor:
        if self.ref_model is not None:
            return super()._compute_kl_logps(self.ref_model, inputs)
        with self.accelerator.unwrap_model(self.model).disable_adapter():
            return super()._compute_kl_logps(self.model, inputs)


def trainer(setting: Setting) -> KahnemanTverskyTrainer:
    """Return the trainer of this method."""
    return KahnemanTverskyTrainer(setting)
