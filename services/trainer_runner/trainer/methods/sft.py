"""Supervised fine-tuning: token cross-entropy on the answers (Ouyang et al. 2022, section 3.1)."""

# B = samples in the batch, T = positions, K = positions that predict an answer in some sample,
# V = vocabulary

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.nn import functional
from trl import SFTConfig, SFTTrainer

from services.trainer_runner.trainer.data.batches import (
    IGNORE,
    Batch,
    SampleList,
    collate,
    evaluation_batches,
)
from services.trainer_runner.trainer.data.packs import PackedRows, collate_packs
from services.trainer_runner.trainer.loop import Loop, Setting, arguments, stand_ins

#: What of a batch a model is given; rows of several samples have positions in place of a mask.
MODEL_INPUTS = ("input_ids", "attention_mask", "position_ids")


def answer_losses(model: Any, batch: Batch) -> torch.Tensor:
    """Return the cross-entropy of each token that some sample of the batch predicts.

    Position ``t`` predicts token ``t + 1``. Only positions before an answer go through the
    vocabulary, which is most of a small model's work.

    Returns:
        Shape (B * K,), dtype float32 whatever the model's, in nats; 0 where nothing is trained.
    """
    targets_BT = batch["labels"][:, 1:]
    keep_K = (targets_BT != IGNORE).any(dim=0).nonzero().squeeze(-1)
    inputs = {name: batch[name] for name in MODEL_INPUTS if name in batch}
    if _takes_logits_to_keep(model):
        logits_BKV = model(**inputs, logits_to_keep=keep_K, use_cache=False).logits
    else:
        logits_BKV = model(**inputs, use_cache=False).logits[:, keep_K]
    return functional.cross_entropy(
        logits_BKV.float().flatten(0, 1),
        targets_BT[:, keep_K].flatten(),
        ignore_index=IGNORE,
        reduction="none",
    )


def target_count(batch: Batch) -> int:
    """Count the trained tokens that some position predicts."""
    return int((batch["labels"][:, 1:] != IGNORE).sum())


class AnswerTrainer(Loop, SFTTrainer):  # type: ignore[misc]  # trl is not typed here
    """Trains the tokens of answers; a term of the loss is a token."""

    def __init__(self, setting: Setting, **more: Any) -> None:
        self.begin(setting)
        if hasattr(setting.model, "peft_config"):
            # trl refuses an adapter on the head, which its loss would pass over; ours does not.
            setting.model.get_output_embeddings = lambda: None
        super().__init__(
            model=setting.model,
            args=SFTConfig(
                **arguments(setting),
                trust_remote_code=False,
                max_length=None,
                packing=False,
                padding_free=False,
                shuffle_dataset=False,
                assistant_only_loss=False,
                completion_only_loss=False,
                loss_type="nll",
                activation_offloading=False,
                dataset_kwargs={"skip_prepare_dataset": True},
                **more,
            ),
            **stand_ins({"input_ids": [0], "labels": [0]}),
        )
        vars(setting.model).pop("get_output_embeddings", None)
        self.own_loop()

    def train_rows(self) -> torch.utils.data.Dataset[Any]:
        """Return the training samples, or rows that each hold several."""
        data = self.setting.data
        return PackedRows(data.train, data.packs) if data.packs else SampleList(data.train)

    def collate(self, rows: Any) -> Batch:
        """Pad rows to one length."""
        make = collate_packs if self.setting.data.packs else collate
        return make(rows, pad_id=self.setting.pad_id)

    def evaluation_batches(self) -> Iterator[Batch]:
        """Yield the validation rows, each with a row of its own."""
        return evaluation_batches(
            self.setting.data.validation,
            batch_size=self.args.per_device_eval_batch_size,
            pad_id=self.setting.pad_id,
        )

    def term_count(self, batch: Batch) -> int:
        """Return the trained tokens that some position predicts."""
        return target_count(batch)

    def loss_sum(self, model: Any, batch: Batch) -> tuple[torch.Tensor, Mapping[str, float]]:
        """Return the cross-entropy of the trained tokens, in nats."""
        return answer_losses(model, batch).sum(), {}


def trainer(setting: Setting) -> AnswerTrainer:
    """Return the trainer of this method."""
    return AnswerTrainer(setting)


def _takes_logits_to_keep(model: Any) -> bool:
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    return "logits_to_keep" in inspect.signature(type(base).forward).parameters
