"""Render chats with a model's own template, to the letter as transformers renders them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import jinja2

from lehr.errors import InvalidArgument
from lehr.samples.reasoning import END, FIELDS, with_whole_block
from lehr.samples.sandbox import budget, compiled

Message = Mapping[str, Any]
"""One turn: ``role``, ``content``, and whatever else its author wrote."""

_GENERATION = re.compile(r"\{%-?\s*generation\s*-?%\}")
#: Unicode noncharacters U+FDD0 to U+FDEF: two that no message holds mark the generated spans.
_NONCHARACTERS = tuple(chr(code) for code in range(0xFDD0, 0xFDF0))
#: What a template may raise on a row that it was not written for.
_TEMPLATE_ERRORS = (
    jinja2.TemplateError,
    TypeError,
    ValueError,
    LookupError,
    ArithmeticError,
    AssertionError,
    AttributeError,
    RuntimeError,
)


@dataclass(frozen=True, slots=True)
class Span:
    """Characters ``start`` to before ``end`` of a rendered text."""

    start: int
    end: int


class ChatTemplate:
    """A compiled chat template with the special tokens that it may name."""

    def __init__(
        self, source: str, *, special_tokens: Mapping[str, str], now: datetime | None = None
    ) -> None:
        """Compile ``source``; ``now`` fixes the date of templates that print it.

        Raises:
            InvalidArgument: the template is not valid Jinja.
        """
        self._special_tokens = dict(special_tokens)
        self.marks_answers = _GENERATION.search(source) is not None
        """Whether the template says itself which text an assistant generates."""
        self.knows_reasoning = END in source
        """Whether the template was written for a model that reasons before it answers."""
        try:
            self._template = compiled(source, now=now)
        except jinja2.TemplateSyntaxError as error:
            raise InvalidArgument(
                f"the chat template is not valid: line {error.lineno}: {error.message}",
                reason="TEMPLATE_INVALID",
                line=error.lineno,
            ) from error
        except RecursionError:
            raise InvalidArgument(
                "the chat template is not valid: it is nested too deeply", reason="TEMPLATE_INVALID"
            ) from None

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = False,
    ) -> str:
        """Return the text of a chat.

        Raises:
            InvalidArgument: the template refuses these messages.
        """
        return self._render(messages, tools, add_generation_prompt, marks=None)

    def render_marked(
        self, messages: Sequence[Message], *, tools: Sequence[Mapping[str, Any]] | None = None
    ) -> tuple[str, list[Span]]:
        """Return the text and the spans between the template's generation marks."""
        used = set(json.dumps([list(messages), tools], ensure_ascii=False))
        begin, end = [mark for mark in _NONCHARACTERS if mark not in used][:2]
        marked = self._render(messages, tools, False, marks=(begin, end))
        return _take_marks(marked, begin, end)

    def _render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None,
        add_generation_prompt: bool,
        *,
        marks: tuple[str, str] | None,
    ) -> str:
        try:
            with budget():
                return self._template.render(
                    **self._special_tokens,
                    messages=[_as_templates_expect(message) for message in messages],
                    tools=tools,
                    documents=None,
                    add_generation_prompt=add_generation_prompt,
                    lehr_marks=marks,
                )
        except _TEMPLATE_ERRORS as error:
            raise InvalidArgument(
                f"the model's chat template refuses the messages: {error}",
                reason="TEMPLATE_REFUSES_ROW",
                detail=error,
            ) from error


def _take_marks(marked: str, begin: str, end: str) -> tuple[str, list[Span]]:
    parts: list[str] = []
    spans: list[Span] = []
    length = 0
    for number, piece in enumerate(re.split(f"[{begin}{end}]", marked)):
        # Odd pieces lie between a begin and an end mark.
        if number % 2 == 1 and piece:
            spans.append(Span(length, length + len(piece)))
        parts.append(piece)
        length += len(piece)
    return "".join(parts), spans


def _as_templates_expect(message: Message) -> dict[str, Any]:
    """Leave out keys that are null, and give reasoning under every name that templates read."""
    shown = {key: value for key, value in message.items() if value is not None}
    if message["role"] == "assistant" and isinstance(message.get("content"), str):
        shown["content"] = with_whole_block(message["content"])
    reasoning = next((shown[name] for name in FIELDS if name in shown), None)
    if reasoning is None:
        return shown
    return {"thinking": reasoning, **shown, "reasoning_content": reasoning}
