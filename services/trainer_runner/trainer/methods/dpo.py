"""Direct preference optimisation (Rafailov et al. 2023, equation 7) and variants, by trl."""

from __future__ import annotations

from typing import Any

import torch
from trl import DPOConfig, DPOTrainer

from lehr.training.methods.dpo import DpoHyperparameters
from services.trainer_runner.trainer.data.batches import Batch
from services.trainer_runner.trainer.data.pairs import pair_count
from services.trainer_runner.trainer.logps import refuse_trained_head
from services.trainer_runner.trainer.loop import Means, Setting, arguments, stand_ins, told_by_trl
from services.trainer_runner.trainer.own import reference_of
from services.trainer_runner.trainer.preference import PairLoop, chosen_token_count

#: What trl counts that the loop counts itself.
_COUNTED = frozenset({"num_tokens"})


class PreferenceTrainer(PairLoop, DPOTrainer):  # type: ignore[misc]  # trl is not typed here
    """Compares pairs of answers with a reference, which is the base model.

    That is the model without its adapter, or one loaded once more where all weights are trained.
    Of ``aot`` and ``aot_unpaired`` the loss compares the pairs of a pass with each other, so it
    depends on how a step is cut into passes.
    """

    def __init__(self, setting: Setting) -> None:
        refuse_trained_head(setting.model)
        self.begin(setting)
        own = setting.plan.spec.hyperparameters_as(DpoHyperparameters)
        reference = reference_of(setting)
        super().__init__(
            model=setting.model,
            ref_model=reference,
            args=DPOConfig(
                **arguments(setting),
                trust_remote_code=False,
                max_length=None,
                padding_free=False,
                precompute_ref_log_probs=False,
                disable_dropout=True,
                beta=own.beta,
                loss_type=list(own.loss_type),
                loss_weights=None if own.loss_weights is None else list(own.loss_weights),
                label_smoothing=own.label_smoothing,
                f_divergence_type=own.f_divergence_type,
                f_alpha_divergence_coef=own.f_alpha_divergence_coef,
                ld_alpha=own.ld_alpha,
                use_weighting=own.use_weighting,
                discopop_tau=own.discopop_tau,
                # The reference would have to be part of the checkpoint.
                sync_ref_model=False,
                activation_offloading=False,
            ),
            **stand_ins({"prompt_ids": [0], "chosen_ids": [0], "rejected_ids": [0]}),
        )
        if reference is None:
            # A copy of the adapter as it begins, which is another one after a resume; without it
            # the reference is the base model.
            self.model.delete_adapter("ref")
        self.own_loop()
        self._weights: list[float] = list(self.loss_weights)

    def loss_sum(self, model: Any, batch: Batch) -> tuple[torch.Tensor, Means]:
        """Return trl's mean loss times the pairs, and its rewards and log-probabilities."""
        self.loss_weights = self._weights_of_pass(batch)
        loss = self._compute_loss(model, batch, return_outputs=False)
        values = told_by_trl(self, but=_COUNTED)
        return loss * pair_count(batch), values

    def _weights_of_pass(self, batch: Batch) -> list[float]:
        """Weigh ``sft``, a mean over the pass's tokens, so that the step's is one over its own."""
        share = self.pairs_per_token * chosen_token_count(batch) / pair_count(batch)
        return [
            weight * share if name == "sft" else weight
            for name, weight in zip(self.loss_types, self._weights, strict=True)
        ]


def trainer(setting: Setting) -> PreferenceTrainer:
    """Return the trainer of this method."""
    return PreferenceTrainer(setting)
