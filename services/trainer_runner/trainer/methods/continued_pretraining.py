"""Next-token cross-entropy on raw text, all tokens of which are trained."""

from __future__ import annotations

from services.trainer_runner.trainer.loop import Setting
from services.trainer_runner.trainer.methods.sft import AnswerTrainer


def trainer(setting: Setting) -> AnswerTrainer:
    """Return the trainer of this method: rows of text are samples without a prompt."""
    return AnswerTrainer(setting)
