"""One example of a dataset, in one of seven kinds; its author's words are kept to the letter."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import orjson

RowKind = Literal[
    "messages",
    "prompt_completion",
    "text",
    "preference",
    "unpaired_preference",
    "prompt_answer",
    "stepwise",
]
Chat = tuple[dict[str, Any], ...]
"""Messages with ``role`` and ``content``, and with the keys, order and nulls of their author."""
Tools = tuple[dict[str, Any], ...]
Side = str | Chat
"""Text as it stands, or turns that a chat template renders."""

KEY_BYTES = 16
"""Length of a key; two of 2**40 different rows share one with a chance of 2**-49."""

_encode = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode


class _Keyed(ABC):
    """What all kinds of rows have."""

    __slots__: tuple[str, ...] = ()
    kind: ClassVar[RowKind]

    @property
    def has_images(self) -> bool:
        """Whether the row shows at least one image."""
        return bool(getattr(self, "images", ()))

    @property
    def fields(self) -> Mapping[str, Any]:
        """The row's fields by name, in the order in which they are declared."""
        return {name: getattr(self, name) for name in self.__slots__}

    @property
    def chats(self) -> tuple[Chat, ...]:
        """Each whole chat that the row can be read as; none for a row of text."""
        return ()

    def key(self) -> bytes:
        """Return the digest that equal rows share and different rows do not.

        Rows are equal as JSON values are: the order of keys does not matter, and 1, 1.0 and true
        differ.
        """
        return _digest([self.kind, *self.fields.values()])

    def prompt_key(self) -> bytes:
        """Return a digest of what the model is shown before it answers, tools and images included.

        Of a chat that is what stands before its last answer; of plain text it is all of it.
        """
        shown = getattr(self, "tools", None), getattr(self, "images", ())
        return _digest(["prompt", self._shown(), *shown])

    @abstractmethod
    def _shown(self) -> Side:
        """What the model is shown before it answers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRow(_Keyed):
    """A chat whose answers are all learnt."""

    kind: ClassVar[RowKind] = "messages"
    messages: Chat
    tools: Tools | None = None
    """Tools that the model is told about; None and an empty list render differently."""
    images: tuple[str, ...] = ()
    """Names of the pictures, one for each part ``{"type": "image"}``, in their order."""

    @property
    def chats(self) -> tuple[Chat, ...]:
        return (self.messages,)

    def _shown(self) -> Side:
        answers = [at for at, turn in enumerate(self.messages) if turn["role"] == "assistant"]
        return self.messages[: answers[-1]] if answers else self.messages


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptCompletionRow(_Keyed):
    """A prompt that is read and a completion that is learnt; both are text, or both messages."""

    kind: ClassVar[RowKind] = "prompt_completion"
    prompt: Side
    completion: Side
    tools: Tools | None = None
    images: tuple[str, ...] = ()

    @property
    def chats(self) -> tuple[Chat, ...]:
        return _joined(self.prompt, self.completion)

    def _shown(self) -> Side:
        return self.prompt


@dataclass(frozen=True, slots=True, kw_only=True)
class TextRow(_Keyed):
    """A document."""

    kind: ClassVar[RowKind] = "text"
    text: str

    def _shown(self) -> Side:
        return self.text


@dataclass(frozen=True, slots=True, kw_only=True)
class PreferenceRow(_Keyed):
    """Two answers to one prompt, of which one is better."""

    kind: ClassVar[RowKind] = "preference"
    prompt: Side
    chosen: Side
    rejected: Side
    tools: Tools | None = None
    images: tuple[str, ...] = ()
    """Pictures of the prompt, then of ``chosen``, then of ``rejected``."""

    @property
    def chats(self) -> tuple[Chat, ...]:
        return _joined(self.prompt, self.chosen) + _joined(self.prompt, self.rejected)

    def _shown(self) -> Side:
        return self.prompt


@dataclass(frozen=True, slots=True, kw_only=True)
class UnpairedRow(_Keyed):
    """One answer, and whether it is a good one."""

    kind: ClassVar[RowKind] = "unpaired_preference"
    prompt: Side
    completion: Side
    label: bool
    tools: Tools | None = None
    images: tuple[str, ...] = ()

    @property
    def chats(self) -> tuple[Chat, ...]:
        return _joined(self.prompt, self.completion)

    def _shown(self) -> Side:
        return self.prompt


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptAnswerRow(_Keyed):
    """A prompt that the model answers itself, with what rewards are computed from."""

    kind: ClassVar[RowKind] = "prompt_answer"
    prompt: Side
    answer: Any = None
    """The right answer, as JSON; None where there is none."""
    columns: Mapping[str, Any]
    """All other columns, as JSON, for reward functions."""
    tools: Tools | None = None
    images: tuple[str, ...] = ()

    @property
    def chats(self) -> tuple[Chat, ...]:
        return _joined(self.prompt)

    def _shown(self) -> Side:
        return self.prompt


@dataclass(frozen=True, slots=True, kw_only=True)
class StepwiseRow(_Keyed):
    """The steps of a solution, each right or wrong."""

    kind: ClassVar[RowKind] = "stepwise"
    prompt: str
    completions: tuple[str, ...]
    labels: tuple[bool, ...]
    """One for each of ``completions``."""

    def _shown(self) -> Side:
        return self.prompt


Row = (
    ChatRow
    | PromptCompletionRow
    | TextRow
    | PreferenceRow
    | UnpairedRow
    | PromptAnswerRow
    | StepwiseRow
)

ROW_TYPES: Mapping[str, type[Row]] = {
    row_type.kind: row_type
    for row_type in (
        ChatRow,
        PromptCompletionRow,
        TextRow,
        PreferenceRow,
        UnpairedRow,
        PromptAnswerRow,
        StepwiseRow,
    )
}


def _joined(*sides: Side) -> tuple[Chat, ...]:
    turns: Chat = ()
    for side in sides:
        if isinstance(side, str):
            return ()
        turns += side
    return (turns,)


def _digest(told: object) -> bytes:
    try:
        text = orjson.dumps(told, option=orjson.OPT_SORT_KEYS)
    except TypeError:
        # Numbers beyond 64 bits, and half a surrogate pair.
        text = _encode(told).encode()
    return hashlib.blake2b(text, digest_size=KEY_BYTES).digest()
