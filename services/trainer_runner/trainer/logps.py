"""Log-probabilities of answers, without the vocabulary's scores of a whole batch in memory."""

# R = rows of the batch, T = positions of the longest of them

from __future__ import annotations

from typing import Any

import torch
from peft.tuners.tuners_utils import BaseTunerLayer
from trl.trainer.utils import add_fused_lm_head

from lehr.errors import FieldViolation, InvalidArgument
from services.trainer_runner.trainer.data.batches import IGNORE, Batch


def refuse_trained_head(model: Any) -> None:
    """Raise InvalidArgument if an adapter lies on the layer that scores the vocabulary.

    Log-probabilities are computed from that layer's own weights, so it would never be trained.
    """
    if isinstance(model.get_output_embeddings(), BaseTunerLayer):
        what = "this method does not train the layer that scores the vocabulary; leave lm_head out"
        raise InvalidArgument(
            what,
            reason="ADAPTER_DOES_NOT_FIT",
            fields=[FieldViolation(field="adapter.target_modules", description=what)],
        )


def add_head(model: Any) -> None:
    """Let a model, which may have an adapter, compute ``answer_logps``."""
    refuse_trained_head(model)
    add_fused_lm_head(model.get_base_model() if hasattr(model, "peft_config") else model)


def answer_logps(model: Any, batch: Batch) -> torch.Tensor:
    """Return the log-probability of each token of the answers, given what stands before it.

    On a GPU only positions that predict an answer go through the vocabulary. Everywhere it is done
    a tile at a time, forth and back, so memory does not grow with positions times vocabulary.

    Args:
        model: one that went through ``add_head``.
        batch: ``input_ids``, ``attention_mask`` and ``completion_mask`` of shape (R, T).

    Returns:
        Shape (R, T - 1), dtype float32, in nats; 0 where the next token is none of an answer.
    """
    labels_RT = batch["input_ids"].masked_fill(batch["completion_mask"] == 0, IGNORE)
    outputs = model(
        input_ids=batch["input_ids"],
        attention_mask=batch["attention_mask"],
        labels=labels_RT,
        fused_lm_head=True,
        use_cache=False,
    )
    # Adapters that learn a prompt put its positions first.
    return outputs.log_probs[:, 1 - labels_RT.shape[1] :].float()


def predicted_counts(batch: Batch) -> torch.Tensor:
    """Return the tokens of each row's answer that some position predicts, shape (R,)."""
    return batch["completion_mask"][:, 1:].sum(dim=1)
