"""What a run was really given: the batches of each step, read with the toy tokenizer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from tests.support.toy_model import toy_tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenRow:
    """One row of a batch, without its padding."""

    token_ids: tuple[int, ...]
    trained: tuple[bool, ...]
    padding: tuple[int, ...]
    """Tokens in the places of the padding."""
    is_padding_trained: bool

    @property
    def text(self) -> str:
        """What is read."""
        return "".join(_words(self.token_ids))

    @property
    def answer(self) -> list[str]:
        """The tokens that are trained."""
        words = zip(_words(self.token_ids), self.trained, strict=True)
        return [word for word, is_trained in words if is_trained]


def watch_steps(monkeypatch: pytest.MonkeyPatch) -> list[list[SeenRow]]:
    """Note the rows of each optimiser step from now on; nothing of a run reports them."""
    from services.trainer_runner.trainer.methods.sft import AnswerTrainer  # noqa: PLC0415

    seen: list[list[SeenRow]] = []
    whole = AnswerTrainer.get_batch_samples

    def noted(self: Any, *args: Any) -> Any:
        batches, count = whole(self, *args)
        seen.append([row for batch in batches for row in _rows(batch)])
        return batches, count

    monkeypatch.setattr(AnswerTrainer, "get_batch_samples", noted)
    return seen


def _rows(batch: Any) -> list[SeenRow]:
    columns = (batch[name].tolist() for name in ("input_ids", "labels", "attention_mask"))
    found: list[SeenRow] = []
    for ids, labels, mask in zip(*columns, strict=True):
        length = sum(mask)
        assert mask == [1] * length + [0] * (len(mask) - length)
        labelled = list(zip(ids, labels, strict=True))[:length]
        assert all(label in (token, -100) for token, label in labelled)
        found.append(
            SeenRow(
                token_ids=tuple(ids[:length]),
                trained=tuple(label != -100 for label in labels[:length]),
                padding=tuple(ids[length:]),
                is_padding_trained=any(label != -100 for label in labels[length:]),
            )
        )
    return found


def _words(token_ids: tuple[int, ...]) -> list[str]:
    tokenizer = toy_tokenizer()
    return [str(tokenizer.id_to_token(token)) for token in token_ids]
