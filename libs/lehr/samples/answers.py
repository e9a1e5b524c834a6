"""Find which characters of a rendered chat are the assistant's own, and prove it.

Training on the wrong characters is silent, so a span is used only if the template itself marks it,
or if rendering the chat turn by turn shows where it begins and ends and the answer lies inside.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from lehr.errors import InvalidArgument
from lehr.samples.chat import ChatTemplate, Message, Span
from lehr.samples.rows import Row

#: Stands for an answer while looking for what a template writes before one.
_PROBE = "lehrprobe"


def answer_spans(template: ChatTemplate, row: Row) -> tuple[str, list[Span]]:
    """Return the text of a row's chat and the spans of its answers, each with its end mark.

    In a ``prompt_completion`` row only the completion's answers are given.

    Raises:
        InvalidArgument: the answers cannot be told apart from the rest (TEMPLATE_HIDES_ANSWERS).
    """
    finder = _Finder(template, row)
    spans = finder.marked() if template.marks_answers else finder.turn_by_turn()
    return finder.text, spans


class _Finder:
    """One chat and its full text."""

    def __init__(self, template: ChatTemplate, row: Row) -> None:
        self._template = template
        self._turns = row.turns
        self._tools = list(row.tools) if row.tools is not None else None
        self._shown = 0 if isinstance(row.prompt, str) else len(row.prompt)
        if template.marks_answers:
            self.text, self._marks = template.render_marked(self._turns, tools=self._tools)
        else:
            self.text, self._marks = self._render(len(self._turns)), []

    def marked(self) -> list[Span]:
        """Return the template's own marks, after a look that they hold the last answer."""
        begin = 0
        if self._shown:
            prompt = self._render(self._shown)
            if not self.text.startswith(prompt):
                raise _hides("it renders the prompt differently once an answer follows")
            begin = len(prompt)
        spans = [span for span in self._marks if span.start >= begin]
        answers = list(self._answers())
        if not answers:
            return []
        if not spans:
            raise _hides("it has generation marks, but marks no answer of this chat")
        self._check(answers[-1], spans[-1])
        return spans

    def turn_by_turn(self) -> list[Span]:
        """Return where each answer lies between what is rendered before and after it."""
        spans = []
        for at in self._answers():
            span = Span(self._begin(at), self._end(at))
            self._check(at, span)
            spans.append(span)
        return spans

    def _answers(self) -> Iterator[int]:
        for at, turn in enumerate(self._turns):
            if turn["role"] == "assistant" and at >= self._shown:
                yield at

    def _begin(self, at: int) -> int:
        """Return where what the model is shown ends and what it must write begins."""
        prompt = self._generation_prompt(at)
        if prompt is not None and self.text.startswith(prompt):
            return len(prompt)
        # No usable generation prompt: see what the template writes before any answer.
        probe = {"role": "assistant", "content": _PROBE}
        probed = self._template.render([*self._turns[:at], probe], tools=self._tools)
        header, found, _ = probed.rpartition(_PROBE)
        if not found or not self.text.startswith(header):
            raise _hides(f"what it writes before message {at + 1} changes with what follows")
        return len(header)

    def _generation_prompt(self, at: int) -> str | None:
        try:
            prompt = self._render(at, add_generation_prompt=True)
            return prompt if prompt != self._render(at) else None
        except InvalidArgument:
            # Many templates refuse a chat without a user's turn.
            return None

    def _end(self, at: int) -> int:
        through = self._render(at + 1)
        if not self.text.startswith(through):
            raise _hides(f"it renders message {at + 1} differently once others follow")
        # Space after the end mark belongs to the layout, not to the answer.
        return len(through.rstrip()) if at + 1 < len(self._turns) else len(self.text.rstrip())

    def _render(self, count: int, *, add_generation_prompt: bool = False) -> str:
        turns = self._turns[:count]
        return self._template.render(
            turns, tools=self._tools, add_generation_prompt=add_generation_prompt
        )

    def _check(self, at: int, span: Span) -> None:
        inside = self.text[span.start : span.end]
        for part in _said(self._turns[at]):
            if part not in inside:
                raise _hides(f"the text of message {at + 1} is not where its answer should be")


def _said(turn: Message) -> Iterator[str]:
    """Yield what must be seen in an answer, without the parts that templates lay out anew."""
    content: Any = turn.get("content")
    parts = [part["text"] for part in content] if isinstance(content, list) else [content or ""]
    for part in parts:
        yield part.rsplit("</think>", maxsplit=1)[-1].strip()
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
