"""Supervised fine-tuning: token cross-entropy on the answers (Ouyang et al. 2022, section 3.1)."""

# B = samples in the batch, T = positions, K = positions that predict an answer in some sample,
# V = vocabulary

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models
from torch.nn import functional
from torch.utils.data import DataLoader
from transformers import PreTrainedTokenizerFast, PrinterCallback, TrainerCallback
from trl import SFTConfig, SFTTrainer

from lehr.samples.prepare import PreparedData
from lehr.training.plan import TrainingPlan
from services.trainer_runner.trainer import state
from services.trainer_runner.trainer.data.batches import (
    IGNORE,
    Batch,
    EpochBatches,
    SampleList,
    collate,
    evaluation_batches,
    token_count,
    train_loader,
)
from services.trainer_runner.trainer.data.packs import PackedRows, collate_packs

#: What of a batch a model is given; rows of several samples have positions in place of a mask.
MODEL_INPUTS = ("input_ids", "attention_mask", "position_ids")


@dataclass(slots=True, kw_only=True)
class StepSums:
    """What the forward passes of one optimiser step added up to."""

    loss: float = 0.0
    """Mean loss over the trained tokens of all passes, in nats."""
    tokens: int = 0
    """Tokens without padding."""
    trained_tokens: int = 0


def answer_loss_sum(model: Any, batch: Batch) -> torch.Tensor:
    """Sum the cross-entropy of the trained tokens of a batch.

    Position ``t`` predicts token ``t + 1``. Only positions before an answer go through the
    vocabulary, which is most of a small model's work.

    Returns:
        A scalar of dtype float32 whatever the model's, in nats.
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
        reduction="sum",
    )


def target_count(batch: Batch) -> int:
    """Count the trained tokens that some position predicts."""
    return int((batch["labels"][:, 1:] != IGNORE).sum())


class AnswerTrainer(SFTTrainer):  # type: ignore[misc]  # trl is not typed here
    """TRL's trainer on samples that are ready, with our own order, loss, and state on disk."""

    def __init__(
        self,
        plan: TrainingPlan,
        model: Any,
        data: PreparedData,
        *,
        total_steps: int,
        use_cpu: bool,
        pad_id: int,
    ) -> None:
        training = plan.spec.training
        self.sums = StepSums()
        self._samples = data.train
        self._packs = data.packs
        self._validation = data.validation
        self._pad_id = pad_id
        self._eval_batch_size = training.per_device_eval_batch_size
        self.batches = EpochBatches(
            data.row_count, batch_size=training.per_device_train_batch_size, seed=training.seed
        )
        super().__init__(
            model=model,
            args=_arguments(plan, total_steps=total_steps, use_cpu=use_cpu),
            # TRL wants to see a dataset and a tokenizer; batches come from our own loader.
            train_dataset=Dataset.from_dict({"input_ids": [[0]], "labels": [[0]]}),
            processing_class=PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE())),
            data_collator=lambda samples: samples,
        )
        # Else training would write this stand-in's special tokens into the model's configuration.
        self.processing_class = None
        # Our loss is the mean over all tokens of the step already.
        self.loss_is_scaled_for_ga = True
        self.remove_callback(PrinterCallback)

    def get_train_dataloader(self) -> DataLoader[Batch]:
        """Return batches in the order of seed and epoch."""
        is_packed = bool(self._packs)
        return train_loader(
            PackedRows(self._samples, self._packs) if is_packed else SampleList(self._samples),
            batches=self.batches,
            collate_fn=partial(collate_packs if is_packed else collate, pad_id=self._pad_id),
        )

    def get_batch_samples(
        self, epoch_iterator: Iterator[Batch], num_batches: int, device: torch.device
    ) -> tuple[list[Batch], int]:
        """Return the batches of one optimiser step and the number of their trained tokens."""
        batches = [batch for _, batch in zip(range(num_batches), epoch_iterator, strict=False)]
        self.sums = StepSums(
            tokens=sum(map(token_count, batches)),
            trained_tokens=sum(map(target_count, batches)),
        )
        return batches, self.sums.trained_tokens

    def compute_loss(
        self,
        model: Any,
        inputs: Batch,
        return_outputs: bool = False,
        num_items_in_batch: int = 1,
    ) -> torch.Tensor:
        """Return this pass's share of the mean over all trained tokens of the step."""
        del return_outputs
        loss = answer_loss_sum(model, inputs) / num_items_in_batch
        self.sums.loss += loss.item()
        return loss

    def evaluate_answers(self, go_on: Callable[[], bool]) -> float | None:
        """Return the mean loss of the trained tokens of all validation rows, in nats.

        Sums are kept, not outputs, so memory does not grow with the rows. Nothing random is drawn.
        """
        model, total, count = self.model, 0.0, 0
        model.eval()
        for batch in evaluation_batches(
            self._validation, batch_size=self._eval_batch_size, pad_id=self._pad_id
        ):
            if not go_on():
                return None
            with torch.no_grad(), self.compute_loss_context_manager():
                total += answer_loss_sum(model, self._prepare_inputs(batch)).item()
            count += target_count(batch)
        return total / count

    def trained_names(self) -> list[str]:
        """Return the names of the optimizer's parameters, in its order."""
        names = {id(parameter): name for name, parameter in self.model.named_parameters()}
        groups = self.optimizer.param_groups
        return [names[id(parameter)] for group in groups for parameter in group["params"]]

    def save_state(self, folder: Path) -> Mapping[str, Any]:
        """Write optimizer and random state; return the schedule's."""
        state.save_optimizer(self.optimizer, self.trained_names(), folder)
        state.save_random(folder)
        schedule: Mapping[str, Any] = self.lr_scheduler.state_dict()
        return schedule

    # What the loop calls on resume. Weights are in the model already, and random state is
    # restored after the batches that were trained have been passed over.

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        pass

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        if checkpoint is not None:
            state.load_optimizer(self.optimizer, self.trained_names(), Path(checkpoint))
            own = self.state.stateful_callbacks["lehr"]["trainer"]
            self.lr_scheduler.load_state_dict(own["schedule"])

    def _load_rng_state(self, checkpoint: str | None) -> None:
        if checkpoint is not None:
            state.load_random(Path(checkpoint))


def run_loop(trainer: AnswerTrainer, callback: TrainerCallback, resume_dir: Path | None) -> None:
    """Run the optimisation loop until the callback ends it."""
    trainer.add_callback(callback)
    trainer.train(resume_from_checkpoint=None if resume_dir is None else str(resume_dir))


def _takes_logits_to_keep(model: Any) -> bool:
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    return "logits_to_keep" in inspect.signature(type(base).forward).parameters


def _arguments(plan: TrainingPlan, *, total_steps: int, use_cpu: bool) -> SFTConfig:
    """Say everything; the library's defaults differ from version to version."""
    training = plan.spec.training
    is_half = training.precision == "bf16"
    return SFTConfig(
        output_dir=str(plan.output_dir),
        per_device_train_batch_size=training.per_device_train_batch_size,
        gradient_accumulation_steps=training.gradient_accumulation_steps,
        max_steps=total_steps,
        learning_rate=training.learning_rate,
        lr_scheduler_type=training.lr_scheduler_type,
        lr_scheduler_kwargs=None,
        warmup_steps=training.warmup_steps,
        optim=training.optim,
        weight_decay=training.weight_decay,
        max_grad_norm=training.max_grad_norm,
        seed=training.seed,
        bf16=is_half,
        fp16=False,
        tf32=None,
        gradient_checkpointing=training.gradient_checkpointing,
        gradient_checkpointing_kwargs={"use_reentrant": False},
        use_cpu=use_cpu,
        logging_strategy="steps",
        logging_steps=1,
        logging_nan_inf_filter=False,
        report_to=[],
        disable_tqdm=True,
        eval_strategy="no",
        save_strategy="no",
        load_best_model_at_end=False,
        push_to_hub=False,
        dataloader_num_workers=0,
        remove_unused_columns=False,
        torch_compile=False,
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
    )
