"""Answers of plain chats found with two renderings, however long the chat is.

``find_answers`` renders a chat once or more for each of its turns. What a template writes around an
answer is nearly always the same, so it is learnt from made-up chats with that very function, and
then only recognised: a chat is rendered as it is and with marks around its answers, and where the
marks change anything else, or an answer stands in other surroundings than those learnt, nothing is
recognised. Whether it is depends on template and chat alone, never on other rows.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from lehr.errors import InvalidArgument
from lehr.samples.answers import Answers, find_answers
from lehr.samples.chat import ChatTemplate, Message, Span

#: Unicode noncharacters, which are for such uses within one program.
_BEGIN, _END = "\ufdee", "\ufdef"
_MARKS = re.compile(f"[{_BEGIN}{_END}]")
_KEYS = {"role", "content"}
#: Of reasoning, templates show now this and now that.
_THOUGHT = re.compile("</?think")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Surroundings:
    """What a template writes around an answer."""

    before: str
    """All between the text of the user's turn and that of the answer."""
    begin: int
    """Characters at its end that belong to the answer."""
    after: str
    """What follows the answer's text and belongs to it, such as an end mark."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Habits:
    """Surroundings of an answer with turns after it, and of the last one."""

    inner: _Surroundings
    last: _Surroundings


class SimpleChats:
    """What is known of a template's habits, with and without a system turn."""

    def __init__(self, template: ChatTemplate) -> None:
        self._template = template
        self._known: dict[bool, _Habits | None] = {}

    def find(self, turns: Sequence[Message], *, shown: int = 0) -> Answers | None:
        """Return what ``find_answers`` would, or None where it has to be asked.

        Raises:
            InvalidArgument: the template refuses the chat.
        """
        if not turns or self._template.marks_answers or not _is_simple(turns):
            return None
        habits = self._habits(has_system=turns[0]["role"] == "system")
        if habits is None:
            return None
        text = self._template.render(turns)
        if _MARKS.search(text):
            return None
        pieces = _MARKS.split(self._template.render([_marked(turn) for turn in turns]))
        answers = [at for at, turn in enumerate(turns) if turn["role"] == "assistant"]
        if [turns[at]["content"] for at in answers] != pieces[1::2] or "".join(pieces) != text:
            return None
        return self._placed(text, pieces, habits, answers, shown, len(turns))

    def _habits(self, *, has_system: bool) -> _Habits | None:
        # Learnt when first asked for: who only loads a model renders nothing.
        if has_system not in self._known:
            self._known[has_system] = _learnt(self._template, has_system)
        return self._known[has_system]

    def _placed(
        self,
        text: str,
        pieces: Sequence[str],
        habits: _Habits,
        answers: Sequence[int],
        shown: int,
        turns: int,
    ) -> Answers | None:
        spans: list[Span] = []
        place = 0
        for number, at in enumerate(answers):
            before, said, after = pieces[2 * number : 2 * number + 3]
            is_last = at + 1 == turns
            around = habits.last if is_last else habits.inner
            is_known = after.rstrip() == around.after if is_last else after.startswith(around.after)
            if not is_known or not before.endswith(around.before):
                return None
            begin = place + len(before)
            place = begin + len(said)
            if at >= shown:
                spans.append(Span(begin - around.begin, place + len(around.after)))
        return Answers(text=text, spans=tuple(spans))


def _is_simple(turns: Sequence[Message]) -> bool:
    """Return whether a chat is texts alone, user and assistant in turn after a system's text."""
    first = 1 if turns[0]["role"] == "system" else 0
    for at, turn in enumerate(turns):
        content = turn.get("content")
        if turn.keys() != _KEYS or not isinstance(content, str) or _THOUGHT.search(content):
            return False
        role = ("user", "assistant")[(at - first) % 2] if at >= first else "system"
        if turn["role"] != role:
            return False
    return True


def _marked(turn: Message) -> Message:
    if turn["role"] != "assistant":
        return turn
    return {**turn, "content": f"{_BEGIN}{turn['content']}{_END}"}


def _learnt(template: ChatTemplate, has_system: bool) -> _Habits | None:
    """Return a template's habits; None where they differ from turn to turn."""
    try:
        one, three = (_surroundings(template, has_system, pairs) for pairs in (1, 3))
    except InvalidArgument:
        return None
    if one is None or three is None or one[0] != three[2] or three[0] != three[1]:
        return None
    if not three[0].after or not three[2].after or not three[2].before:
        return None
    return _Habits(inner=three[0], last=three[2])


def _surroundings(
    template: ChatTemplate, has_system: bool, pairs: int
) -> list[_Surroundings] | None:
    turns = [{"role": "system", "content": "lehrrules"}] if has_system else []
    for pair in range(pairs):
        turns.append({"role": "user", "content": f"lehrasks{pair}."})
        turns.append({"role": "assistant", "content": f"lehrsays{pair}."})
    found = find_answers(template, turns)
    if len(found.spans) != pairs or found.hidden_count or found.text != template.render(turns):
        return None
    around: list[_Surroundings] = []
    for pair, span in enumerate(found.spans):
        asked, said = f"lehrasks{pair}.", f"lehrsays{pair}."
        if found.text.count(asked) != 1 or found.text.count(said) != 1:
            return None
        asked_end = found.text.index(asked) + len(asked)
        begin = found.text.index(said)
        end = begin + len(said)
        if not asked_end <= span.start <= begin <= end <= span.end:
            return None
        around.append(
            _Surroundings(
                before=found.text[asked_end:begin],
                begin=begin - span.start,
                after=found.text[end : span.end],
            )
        )
    return around
