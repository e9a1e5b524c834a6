"""The loop of methods that learn from what the model writes itself.

Before the passes of an optimiser step all its completions are written and scored; then the step
learns from them as from any other batch. So it makes no difference how a step is cut into passes,
and a stop between two steps loses nothing. Completions that later steps use again are part of a
checkpoint.
"""

# R = rows of an optimiser step, N = completions, P = tokens of the longest prompt, C = of the
# longest completion

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file

from lehr.samples.files import TokenizerFiles
from lehr.training.methods.online import OnlineHyperparameters, RewardedHyperparameters
from services.trainer_runner.course import Evaluation
from services.trainer_runner.trainer.data.batches import Batch
from services.trainer_runner.trainer.loop import Loop, Setting, StepSums
from services.trainer_runner.trainer.online.judging import Answered, Judge
from services.trainer_runner.trainer.online.order import GroupBatches, NumberList
from services.trainer_runner.trainer.online.rows import Item
from services.trainer_runner.trainer.online.writing import (
    Completion,
    GoOn,
    Writer,
    drawn_apart,
    left_padded,
    right_padded,
)
from services.trainer_runner.trainer.state import load_random

_ROLLOUT = "rollout.safetensors"

Prompts = Sequence[NDArray[np.int32]]


class OnlineLoop(Loop):
    """Learns from completions of its own; the numbers of prompts are what batches hold first."""

    completions_per_row: ClassVar[int] = 1
    """Completions that a row of a batch is made of."""

    callback_handler: Any
    control: Any
    writer: Writer
    _rollout: Batch | None
    _charts: dict[str, float]
    _random_from: Path | None
    """The checkpoint whose random state the first completions are drawn from."""

    def begin(self, setting: Setting) -> None:
        """Prepare to write completions."""
        super().begin(setting)
        training = setting.plan.spec.training
        self.own = setting.plan.spec.hyperparameters_as(OnlineHyperparameters)
        self.batches: GroupBatches = GroupBatches(
            len(setting.data.train),
            row_count=setting.row_count,
            training=training,
            group=self.own.rows_per_prompt,
            iterations=self.own.completion_uses,
        )
        files = TokenizerFiles.read(setting.plan.model_dir)
        self.writer = Writer(
            self.own, end_ids=sorted(files.end_token_ids(files.tokenizer())), pad_id=setting.pad_id
        )
        self._rollout = None
        self._charts = {}
        self._random_from = None

    @abstractmethod
    def rolled_out(self, numbers: Sequence[int], completions: Sequence[Completion]) -> Batch:
        """Return what a step learns from: tensors whose first dimension is R, and charts.

        Among them are ``token_count`` and ``trained_token_count`` of shape (R,).
        """

    def train_rows(self) -> torch.utils.data.Dataset[int]:
        """Return the prompts by number."""
        return NumberList(len(self.setting.data.train))

    def collate(self, rows: Any) -> Batch:
        """Return the numbers of the prompts of a pass."""
        return {"numbers": torch.tensor(rows)}

    def get_batch_samples(
        self, epoch_iterator: Iterator[Batch], num_batches: int, device: torch.device
    ) -> tuple[list[Batch], int]:
        """Return the passes of one optimiser step and the number of their terms."""
        passes = [batch for _, batch in zip(range(num_batches), epoch_iterator, strict=False)]
        if not passes:
            return [], 0
        if self._random_from is not None:
            load_random(self._random_from)
            self._random_from = None
        if self._rollout is None or self.batches.iteration_after(self.state.global_step) == 0:
            numbers = torch.cat([one["numbers"] for one in passes]).tolist()
            self._rollout = self._write_and_judge(numbers)
        rows = self.setting.plan.spec.training.per_device_train_batch_size
        count = len(self._rollout["token_count"])
        batches = [
            {name: values[begin : begin + rows] for name, values in self._rollout.items()}
            for begin in range(0, count, rows)
        ]
        self.sums = StepSums(
            tokens=int(self._rollout["token_count"].sum()),
            trained_tokens=int(self._rollout["trained_token_count"].sum()),
        )
        # Nothing is learnt where no completion counts, but the mean of nothing has no value.
        return batches, max(sum(map(self.term_count, batches)), 1)

    def _write_and_judge(self, numbers: list[int]) -> Batch:
        prompts = self.prompts_of(numbers)
        written = self.writer.sample(
            self.model, prompts, self._look_for_stop, size=self.own.generation_batch_size
        )
        if written is None:
            raise AssertionError("a stop leaves the loop while completions are written")
        self._charts = lengths_of(written)
        self.model.eval()
        with torch.no_grad():
            return self.rolled_out(numbers, written)

    def prompts_of(self, numbers: Sequence[int]) -> Prompts:
        """Return the prompt of each completion of a step."""
        train = self.setting.data.train
        return [
            train[number].token_ids for number in numbers for _ in range(self.completions_per_row)
        ]

    def padded(self, prompts: Prompts, completions: Sequence[Completion]) -> Batch:
        """Return prompts padded on the left and completions on the right, in trl's layout.

        Returns:
            ``prompt_ids`` and ``prompt_mask`` of shape (R, P), ``completion_ids`` and
            ``completion_mask`` of shape (R, C), ``token_count`` and ``trained_token_count`` of
            shape (R,).
        """
        pad_id, device = self.setting.pad_id, self.args.device
        prompt_ids, prompt_mask = left_padded(prompts, pad_id=pad_id)
        ids, mask = right_padded([one.token_ids for one in completions], pad_id=pad_id)
        batch = {
            "prompt_ids": prompt_ids,
            "prompt_mask": prompt_mask,
            "completion_ids": ids,
            "completion_mask": mask,
            "token_count": prompt_mask.sum(dim=1) + mask.sum(dim=1),
            "trained_token_count": mask.sum(dim=1),
        }
        return {name: values.to(device) for name, values in batch.items()}

    def _look_for_stop(self) -> bool:
        # As between two passes: a stop leaves the loop from here.
        self.callback_handler.on_substep_end(self.args, self.state, self.control)
        return True

    def chart(self, values: Mapping[str, float]) -> None:
        """Add what is told of the completions of a step."""
        self._charts.update(values)

    def charted(self, sums: StepSums) -> dict[str, float]:
        """Add what is told of the completions that a step learnt from."""
        return {**super().charted(sums), **self._charts}

    def save_state(self, folder: Path) -> Mapping[str, Any]:
        """Write completions too where the next step uses them again."""
        if self._is_used_again():
            rollout = self._rollout or {}
            tensors = {name: values.cpu().contiguous() for name, values in rollout.items()}
            save_file(tensors, folder / _ROLLOUT)
        return super().save_state(folder)

    def own_state(self) -> dict[str, Any]:
        """Return the charts of completions that are used again."""
        return {"charts": self._charts} if self._is_used_again() else {}

    def load_own_state(self, told: Mapping[str, Any]) -> None:
        """Go on from what ``own_state`` returned."""
        self._charts = dict(told.get("charts", {}))

    def _is_used_again(self) -> bool:
        is_kept = self._rollout is not None
        return is_kept and self.batches.iteration_after(self.state.global_step) > 0

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is None:
            return
        self._random_from = Path(checkpoint)
        file = self._random_from / _ROLLOUT
        if file.is_file():
            device = self.args.device
            self._rollout = {name: values.to(device) for name, values in load_file(file).items()}

    def _load_rng_state(self, checkpoint: str | None) -> None:
        """Leave it: this comes after the first completions were drawn, and would repeat them."""

    def written_for_validation(self, go_on: GoOn) -> Iterator[list[tuple[int, Completion]] | None]:
        """Yield completions to some held-out prompts at a time, with the prompts' numbers.

        They are drawn from the job's seed, the same random numbers at every evaluation. None comes
        last where ``go_on`` said no.
        """
        validation = self.setting.data.validation
        each, seed = self.own.num_generations_eval, self.setting.plan.spec.training.seed
        size = self.args.per_device_eval_batch_size
        for begin in range(0, len(validation), size):
            some = range(begin, min(begin + size, len(validation)))
            numbers = [number for number in some for _ in range(each)]
            prompts = [validation[number].token_ids for number in numbers]
            with drawn_apart(seed + begin):
                written = self.writer.sample(self.model, prompts, go_on, size=None)
            if written is None:
                yield None
                return
            yield list(zip(numbers, written, strict=True))


class RewardedLoop(OnlineLoop):
    """Learns from completions by what they earn; minus the mean reward is the validation loss."""

    judge: Judge

    def begin(self, setting: Setting) -> None:
        """Prepare to score completions."""
        super().begin(setting)
        if setting.data.validation:
            setting.log(
                "validation loss is minus the mean reward of completions to the prompts held out, "
                "drawn from the same seed each time"
            )

    def load_judge(self) -> None:
        """Load what rewards need; after the trainer's own beginning, which knows the device."""
        plan = self.setting.plan
        self.judge = Judge(
            plan.spec.hyperparameters_as(RewardedHyperparameters),
            model_dir=plan.model_dir,
            reward_model_dirs=plan.reward_model_dirs,
            device=self.args.device,
            log=self.setting.log,
        )

    def judged(self, numbers: Sequence[int], completions: Sequence[Completion]) -> torch.Tensor:
        """Return what the completions of a step earn, shape (N,), and chart it."""
        per_prompt = len(completions) // len(numbers)
        owners = [number for number in numbers for _ in range(per_prompt)]
        answered = [
            Answered(
                prompt=self.setting.data.train[number].token_ids,
                completion=completion,
                item=_item(self.setting.items.train, number),
            )
            for number, completion in zip(owners, completions, strict=True)
        ]
        scores, failures = self.judge.scores(answered)
        total = self.judge.total(scores)
        self.chart(reward_charts(self.judge.names, scores, failures))
        self.chart({"reward": total.mean().item(), "reward_std": _std(total)})
        return total.to(self.args.device)

    def evaluate_rows(self, go_on: Callable[[], bool]) -> Evaluation | None:
        """Return minus the mean reward of completions to the prompts held out."""
        found: list[torch.Tensor] = []
        failures: Counter[str] = Counter()
        completions: list[Completion] = []
        validation = self.setting.data.validation
        for written in self.written_for_validation(go_on):
            if written is None:
                return None
            answered = [
                Answered(
                    prompt=validation[number].token_ids,
                    completion=completion,
                    item=_item(self.setting.items.validation, number),
                )
                for number, completion in written
            ]
            scores, failed = self.judge.scores(answered)
            found.append(scores)
            failures.update(failed)
            completions += [completion for _, completion in written]
        scores = torch.cat(found)
        mean = self.judge.total(scores).double().mean().item()
        values = {"reward": mean, **reward_charts(self.judge.names, scores, failures)}
        return Evaluation(loss=0.0 - mean, values={**values, **lengths_of(completions)})


def _item(items: Sequence[Item], number: int) -> Item:
    return items[number] if items else {}


def reward_charts(
    names: Sequence[str], scores: torch.Tensor, failures: Mapping[str, int]
) -> dict[str, float]:
    """Return mean and spread of each reward under trl's names, and how many could not be scored."""
    found: dict[str, float] = {}
    for at, name in enumerate(names):
        found[f"rewards/{name}/mean"] = scores[:, at].mean().item()
        found[f"rewards/{name}/std"] = _std(scores[:, at])
        if failures.get(name):
            found[f"rewards/{name}/failures"] = float(failures[name])
    return found


def _std(values: torch.Tensor) -> float:
    return values.std().item() if len(values) > 1 else 0.0


def lengths_of(completions: Sequence[Completion]) -> dict[str, float]:
    """Return how long completions are, in tokens, under trl's names."""
    lengths = [len(one.token_ids) for one in completions]
    ended = [len(one.token_ids) for one in completions if one.is_whole]
    found = {
        "completions/mean_length": sum(lengths) / len(lengths),
        "completions/min_length": float(min(lengths)),
        "completions/max_length": float(max(lengths)),
        "completions/clipped_ratio": 1.0 - len(ended) / len(lengths),
    }
    if ended:
        found["completions/mean_terminated_length"] = sum(ended) / len(ended)
    return found
