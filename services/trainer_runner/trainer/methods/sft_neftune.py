"""Noise on the embeddings while training (Jain et al. 2023, algorithm 1), by transformers."""

from __future__ import annotations

from lehr.training.methods.sft_neftune import SftNeftuneHyperparameters
from services.trainer_runner.trainer.loop import Setting
from services.trainer_runner.trainer.methods.sft import AnswerTrainer


def trainer(setting: Setting) -> AnswerTrainer:
    """Return the trainer of this method; validation is without noise."""
    own = setting.plan.spec.hyperparameters_as(SftNeftuneHyperparameters)
    return AnswerTrainer(setting, neftune_noise_alpha=own.neftune_noise_alpha)
