"""Texts with holes, such as ``{{item.answer}}``: names are looked up, and nothing is executed."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Annotated, Any

import orjson
from pydantic import AfterValidator, Field

Path = tuple[str, ...]

_HOLE = re.compile(r"\{\{\s*([^\s{}]{1,500})\s*\}\}")
_OUTPUTS = ("output_text", "output_json")


def _checked(text: str) -> str:
    parts_of(text)
    return text


Template = Annotated[str, Field(max_length=10_000), AfterValidator(_checked)]
"""``{{item.<column>}}``, ``{{sample.output_text}}`` and ``{{sample.output_json.<field>}}`` are
replaced; deeper fields follow after further dots. Text stands as it is, other values as JSON."""


@lru_cache(maxsize=256)
def parts_of(template: str) -> tuple[str | Path, ...]:
    """Split a template into text and the names in its holes.

    Raises:
        ValueError: a hole is not closed, or names something that does not exist.
    """
    pieces = _HOLE.split(template)
    for text in pieces[::2]:
        if "{{" in text or "}}" in text:
            raise ValueError("has braces that hold no name; write {{item.<column>}}")
    return tuple(
        _path(piece) if at % 2 else piece for at, piece in enumerate(pieces) if at % 2 or piece
    )


def columns_in(template: str) -> frozenset[str]:
    """Return the columns of a row that a template names."""
    paths = (part for part in parts_of(template) if isinstance(part, tuple))
    return frozenset(path[1] for path in paths if path[0] == "item")


def render(template: str, look_up: Callable[[Path], Any]) -> str:
    """Fill a template in with what ``look_up`` gives for each hole."""
    return "".join(
        part if isinstance(part, str) else _text(look_up(part)) for part in parts_of(template)
    )


def _path(name: str) -> Path:
    path = tuple(name.split("."))
    if all(path) and len(path) > 1:
        if path[0] == "item":
            return path
        is_text = path == ("sample", "output_text")
        if is_text or (path[0] == "sample" and path[1] == "output_json"):
            return path
    outputs = " or ".join(f"{{{{sample.{one}}}}}" for one in _OUTPUTS)
    raise ValueError(f"names {name}, which there is not; use {{{{item.<column>}}}}, {outputs}")


def _text(value: Any) -> str:
    return value if isinstance(value, str) else orjson.dumps(value).decode()
