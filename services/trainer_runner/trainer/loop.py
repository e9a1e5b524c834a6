"""The optimisation loop that all methods share: our order of rows, our sums, our state on disk.

A method is a class of ``Loop`` and a trainer of trl or transformers; it says what a batch is and
what its loss is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models
from torch.utils.data import DataLoader
from transformers import PreTrainedTokenizerFast, PrinterCallback, TrainerCallback

from lehr.samples.prepare import PreparedData
from lehr.training.plan import TrainingPlan
from services.trainer_runner.course import Evaluation
from services.trainer_runner.trainer import state
from services.trainer_runner.trainer.data.batches import (
    Batch,
    EpochBatches,
    token_count,
    train_loader,
)
from services.trainer_runner.trainer.online.rows import Items


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What a method is given to train with."""

    plan: TrainingPlan
    model: Any
    data: PreparedData
    row_count: int
    """Rows of batches of one pass over the training samples."""
    total_steps: int
    use_cpu: bool
    pad_id: int
    """Any token of the vocabulary; padding is neither read nor trained."""
    reference: Callable[[], Any]
    """Loads the base model once more, frozen, for methods that compare with it."""
    items: Items = field(default_factory=Items)
    """What rewards read of the rows, for methods that have rewards."""
    log: Callable[[str], None] = field(default=lambda text: None)
    """Writes a line to the job's log."""


class Mean(NamedTuple):
    """A mean over something else than the terms of a pass."""

    value: float
    weight: float
    """How many values it is a mean of."""


Means = Mapping[str, float | Mean]
"""Means of what is charted beside the loss, by name; over the terms where nothing else is said."""


@dataclass(slots=True, kw_only=True)
class StepSums:
    """What the forward passes of one optimiser step, or of one evaluation, added up to."""

    loss: float = 0.0
    """Mean loss over the terms of all passes."""
    tokens: int = 0
    """Tokens without padding."""
    trained_tokens: int = 0
    weighted: dict[str, float] = field(default_factory=dict)
    """Sums of other values, each weighted by the terms of its pass."""
    weights: dict[str, float] = field(default_factory=dict)

    def add(self, values: Means, *, weight: float) -> None:
        """Add the means that a pass over ``weight`` terms gave."""
        for name, told in values.items():
            mean = told if isinstance(told, Mean) else Mean(told, weight)
            self.weighted[name] = self.weighted.get(name, 0.0) + mean.value * mean.weight
            self.weights[name] = self.weights.get(name, 0.0) + mean.weight

    @property
    def values(self) -> dict[str, float]:
        """The means over all terms."""
        return {name: total / self.weights[name] for name, total in self.weighted.items()}


class Loop:
    """Mixed into a trainer: where its batches come from, and what is done with its loss.

    A term is what the loss is a mean of: a trained token, a pair of answers, a row. Subclasses
    define ``loss_sum``, ``term_count``, ``train_rows``, ``collate`` and ``evaluation_batches``.
    """

    # Of the trainer that this is mixed into.
    args: Any
    model: Any
    optimizer: Any
    lr_scheduler: Any
    state: Any
    is_in_train: bool
    _prepare_inputs: Callable[[Batch], Batch]
    compute_loss_context_manager: Callable[[], Any]
    add_callback: Callable[[TrainerCallback], None]
    remove_callback: Callable[[Any], None]

    def begin(self, setting: Setting) -> None:
        """Take what the loop needs; before the trainer's own beginning, which may use it."""
        training = setting.plan.spec.training
        self.setting = setting
        self.sums = StepSums()
        self.batches = EpochBatches(
            setting.row_count,
            batch_size=training.per_device_train_batch_size,
            seed=training.seed,
        )

    def own_loop(self) -> None:
        """Undo what trainers set up for loops that are not this one; after their beginning."""
        # Else training would write a stand-in's special tokens into the model's configuration.
        self.processing_class = None
        # Our loss is the mean over all terms of the step already.
        self.loss_is_scaled_for_ga = True
        self.remove_callback(PrinterCallback)

    def train_rows(self) -> torch.utils.data.Dataset[Any]:
        """Return the rows that ``EpochBatches`` numbers."""
        raise AssertionError("a method says what its rows are")

    def collate(self, rows: Any) -> Batch:
        """Make a batch of some of ``train_rows``."""
        raise AssertionError("a method says what its batches are")

    def evaluation_batches(self) -> Iterator[Batch]:
        """Yield the validation rows once, in their own order."""
        raise AssertionError("a method says what it is evaluated on")

    def loss_sum(self, model: Any, batch: Batch) -> tuple[torch.Tensor, Means]:
        """Return the loss added up over the terms of a batch, and means of what else to chart."""
        raise AssertionError("a method says what its loss is")

    def evaluation_loss_sum(self, model: Any, batch: Batch) -> tuple[torch.Tensor, Means]:
        """Return what validation adds up; the loss itself unless a method has a fairer measure."""
        return self.loss_sum(model, batch)

    def term_count(self, batch: Batch) -> int:
        """Return how many terms the loss of a batch adds up."""
        raise AssertionError("a method says what its loss is a mean of")

    def trained_token_count(self, batch: Batch) -> int:
        """Return the tokens of answers in a batch."""
        return self.term_count(batch)

    def _prepare_dataset(self, dataset: Any, *args: Any, **kwargs: Any) -> Any:
        """Leave trl's stand-in as it is; rows are ready before they come here."""
        return dataset

    def get_train_dataloader(self) -> DataLoader[Batch]:
        """Return batches in the order of seed and epoch."""
        return train_loader(self.train_rows(), batches=self.batches, collate_fn=self.collate)

    def get_batch_samples(
        self, epoch_iterator: Iterator[Batch], num_batches: int, device: torch.device
    ) -> tuple[list[Batch], int]:
        """Return the batches of one optimiser step and the number of their terms."""
        batches = [batch for _, batch in zip(range(num_batches), epoch_iterator, strict=False)]
        self.sums = StepSums(
            tokens=sum(map(token_count, batches)),
            trained_tokens=sum(map(self.trained_token_count, batches)),
        )
        return batches, sum(map(self.term_count, batches))

    def compute_loss(
        self,
        model: Any,
        inputs: Batch,
        return_outputs: bool = False,
        num_items_in_batch: int = 1,
    ) -> torch.Tensor:
        """Return this pass's share of the mean over all terms of the step."""
        del return_outputs
        total, values = self.loss_sum(model, inputs)
        self.sums.add(values, weight=self.term_count(inputs))
        loss = total / num_items_in_batch
        self.sums.loss += loss.item()
        return loss

    def evaluate_rows(self, go_on: Callable[[], bool]) -> Evaluation | None:
        """Return the mean loss of the validation rows, or None once ``go_on`` says no.

        Sums are kept, not outputs, so memory does not grow with the rows. Nothing random is drawn.
        """
        total, count, sums = 0.0, 0, StepSums()
        self.model.eval()
        for batch in self.evaluation_batches():
            if not go_on():
                return None
            with torch.no_grad(), self.compute_loss_context_manager():
                loss, values = self.evaluation_loss_sum(self.model, self._prepare_inputs(batch))
            terms = self.term_count(batch)
            total, count = total + loss.item(), count + terms
            sums.add(values, weight=terms)
        return Evaluation(loss=total / count, values=self.charted(sums))

    def charted(self, sums: StepSums) -> dict[str, float]:
        """Return what a step or an evaluation charts: its means, and what follows from them."""
        return sums.values

    def own_state(self) -> dict[str, Any]:
        """Return what a method carries from step to step beside weights, as strict JSON."""
        return {}

    def load_own_state(self, told: Mapping[str, Any]) -> None:
        """Go on from what ``own_state`` returned."""

    def drop_step(self) -> None:
        """Forget what the passes of a step that is not finished left in ``own_state``."""

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
            self.load_own_state(own.get("method", {}))

    def _load_rng_state(self, checkpoint: str | None) -> None:
        if checkpoint is not None:
            state.load_random(Path(checkpoint))


def told_by_trl(trainer: Any, *, but: frozenset[str] = frozenset()) -> dict[str, float]:
    """Return what trl noted for its chart in the last pass, and let it forget that."""
    told = trainer._metrics["train" if trainer.model.training else "eval"]
    values = {name: float(many[-1]) for name, many in told.items() if name not in but}
    told.clear()
    return values


def run_loop(trainer: Any, callback: TrainerCallback, resume_dir: Path | None) -> None:
    """Run the optimisation loop until the callback ends it."""
    trainer.add_callback(callback)
    trainer.train(resume_from_checkpoint=None if resume_dir is None else str(resume_dir))


def stand_ins(columns: Mapping[str, Any]) -> dict[str, Any]:
    """Return the dataset, tokenizer and collator that trainers want to see; the loop uses none."""
    return {
        "train_dataset": Dataset.from_dict({name: [value] for name, value in columns.items()}),
        "processing_class": PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE())),
        "data_collator": lambda rows: rows,
    }


def arguments(setting: Setting) -> dict[str, Any]:
    """Return the arguments that all trainers take.

    Everything is said: the libraries' defaults differ from version to version.
    """
    training = setting.plan.spec.training
    return {
        "output_dir": str(setting.plan.output_dir),
        "per_device_train_batch_size": training.per_device_train_batch_size,
        "per_device_eval_batch_size": training.per_device_eval_batch_size,
        "gradient_accumulation_steps": training.gradient_accumulation_steps,
        "max_steps": setting.total_steps,
        "learning_rate": training.learning_rate,
        "lr_scheduler_type": training.lr_scheduler_type,
        "lr_scheduler_kwargs": None,
        "warmup_steps": training.warmup_steps,
        "optim": training.optim,
        "weight_decay": training.weight_decay,
        "max_grad_norm": training.max_grad_norm,
        "seed": training.seed,
        "bf16": training.precision == "bf16",
        "fp16": False,
        "tf32": None,
        "gradient_checkpointing": training.gradient_checkpointing,
        "gradient_checkpointing_kwargs": {"use_reentrant": False},
        "use_cpu": setting.use_cpu,
        "logging_strategy": "steps",
        "logging_steps": 1,
        "logging_nan_inf_filter": False,
        "report_to": [],
        "disable_tqdm": True,
        "eval_strategy": "no",
        "save_strategy": "no",
        "load_best_model_at_end": False,
        "push_to_hub": False,
        "dataloader_num_workers": 0,
        "remove_unused_columns": False,
        "torch_compile": False,
    }
