"""Find which characters of a rendered chat are the assistant's own, and prove it.

Training on the wrong characters is silent, so a span is used only if the template itself marks it,
or if rendering the chat in parts shows where it begins and ends and the answer lies inside. What a
template hides of an earlier answer (reasoning, as a rule) keeps that answer out of the loss.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from lehr.errors import InvalidArgument
from lehr.samples.chat import ChatTemplate, Message, Span
from lehr.samples.reasoning import BEGIN, END, Spoken, spoken

#: Stands for an answer while looking for what a template writes around one; a chat that holds the
#: word itself gets one with a number that it does not hold.
_PROBE = "lehrprobe"
_NUMBERED = re.compile(rf"{_PROBE}(\d{{1,9}})x")
_TWO_BLOCKS = re.compile(rf"{BEGIN}\s*{END}\s*{BEGIN}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """A rendered chat and where its answers lie."""

    text: str
    spans: tuple[Span, ...]
    """One an answer that is trained, each with its end mark, in order."""
    hidden_count: int = 0
    """Answers left out of the loss because the template hides part of what they say."""


def find_answers(
    template: ChatTemplate,
    turns: Sequence[Message],
    *,
    tools: Sequence[Mapping[str, Any]] | None = None,
    shown: int = 0,
) -> Answers:
    """Return the text of a chat and the spans of its answers, each with its end mark.

    The first ``shown`` turns are only read: nothing of them is trained.

    Raises:
        InvalidArgument: the answers cannot be told apart from the rest (TEMPLATE_HIDES_ANSWERS),
            or the template refuses the chat.
    """
    finder = _Finder(template, turns, tools, shown)
    return finder.marked() if template.marks_answers else finder.turn_by_turn()


class _Unstable(Exception):  # noqa: N818 - it says what a rendering is.
    """A template renders a turn differently once others follow."""


class _Finder:
    """One chat and its full text."""

    def __init__(
        self,
        template: ChatTemplate,
        turns: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None,
        shown: int,
    ) -> None:
        self._template = template
        self._turns = turns
        self._tools = tools
        self._shown = shown
        self._answers = [
            at for at, turn in enumerate(turns) if turn["role"] == "assistant" and at >= shown
        ]
        if template.marks_answers:
            self._text, self._marks = template.render_marked(turns, tools=tools)
        else:
            self._text, self._marks = self._render(len(turns)), []

    def marked(self) -> Answers:
        """Return the template's own marks, after a look that they hold the answers."""
        begin = 0
        if self._shown:
            prompt = self._render(self._shown)
            if not self._text.startswith(prompt):
                raise _hides("it renders the prompt differently once an answer follows")
            begin = len(prompt)
        spans = [span for span in self._marks if span.start >= begin]
        if not self._answers:
            return Answers(text=self._text, spans=())
        if not spans:
            raise _hides("it has generation marks, but marks no answer of this chat")
        self._check(self._answers[-1], spans[-1])
        if len(spans) != len(self._answers):
            # Which mark belongs to which answer is not known; what has no mark is not trained.
            unmarked = max(len(self._answers) - len(spans), 0)
            return Answers(text=self._text, spans=tuple(spans), hidden_count=unmarked)
        return self._answered(dict(zip(self._answers, spans, strict=True)))

    def turn_by_turn(self) -> Answers:
        """Return where each answer lies between what is rendered before and after it."""
        places: dict[int, Span] = {}
        for at in self._answers:
            try:
                span = Span(self._begin(at), self._end(at))
            except _Unstable as unstable:
                if at + 1 == len(self._turns):
                    raise _hides(str(unstable)) from None
                span = self._around_probe(at)
            self._check(at, span)
            places[at] = span
        return self._answered(places)

    def _answered(self, places: Mapping[int, Span]) -> Answers:
        """Leave out answers whose reasoning is hidden, all but the one that ends the chat."""
        told = {at: span for at, span in places.items() if self._tells_all(at, span)}
        last = len(self._turns) - 1
        if last not in places or last in told:
            hidden_count = len(places) - len(told)
            return Answers(text=self._text, spans=tuple(told.values()), hidden_count=hidden_count)
        text, span = self._as_spoken(last)
        if any(text[: one.end] != self._text[: one.end] for one in told.values()):
            raise _hides("it renders earlier turns differently before an answer is written")
        hidden_count = len(places) - len(told) - 1
        return Answers(text=text, spans=(*told.values(), span), hidden_count=hidden_count)

    def _begin(self, at: int) -> int:
        """Return where what the model is shown ends and what it must write begins."""
        prompt = self._generation_prompt(at)
        if prompt is not None and self._text.startswith(prompt):
            return len(prompt)
        # No usable generation prompt: see what the template writes before any answer.
        header, _ = self._around(self._turns[:at])
        if not self._text.startswith(header):
            raise _Unstable(f"what it writes before message {at + 1} changes with what follows")
        return len(header)

    def _generation_prompt(self, at: int) -> str | None:
        try:
            prompt = self._render(at, add_generation_prompt=True)
            return prompt if prompt != self._render(at) else None
        except InvalidArgument:
            # Many templates refuse a chat without a user's turn.
            return None

    def _end(self, at: int) -> int:
        if at + 1 == len(self._turns):
            return len(self._text.rstrip())
        through = self._render(at + 1)
        if not self._text.startswith(through):
            raise _Unstable(f"it renders message {at + 1} differently once others follow")
        # Space after the end mark belongs to the layout, not to the answer.
        return len(through.rstrip())

    def _around_probe(self, at: int) -> Span:
        """Return the span of an answer in the whole chat, found by exchanging it for a probe."""
        header, tail = self._around(self._turns[:at], self._turns[at + 1 :])
        text = self._text
        if not (
            text.startswith(header) and text.endswith(tail) and len(header) + len(tail) <= len(text)
        ):
            raise _hides(f"it renders the rest of the chat differently for other answers {at + 1}")
        _, mark = self._around(self._turns[:at])
        mark = mark.rstrip()
        if not tail.startswith(mark):
            raise _hides(f"it ends message {at + 1} differently once others follow")
        return Span(len(header), len(text) - len(tail) + len(mark))

    def _around(self, before: Sequence[Message], after: Sequence[Message] = ()) -> tuple[str, str]:
        """Return what is rendered before and after an answer between these turns."""
        turn = {"role": "assistant", "content": self._probe}
        probed = self._template.render([*before, turn, *after], tools=self._tools)
        # A template may repeat an answer: at its end of a chat it is the last one, before others
        # the first.
        at = probed.find(self._probe) if after else probed.rfind(self._probe)
        if at < 0:
            raise _hides("it does not show an answer as it is written")
        return probed[:at], probed[at + len(self._probe) :]

    @cached_property
    def _probe(self) -> str:
        told = str([self._turns, self._tools])
        if _PROBE not in told:
            return _PROBE
        taken = {int(number) for number in _NUMBERED.findall(told)}
        free = next(number for number in itertools.count() if number not in taken)
        return f"{_PROBE}{free}x"

    def _as_spoken(self, at: int) -> tuple[str, Span]:
        """Return the text of a chat whose last answer shows its reasoning, as a model writes it.

        Some templates strip reasoning even from the last answer, because they are written for
        inference: there, what the model writes after the prompt is never rendered again.
        """
        prompt = self._render(at, add_generation_prompt=True)
        said = spoken(self._turns[at])
        _, mark = self._around(self._turns[:at])
        if not self._template.knows_reasoning or self._turns[at].get("tool_calls"):
            raise _hides(
                f"it does not show the reasoning of message {at + 1}; write it into the content as "
                f"{BEGIN}...{END}, or leave it out"
            )
        text = prompt + said.written_after(prompt) + mark.rstrip()
        return text, Span(len(prompt), len(text))

    def _render(self, count: int, *, add_generation_prompt: bool = False) -> str:
        return self._template.render(
            self._turns[:count], tools=self._tools, add_generation_prompt=add_generation_prompt
        )

    def _check(self, at: int, span: Span) -> None:
        inside = self._text[span.start : span.end]
        for part in _said(self._turns[at]):
            if part not in inside:
                raise _hides(f"the text of message {at + 1} is not where its answer should be")
        if _TWO_BLOCKS.search(self._text[max(span.start - 40, 0) : span.end]):
            raise _hides(f"it writes an empty block before the reasoning of message {at + 1}")

    def _tells_all(self, at: int, span: Span) -> bool:
        """Return whether the reasoning of an answer is shown in its span."""
        reasoning = spoken(self._turns[at]).reasoning
        return reasoning in self._text[span.start : span.end]


def _said(turn: Message) -> Iterator[str]:
    """Yield what must be seen in an answer, without the parts that templates lay out anew."""
    said: Spoken = spoken(turn)
    for part in said.texts:
        yield part.strip()
    for call in turn.get("tool_calls") or ():
        function: Mapping[str, Any] = call.get("function", call)
        yield function["name"]


def _hides(why: str) -> InvalidArgument:
    return InvalidArgument(
        f"the model's chat template does not show which text is an answer: {why}; "
        "use a template with {% generation %} marks, or another model",
        reason="TEMPLATE_HIDES_ANSWERS",
        why=why,
    )
