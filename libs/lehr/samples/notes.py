"""What a person should know about a row that can be trained: odd, but not wrong."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from lehr.samples.rows import Chat, PreferenceRow, PromptAnswerRow, Row

_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")


@dataclass(frozen=True, slots=True)
class Note:
    """A kind of oddity."""

    reason: str
    """Stable word."""
    description: str
    """What it means, to be read after the number of a line."""


CONTROL_CHARACTERS = Note("CONTROL_CHARACTERS", "holds control characters; they are trained as is")
NO_ANSWER = Note("NO_ANSWER", "has no assistant message, so nothing of it is trained")
ENDS_WITHOUT_ANSWER = Note("ENDS_WITHOUT_ANSWER", "does not end with an answer")
BEGINS_WITH_ANSWER = Note("BEGINS_WITH_ANSWER", "begins with an answer to no question")
ENDS_WITH_ANSWER = Note(
    "ENDS_WITH_ANSWER", "is a prompt that ends with an answer, which the model continues"
)
ANSWERS_IN_A_ROW = Note("ANSWERS_IN_A_ROW", "has two assistant messages in a row")
EMPTY_ANSWER = Note(
    "EMPTY_ANSWER", "has an assistant message without text, which teaches to say nothing"
)
TOOL_WITHOUT_CALL = Note(
    "TOOL_WITHOUT_CALL", "has a tool's answer to a call that is not in tool_calls before it"
)
SAME_ANSWERS = Note("SAME_ANSWERS", "has one answer as chosen and rejected; it teaches nothing")


def notes(row: Row, *, may_hold_controls: bool = True) -> Iterator[Note]:
    """Yield each kind of oddity of a row once.

    Who knows that a row holds no control characters says so, and its texts are not searched.
    """
    if may_hold_controls and any(map(_has_control, row.fields.values())):
        yield CONTROL_CHARACTERS
    if isinstance(row, PreferenceRow) and row.chosen == row.rejected:
        yield SAME_ANSWERS
    told: dict[Note, None] = {}
    for chat in row.chats:
        found = _prompt_notes(chat) if isinstance(row, PromptAnswerRow) else _chat_notes(chat)
        told |= dict.fromkeys(found)
    yield from told


def _prompt_notes(chat: Chat) -> Iterator[Note]:
    if chat and chat[-1]["role"] == "assistant":
        yield ENDS_WITH_ANSWER
    yield from _turn_notes(chat)


def _chat_notes(chat: Chat) -> Iterator[Note]:
    roles = [turn["role"] for turn in chat]
    if "assistant" not in roles:
        yield NO_ANSWER
    elif roles[-1] != "assistant":
        yield ENDS_WITHOUT_ANSWER
    if next((role for role in roles if role not in ("system", "developer")), "") == "assistant":
        yield BEGINS_WITH_ANSWER
    yield from _turn_notes(chat)


def _turn_notes(chat: Chat) -> Iterator[Note]:
    calls: list[Mapping[str, Any]] = []
    before = ""
    for turn in chat:
        role = turn["role"]
        if role == "assistant":
            calls = turn.get("tool_calls") or []
            if before == "assistant":
                yield ANSWERS_IN_A_ROW
            if not calls and not turn.get("content"):
                yield EMPTY_ANSWER
        elif role == "tool" and not _is_called(turn, calls):
            yield TOOL_WITHOUT_CALL
        before = role


def _is_called(turn: Mapping[str, Any], calls: list[Mapping[str, Any]]) -> bool:
    call_id, known = turn.get("tool_call_id"), {call.get("id") for call in calls} - {None}
    return bool(calls) and (call_id is None or not known or call_id in known)


def _has_control(value: Any) -> bool:
    if isinstance(value, str):
        return not value.isprintable() and _CONTROL.search(value) is not None
    if isinstance(value, Mapping):
        return any(map(_has_control, value.values()))
    return isinstance(value, list | tuple) and any(map(_has_control, value))
