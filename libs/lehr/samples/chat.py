"""Render chats with a model's own template, to the letter as transformers renders them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from lehr.errors import InvalidArgument

Message = Mapping[str, Any]
"""One turn: ``role``, ``content``, and whatever else its author wrote."""

_GENERATION = re.compile(r"\{%-?\s*generation\s*-?%\}")
#: Unicode noncharacters U+FDD0 to U+FDEF: two that no message holds mark the generated spans.
_NONCHARACTERS = tuple(chr(code) for code in range(0xFDD0, 0xFDF0))
_REASONING = ("reasoning_content", "thinking", "reasoning")
#: What a template may raise on a row that it was not written for.
_TEMPLATE_ERRORS = (
    jinja2.TemplateError,
    TypeError,
    ValueError,
    LookupError,
    ArithmeticError,
    AttributeError,
    RecursionError,
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
        try:
            self._template = _environment(now).from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise InvalidArgument(
                f"the chat template is not valid: line {error.lineno}: {error.message}",
                reason="TEMPLATE_INVALID",
                line=error.lineno,
            ) from error

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
    reasoning = next((shown[name] for name in _REASONING if name in shown), None)
    if reasoning is None:
        return shown
    return {"thinking": reasoning, **shown, "reasoning_content": reasoning}


class _Generation(jinja2.ext.Extension):
    """``{% generation %}``: the body is what an assistant writes."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it as a plain set

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        marks = jinja2.nodes.Name("lehr_marks", "load")
        call = self.call_method("_mark", [marks], lineno=line)
        return jinja2.nodes.CallBlock(call, [], [], body).set_lineno(line)

    def _mark(self, marks: tuple[str, str] | None, caller: Any) -> str:
        text: str = caller()
        return text if not marks else f"{marks[0]}{text}{marks[1]}"


class _Dict:
    """``dict`` as templates may use it: to build one, not to reach its type."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, keys: Any, value: Any = None) -> dict[Any, Any]:
        return dict.fromkeys(keys, value)


class _Namespace(jinja2.utils.Namespace):
    """``namespace`` without attributes that begin with an underscore."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        # `self` is positional so that a template may name an attribute `self`.
        self, *given = args
        attributes = dict(*given, **kwargs)
        for name in attributes:
            _refuse_private(name)
        jinja2.utils.Namespace.__init__(self, attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _refuse_private(name)
        super().__setitem__(name, value)


def _refuse_private(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise jinja2.exceptions.SecurityError(f"a template may not set {name!r} on a namespace")


def _environment(now: datetime | None) -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols]
    )

    def strftime_now(layout: str) -> str:
        return (now or datetime.now(UTC)).strftime(layout)

    environment.filters["tojson"] = _tojson
    environment.globals.update(
        raise_exception=_raise_exception,
        strftime_now=strftime_now,
        dict=_Dict(),
        namespace=_Namespace,
    )
    return environment


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes HTML, which would put < into training text.
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise_exception(message: str) -> str:
    raise jinja2.TemplateError(message)
