"""On-policy distillation (Agarwal et al. 2023, equation 2 with lambda 1), by trl.

The model writes completions, and at each of their tokens it is drawn towards what the teacher would
go on with. Validation measures the same on completions to the prompts held out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from transformers import Trainer
from trl import DistillationConfig, DistillationTrainer

from lehr.errors import FieldViolation, InvalidArgument
from lehr.samples.files import TokenizerFiles
from lehr.training.methods.distill import DistillHyperparameters
from lehr.training.plan import TrainingPlan
from services.trainer_runner.course import Evaluation
from services.trainer_runner.trainer.adapters.base import load_model
from services.trainer_runner.trainer.data.batches import Batch
from services.trainer_runner.trainer.loop import Means, Setting, arguments, stand_ins, told_by_trl
from services.trainer_runner.trainer.online.loop import OnlineLoop, lengths_of
from services.trainer_runner.trainer.online.writing import Completion


class TeacherTrainer(OnlineLoop, DistillationTrainer):  # type: ignore[misc]  # trl is not typed
    """Learns from a teacher what to write after what it wrote; a term of the loss is a token."""

    own: DistillHyperparameters

    def __init__(self, setting: Setting) -> None:
        self.begin(setting)
        own = self.own
        teacher = _teacher(setting.plan, setting.model)
        given = stand_ins({"prompt": [""]})
        del given["data_collator"]
        super().__init__(
            model=setting.model,
            teacher_model=teacher,
            args=DistillationConfig(
                **arguments(setting),
                max_completion_length=own.max_completion_length,
                temperature=own.temperature,
                beta=own.beta,
                disable_dropout=True,
                use_vllm=False,
                log_completions=False,
            ),
            **given,
        )
        self.own_loop()

    def _prepare_inputs(self, inputs: Batch) -> Batch:
        """Move a batch to the device, which is all: it is written already."""
        moved: Batch = Trainer._prepare_inputs(self, inputs)
        return moved

    def rolled_out(self, numbers: Sequence[int], completions: Sequence[Completion]) -> Batch:
        """Return prompts and completions."""
        return self.padded(self.prompts_of(numbers), completions)

    def term_count(self, batch: Batch) -> int:
        """Return the tokens of completions."""
        return int(batch["completion_mask"].sum())

    def loss_sum(self, model: Any, batch: Batch) -> tuple[torch.Tensor, Means]:
        """Return trl's divergence added up over the tokens, and the model's entropy."""
        loss = DistillationTrainer.compute_loss(self, model, batch, num_items_in_batch=1)
        return loss, {"entropy": told_by_trl(self)["entropy"]}

    def evaluate_rows(self, go_on: Callable[[], bool]) -> Evaluation | None:
        """Return the mean divergence over completions to the prompts held out."""
        total, count = 0.0, 0
        completions: list[Completion] = []
        validation = self.setting.data.validation
        for written in self.written_for_validation(go_on):
            if written is None:
                return None
            some = [completion for _, completion in written]
            prompts = [validation[number].token_ids for number, _ in written]
            batch = self.padded(prompts, some)
            with torch.no_grad(), self.compute_loss_context_manager():
                loss, _ = self.loss_sum(self.model, batch)
            total, count = total + loss.item(), count + self.term_count(batch)
            completions += some
        return Evaluation(loss=total / count, values=lengths_of(completions))


def _teacher(plan: TrainingPlan, model: Any) -> Any:
    """Load the teacher.

    Raises:
        InvalidArgument: the plan has none, or its tokens are not those of the model.
    """
    if plan.teacher_dir is None:
        raise _refused("is not on this machine; name its folder in the plan")
    vocabularies = [
        TokenizerFiles.read(folder).tokenizer().get_vocab()
        for folder in (plan.teacher_dir, plan.model_dir)
    ]
    teacher = load_model(plan.teacher_dir, dtype=model.dtype)
    sizes = [one.config.get_text_config().vocab_size for one in (teacher, model)]
    if vocabularies[0] != vocabularies[1] or sizes[0] != sizes[1]:
        raise _refused("has other tokens than the model; use one of the same family")
    return teacher.requires_grad_(requires_grad=False)


def _refused(what: str) -> InvalidArgument:
    told = f"the teacher {what}"
    field = FieldViolation(field="hyperparameters.teacher_model", description=told)
    return InvalidArgument(told, reason="TEACHER_UNUSABLE", fields=[field])


def trainer(setting: Setting) -> TeacherTrainer:
    """Return the trainer of this method."""
    return TeacherTrainer(setting)
