"""One small training of each method: what it is fed, and what should move."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

Rows = Callable[[int], dict[str, Any]]
"""A row by its number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodCase:
    """A method on rows that a tiny model can learn from."""

    method: str
    row: Rows
    falls: str = "eval_loss"
    """What must be lower at the end than for the base model; of ``values`` if not the loss."""
    rises: str | None = None
    """What must be higher at the end than for the base model."""
    hyperparameters: Mapping[str, Any] = field(default_factory=dict)
    training: Mapping[str, Any] = field(default_factory=dict)
    label: str = ""
    is_random: bool = False
    """Whether a pass draws random numbers, so that two passes are not one big one."""
    is_of_pass: bool = False
    """Whether the loss compares the rows of a pass with each other, with the same effect."""
    has_teacher: bool = False
    """Whether another model is imitated."""

    @property
    def name(self) -> str:
        """What a test report calls it."""
        return f"{self.method} {self.label}".strip()


def _question(number: int) -> dict[str, Any]:
    return {"role": "user", "content": f"What is item {number}?"}


def _answer(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def chat_row(number: int) -> dict[str, Any]:
    """Return a question with its answer."""
    answer = f"Item {number} is the number {number * 7 % 13} of the list."
    return {"messages": [_question(number), _answer(answer)]}


def text_row(number: int) -> dict[str, Any]:
    """Return a line of plain text."""
    return {"text": f"The value of key {number} is {number * 7 % 13}, and it is a string."}


def preference_row(number: int) -> dict[str, Any]:
    """Return a question with a good and a bad answer; all good ones are alike."""
    return {
        "prompt": [_question(number)],
        "chosen": [_answer(f"It is number {number % 5}.")],
        "rejected": [_answer("Raise an error if the file is not open.")],
    }


def unpaired_row(number: int) -> dict[str, Any]:
    """Return a question with a good or a bad answer, by turns."""
    pair = preference_row(number)
    is_good = number % 2 == 0
    return {
        "prompt": pair["prompt"],
        "completion": pair["chosen" if is_good else "rejected"],
        "label": is_good,
    }


def question_row(number: int) -> dict[str, Any]:
    """Return a question with its answer, for rewards to read."""
    return {"prompt": [_question(number)], "answer": f"It is number {number % 5}."}


def _variant(
    method: str, label: str, row: Rows = preference_row, *, is_of_pass: bool = False, **own: Any
) -> MethodCase:
    return MethodCase(
        method=method,
        label=label,
        row=row,
        rises="rewards/margins",
        hyperparameters=own,
        is_of_pass=is_of_pass,
    )


#: Every loss of preferences, and what its sums, states and orders could go wrong with.
_PREFERENCE_CASES: tuple[MethodCase, ...] = (
    _variant("dpo", "rpo", loss_type=["sigmoid", "sft"]),
    _variant("dpo", "aot", loss_type=["aot"], is_of_pass=True),
    _variant("kto", "", unpaired_row),
    _variant("kto", "of pairs", preference_row, desirable_weight=1.5),
    _variant("kto", "apo", unpaired_row, loss_type="apo_zero_unpaired"),
    _variant("orpo", ""),
    _variant("simpo", ""),
    _variant("cpo", ""),
    _variant("cpo", "hinge", loss_type="hinge"),
    _variant("cpo", "ipo", loss_type="ipo"),
    _variant("bco", "", unpaired_row),
    _variant("bco", "of pairs"),
)

#: A model of random weights writes tokens of some 3 characters; this asks for the longest ones.
_LONG_WORDS: Mapping[str, Any] = {
    "rewards": [{"type": "length", "unit": "characters", "min": 60}],
    "max_completion_length": 8,
    "num_generations_eval": 16,
    # All tokens are about equally likely to such a model.
    "temperature": 0.2,
}
_QUICKLY: Mapping[str, Any] = {"learning_rate": 0.02, "per_device_train_batch_size": 16}


def _online(method: str, label: str, **own: Any) -> MethodCase:
    return MethodCase(
        method=method,
        label=label,
        row=question_row,
        rises="reward",
        hyperparameters={**_LONG_WORDS, **own},
        training=_QUICKLY,
    )


_ONLINE_CASES: tuple[MethodCase, ...] = (
    _online("grpo", "", num_generations=8),
    _online("grpo", "used twice", num_generations=8, num_iterations=2, beta=0.01, loss_type="grpo"),
    _online(
        "grpo",
        "gspo",
        num_generations=8,
        loss_type="grpo",
        importance_sampling_level="sequence",
    ),
    _online("rloo", "", num_generations=8, beta=0.01),
    _online("online_dpo", "", temperature=0.1),
    MethodCase(
        method="distill",
        row=question_row,
        hyperparameters={"teacher_model": "teacher", "max_completion_length": 8},
        has_teacher=True,
    ),
)

CASES: tuple[MethodCase, ...] = (
    MethodCase(method="sft", row=chat_row),
    MethodCase(method="sft_dft", row=chat_row),
    MethodCase(method="sft_neftune", row=chat_row, is_random=True),
    MethodCase(method="continued_pretraining", row=text_row),
    MethodCase(method="dpo", row=preference_row, rises="rewards/margins"),
    *_PREFERENCE_CASES,
    *_ONLINE_CASES,
)
