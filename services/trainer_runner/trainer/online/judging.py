"""What completions earn: declared rewards, and the scores of reward models."""

# N = completions, K = rewards, T = positions of the longest text

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer
from transformers import AutoModelForSequenceClassification

from lehr.errors import InvalidArgument
from lehr.samples.files import TokenizerFiles
from lehr.training.methods.online import RewardedHyperparameters
from lehr.training.rewards import score
from lehr.training.rewards.base import Scored
from lehr.training.rewards.modelled import RewardModelReward
from services.trainer_runner.trainer.online.rows import Item
from services.trainer_runner.trainer.online.writing import Completion, right_padded

_SCORED_AT_ONCE = 16
"""Texts that a reward model reads in one pass."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """A prompt with its completion and the columns of its row."""

    prompt: NDArray[np.int32]
    completion: Completion
    item: Item


class Judge:
    """Scores completions, and tells of those that a reward cannot score."""

    def __init__(
        self,
        own: RewardedHyperparameters,
        *,
        model_dir: Path,
        reward_model_dirs: Mapping[str, Path],
        device: Any,
        log: Callable[[str], None],
    ) -> None:
        """Load what the rewards need.

        Raises:
            InvalidArgument: a reward model is missing, or is none for this tokenizer.
        """
        self._own = own
        self._tokenizer = TokenizerFiles.read(model_dir).tokenizer()
        self._log = log
        self._told: set[tuple[str, str]] = set()
        self._models = {
            one.chart_name: RewardModel.load(
                one.model, reward_model_dirs, like=self._tokenizer, device=device
            )
            for one in own.rewards
            if isinstance(one, RewardModelReward)
        }
        self.names = tuple(one.chart_name for one in own.rewards)

    def scores(self, answered: Sequence[Answered]) -> tuple[torch.Tensor, Counter[str]]:
        """Return what each completion earns, shape (N, K) in float32, and failures by reward."""
        failures: Counter[tuple[str, str]] = Counter()
        table = {name: model.scores(answered) for name, model in self._models.items()}
        texts = self._tokenizer.decode_batch(
            [one.completion.token_ids for one in answered], skip_special_tokens=True
        )
        rows = [
            score(
                self._own.rewards,
                Scored(text=text, item=one.item, token_count=len(one.completion.token_ids)),
                failures=failures,
            )
            for text, one in zip(texts, answered, strict=True)
        ]
        columns = [
            table[name] if name in table else [row[name] for row in rows] for name in self.names
        ]
        self._tell(failures, len(answered))
        return torch.tensor(columns, dtype=torch.float32).T.contiguous(), _by_reward(failures)

    def total(self, scores: torch.Tensor) -> torch.Tensor:
        """Return the weighted sum of what completions earn, shape (N,)."""
        return scores @ torch.tensor(self._own.weights, dtype=scores.dtype, device=scores.device)

    def _tell(self, failures: Mapping[tuple[str, str], int], count: int) -> None:
        for (name, reason), failed in failures.items():
            # Once; how many there are is charted.
            if (name, reason) not in self._told:
                self._told.add((name, reason))
                self._log(f"reward {name}: {failed} of {count} completions earn 0: {reason}")


def _by_reward(failures: Mapping[tuple[str, str], int]) -> Counter[str]:
    found: Counter[str] = Counter()
    for (name, _), count in failures.items():
        found[name] += count
    return found


class RewardModel:
    """A sequence classifier with one output, read at the last token of prompt and completion."""

    def __init__(self, model: Any) -> None:
        self._model = model

    @classmethod
    def load(
        cls, reference: str, folders: Mapping[str, Path], *, like: Tokenizer, device: Any
    ) -> RewardModel:
        """Load the folder of a reference.

        Raises:
            InvalidArgument: there is none, or the model in it does not fit.
        """
        folder = folders.get(reference)
        if folder is None:
            raise _refused(reference, "is not on this machine; name it in the plan")
        if TokenizerFiles.read(folder).tokenizer().get_vocab() != like.get_vocab():
            raise _refused(reference, "has another tokenizer than the trained model")
        try:
            model, told = AutoModelForSequenceClassification.from_pretrained(
                folder,
                local_files_only=True,
                trust_remote_code=False,
                use_safetensors=True,
                output_loading_info=True,
            )
        except (OSError, ValueError, KeyError, RuntimeError) as error:
            first = str(error).strip().partition("\n")[0]
            raise _refused(reference, f"cannot be loaded: {first}") from error
        if told["missing_keys"] or model.config.num_labels != 1:
            raise _refused(reference, "is no classifier with a single trained output")
        return cls(model.eval().requires_grad_(requires_grad=False).to(device))

    def scores(self, answered: Sequence[Answered]) -> list[float]:
        """Return the model's score of each text."""
        found: list[float] = []
        texts = [(*one.prompt.tolist(), *one.completion.token_ids) for one in answered]
        for begin in range(0, len(texts), _SCORED_AT_ONCE):
            found += self._scores(texts[begin : begin + _SCORED_AT_ONCE])
        return found

    def _scores(self, texts: Sequence[Sequence[int]]) -> list[float]:
        ids, mask = (told.to(self._model.device) for told in right_padded(texts, pad_id=0))
        last = mask.sum(dim=1) - 1
        # Not the classifier's own way, which takes a text that ends with the pad token for
        # shorter than it is.
        base = getattr(self._model, self._model.base_model_prefix)
        with torch.no_grad():
            hidden = base(input_ids=ids, attention_mask=mask, use_cache=False).last_hidden_state
            scores = self._model.score(hidden[torch.arange(len(texts)), last])
        found: list[float] = scores[:, 0].float().tolist()
        return found


def _refused(reference: str, what: str) -> InvalidArgument:
    return InvalidArgument(f"the reward model {reference} {what}", reason="REWARD_MODEL_UNUSABLE")
