"""Completions that a model writes to prompts, drawn from the random state that checkpoints keep."""

# R = prompts that are answered at once, P = tokens of the longest, C = of the longest completion

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import GenerationConfig, StoppingCriteria, StoppingCriteriaList

from lehr.training.methods.online import OnlineHyperparameters
from services.trainer_runner.trainer.state import RandomState

GoOn = Callable[[], bool]
"""Asked before each token: whether to go on writing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """What a model wrote to one prompt."""

    token_ids: tuple[int, ...]
    """At least one; with the token that ends it, where there is one."""
    is_whole: bool
    """Whether the model ended it itself, so that it was not cut off."""


class Writer:
    """Writes completions with one model."""

    def __init__(self, own: OnlineHyperparameters, *, end_ids: Sequence[int], pad_id: int) -> None:
        self._own = own
        self._end_ids = sorted(end_ids)
        self._pad_id = pad_id

    def sample(
        self, model: Any, prompts: Sequence[NDArray[np.int32]], go_on: GoOn, *, size: int | None
    ) -> list[Completion] | None:
        """Draw a completion for each prompt, ``size`` at once, or all of them.

        Returns None once ``go_on`` says no.
        """
        own = self._own
        config = GenerationConfig(
            do_sample=True,
            temperature=own.temperature,
            top_p=own.top_p,
            top_k=own.top_k,
            min_p=own.min_p,
            repetition_penalty=own.repetition_penalty,
            max_new_tokens=own.max_completion_length,
            eos_token_id=self._end_ids or None,
            pad_token_id=self._pad_id,
            use_cache=True,
            disable_compile=True,
        )
        return self._write(model, prompts, config, size, go_on)

    def _write(
        self,
        model: Any,
        prompts: Sequence[NDArray[np.int32]],
        config: GenerationConfig,
        size: int | None,
        go_on: GoOn,
    ) -> list[Completion] | None:
        found: list[Completion] = []
        each = size or len(prompts)
        asked = _Asked(go_on)
        model.eval()
        with torch.no_grad(), _settings_put_aside(model):
            for begin in range(0, len(prompts), each):
                ids, mask = left_padded(prompts[begin : begin + each], pad_id=self._pad_id)
                device = model.device
                written = model.generate(
                    input_ids=ids.to(device),
                    attention_mask=mask.to(device),
                    generation_config=config,
                    stopping_criteria=StoppingCriteriaList([asked]),
                )
                if asked.is_over:
                    return None
                found += map(self._completion, written[:, ids.shape[1] :].tolist())
        return found

    def _completion(self, token_ids: list[int]) -> Completion:
        ends = [at for at, token in enumerate(token_ids) if token in self._end_ids]
        if not ends:
            return Completion(token_ids=tuple(token_ids), is_whole=False)
        return Completion(token_ids=tuple(token_ids[: ends[0] + 1]), is_whole=True)


class _Asked(StoppingCriteria):  # type: ignore[misc]  # transformers is not typed here
    """Ends all completions of a batch once the answer is no."""

    def __init__(self, go_on: GoOn) -> None:
        self._go_on = go_on
        self.is_over = False

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        self.is_over = self.is_over or not self._go_on()
        return torch.full((len(input_ids),), self.is_over, device=input_ids.device)


@contextmanager
def drawn_apart(seed: int) -> Iterator[None]:
    """Draw from a seed of its own, and leave the random state of the training as it was."""
    kept = RandomState.now()
    torch.manual_seed(seed)
    try:
        yield
    finally:
        kept.restore()


@contextmanager
def _settings_put_aside(model: Any) -> Iterator[None]:
    """Hide the model's own way of generating, which would fill in what is left open."""
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    own, base.generation_config = base.generation_config, GenerationConfig()
    try:
        yield
    finally:
        base.generation_config = own


def left_padded(
    rows: Sequence[Sequence[int] | NDArray[np.int32]], *, pad_id: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return token ids and their mask, both of shape (R, P), dtype int64, padded on the left."""
    return _padded(rows, pad_id=pad_id, is_left=True)


def right_padded(
    rows: Sequence[Sequence[int] | NDArray[np.int32]], *, pad_id: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return token ids and their mask, both of shape (R, C), dtype int64, padded on the right."""
    return _padded(rows, pad_id=pad_id, is_left=False)


def _padded(
    rows: Sequence[Sequence[int] | NDArray[np.int32]], *, pad_id: int, is_left: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    shape = (len(rows), max(map(len, rows)))
    ids = np.full(shape, pad_id, dtype=np.int64)
    mask = np.zeros(shape, dtype=np.int64)
    for at, row in enumerate(rows):
        place = slice(shape[1] - len(row), None) if is_left else slice(len(row))
        ids[at, place] = row
        mask[at, place] = 1
    return torch.from_numpy(ids), torch.from_numpy(mask)
