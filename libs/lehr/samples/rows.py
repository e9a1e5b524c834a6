"""Read one JSON line of a dataset into a row; nothing is guessed and nothing is lost."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from lehr.errors import FieldViolation, InvalidArgument

RowKind = Literal["messages", "prompt_completion"]
Chat = tuple[dict[str, Any], ...]

ROLES = ("system", "developer", "user", "assistant", "tool")
_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One example, with the keys, their order and the nulls that its author wrote."""

    kind: RowKind
    messages: Chat = ()
    """The turns of a ``messages`` row."""
    prompt: str | Chat = ""
    """What a ``prompt_completion`` row shows the model."""
    completion: str | Chat = ""
    """What such a row teaches."""
    tools: tuple[dict[str, Any], ...] | None = None
    """Tools that the model is told about; None and an empty list render differently."""

    @property
    def turns(self) -> Chat:
        """The whole chat of a row that is one, prompt and completion joined."""
        if isinstance(self.prompt, str) or isinstance(self.completion, str):
            return self.messages
        return self.messages + self.prompt + self.completion

    def key(self) -> bytes:
        """Return a digest that equal rows share and different rows do not."""
        told = [self.kind, self.messages, self.prompt, self.completion, self.tools]
        return hashlib.sha256(json.dumps(told, ensure_ascii=True).encode()).digest()


def read_row(line: str, *, number: int) -> Row:
    """Read line ``number`` (from 1) of a dataset.

    Raises:
        InvalidArgument: the line is no row; the message names the line, the field and the cure.
    """
    reader = _Reader(number)
    try:
        found = json.loads(line, parse_constant=reader.constant)
    except RecursionError:
        raise reader.wrong("", "is nested too deeply to be read") from None
    except json.JSONDecodeError as error:
        raise reader.wrong("", f"is not JSON: {error.msg} at column {error.colno}") from error
    except ValueError as error:
        raise reader.wrong("", f"cannot be read: {error}") from error
    if not isinstance(found, dict):
        raise reader.wrong("", f"is {_type(found)}; write one JSON object a line")
    return reader.row(found)


def read_rows(path: Path) -> Iterator[Row]:
    """Read a JSON lines file row by row, blank lines left out.

    Raises:
        InvalidArgument: the first line that is no row.
    """
    for number, line in lines_of(path):
        yield read_row(line, number=number)


def lines_of(path: Path) -> Iterator[tuple[int, str]]:
    """Yield number (from 1) and text of each line that is not blank.

    Raises:
        InvalidArgument: a line is not UTF-8.
    """
    with path.open("rb") as file:
        for number, raw in enumerate(file, start=1):
            try:
                line = raw.decode("utf-8-sig" if number == 1 else "utf-8").strip()
            except UnicodeDecodeError as error:
                raise _Reader(number).wrong("", f"is not UTF-8 at byte {error.start}") from error
            if line:
                yield number, line


class _Reader:
    """Checks of one line, which know its number."""

    def __init__(self, number: int) -> None:
        self._number = number

    def wrong(self, field: str, what: str) -> InvalidArgument:
        where = f"line {self._number}" + (f", {field}" if field else "")
        return InvalidArgument(
            f"{where}: {what}",
            reason="ROW_INVALID",
            fields=[FieldViolation(field=field or "row", description=what)],
            line=self._number,
            field=field,
        )

    def constant(self, word: str) -> Any:
        raise self.wrong("", f"holds {word}, which is not JSON")

    def row(self, found: Mapping[str, Any]) -> Row:
        tools = self._tools(found.get("tools"))
        if found.get("messages") is not None:
            messages = self._chat(found["messages"], "messages")
            return Row(kind="messages", messages=messages, tools=tools)
        if found.get("prompt") is not None and found.get("completion") is not None:
            prompt = self._side(found["prompt"], "prompt")
            completion = self._side(found["completion"], "completion")
            if isinstance(prompt, str) != isinstance(completion, str):
                raise self.wrong("completion", "must be text or messages, whichever prompt is")
            if not completion:
                raise self.wrong("completion", "is empty; there is nothing to learn from")
            return Row(kind="prompt_completion", prompt=prompt, completion=completion, tools=tools)
        keys = ", ".join(sorted(map(repr, found))) or "none"
        raise self.wrong("", f"has neither messages nor prompt and completion; its keys: {keys}")

    def _side(self, value: Any, field: str) -> str | Chat:
        return self._text(value, field) if isinstance(value, str) else self._chat(value, field)

    def _chat(self, value: Any, field: str) -> Chat:
        if not isinstance(value, list):
            raise self.wrong(field, f"is {_type(value)}; write a list of messages")
        if not value and field != "prompt":
            raise self.wrong(field, "is empty; write at least one message")
        return tuple(self._message(turn, f"{field}[{at}]") for at, turn in enumerate(value))

    def _message(self, value: Any, field: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise self.wrong(field, f"is {_type(value)}; write an object with role and content")
        role = value.get("role")
        if role not in ROLES:
            raise self.wrong(f"{field}.role", f"is {role!r}; use one of {', '.join(ROLES)}")
        message = dict(value)
        if value.get("tool_calls") is not None:
            message["tool_calls"] = self._calls(value["tool_calls"], f"{field}.tool_calls")
        elif value.get("content") is None:
            raise self.wrong(f"{field}.content", "is missing; write text")
        self._content(value.get("content"), f"{field}.content")
        _each_text(message, field, self._text)
        return message

    def _content(self, value: Any, field: str) -> None:
        if isinstance(value, list):
            for at, part in enumerate(value):
                if not isinstance(part, dict) or part.get("type") != "text":
                    raise self.wrong(f"{field}[{at}]", 'is not {"type": "text", "text": ...}')
                if not isinstance(part.get("text"), str):
                    raise self.wrong(f"{field}[{at}].text", "is missing; write text")
        elif value is not None and not isinstance(value, str):
            raise self.wrong(field, f"is {_type(value)}; write text")

    def _calls(self, value: Any, field: str) -> list[dict[str, Any]]:
        if not isinstance(value, list):
            raise self.wrong(field, f"is {_type(value)}; write a list of calls")
        return [self._call(call, f"{field}[{at}]") for at, call in enumerate(value)]

    def _call(self, value: Any, field: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise self.wrong(field, f"is {_type(value)}; write an object")
        inner = value.get("function")
        if inner is None:
            return self._function(value, field)
        if not isinstance(inner, dict):
            raise self.wrong(f"{field}.function", f"is {_type(inner)}; write an object")
        return {**value, "function": self._function(inner, f"{field}.function")}

    def _function(self, value: dict[str, Any], field: str) -> dict[str, Any]:
        if not isinstance(value.get("name"), str):
            raise self.wrong(f"{field}.name", "is missing; write the tool's name")
        arguments = value.get("arguments")
        if isinstance(arguments, str):
            # Text and object mean the same; templates print an object without backslashes.
            arguments = self._arguments(arguments, f"{field}.arguments")
        if arguments is not None and not isinstance(arguments, dict):
            raise self.wrong(f"{field}.arguments", f"is {_type(arguments)}; write an object")
        return value if "arguments" not in value else {**value, "arguments": arguments}

    def _arguments(self, text: str, field: str) -> Any:
        try:
            return json.loads(text) if text.strip() else {}
        except ValueError as error:
            raise self.wrong(field, f"is text that is not JSON: {error}") from error

    def _tools(self, value: Any) -> tuple[dict[str, Any], ...] | None:
        if value is None:
            return None
        if not isinstance(value, list) or not all(isinstance(tool, dict) for tool in value):
            raise self.wrong("tools", "must be a list of objects")
        for at, tool in enumerate(value):
            _each_text(tool, f"tools[{at}]", self._text)
        return tuple(value)

    def _text(self, value: str, field: str) -> str:
        lone = _SURROGATE.search(value)
        if lone is not None:
            code = f"U+{ord(lone.group()):04X}"
            raise self.wrong(
                field, f"holds half a surrogate pair ({code}) at character {lone.start()}"
            )
        return value


def _each_text(value: Any, field: str, check: Callable[[str, str], str]) -> None:
    """Check every text in ``value``, keys included; lists and objects are walked."""
    if isinstance(value, str):
        check(value, field)
    elif isinstance(value, dict):
        for key, inner in value.items():
            check(key, field)
            _each_text(inner, f"{field}.{key}", check)
    elif isinstance(value, list):
        for at, inner in enumerate(value):
            _each_text(inner, f"{field}[{at}]", check)


def _type(value: Any) -> str:
    names: Iterable[tuple[type, str]] = (
        (bool, "true or false"),
        (str, "text"),
        (dict, "an object"),
        (list, "a list"),
        (int, "a number"),
        (float, "a number"),
    )
    return next((name for kind, name in names if isinstance(value, kind)), "null")
