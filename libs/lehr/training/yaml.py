"""A job's YAML file: read it, and say for every mistake in which line it is."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from lehr.errors import FieldViolation
from lehr.training.proto import SpecInvalid, parse_spec
from lehr.training.spec import JobSpec

_MERGE = "tag:yaml.org,2002:merge"
# What tells the member of a union that did not fit, such as "str" or "tuple[str, ...]".
_UNION_MEMBER = re.compile(r"\.(str|int|float|bool|tuple\[.*\])$")


def read_spec(path: Path) -> JobSpec:
    """Read a job's file.

    Raises:
        SpecInvalid: with every wrong field by path and line.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SpecInvalid(f"{path} cannot be read: {error}", file=path) from None
    return spec_of(text, name=str(path))


def spec_of(text: str, *, name: str = "job.yaml") -> JobSpec:
    """Read a job's YAML text; ``name`` is what messages call it.

    Raises:
        SpecInvalid: with every wrong field by path and line.
    """
    loader: _Loader | None = None
    try:
        loader = _Loader(text)
        root = loader.get_single_node()
        values = None if root is None else loader.construct_document(root)
    except yaml.YAMLError as error:
        problem = FieldViolation(field="job", description=_told(error))
        raise _at(name, [(_line_of_error(error, text), problem)]) from None
    except RecursionError:
        deep = FieldViolation(field="job", description="is nested too deeply; a job has 3 levels")
        raise _at(name, [(1, deep)]) from None
    finally:
        if loader is not None:
            loader.dispose()
    if not isinstance(values, Mapping):
        what = "is empty" if values is None else "is no set of fields"
        wrong = FieldViolation(field="job", description=f"{what}; write fields, such as name: ...")
        raise _at(name, [(1, wrong)])
    lines = _lines(root)
    try:
        return parse_spec(values)
    except SpecInvalid as error:
        problems = {_named(one): (_line_of(one.field, lines), _named(one)) for one in error.fields}
        raise _at(name, list(problems.values())) from None


class _Loader(yaml.SafeLoader):
    """Plain values alone; a field that is given twice and a value that is none are errors."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        first: dict[str, yaml.Node] = {}
        for key, _ in node.value:
            if key.tag == _MERGE or not isinstance(key, yaml.ScalarNode):
                continue
            before = first.setdefault(key.value, key)
            if before is not key:
                line = before.start_mark.line + 1
                raise yaml.constructor.ConstructorError(
                    problem=f"has {key.value} twice, first in line {line}; keep one of them",
                    problem_mark=key.start_mark,
                )
        return super().construct_mapping(node, deep=deep)

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep=deep)
        except ValueError as error:
            # A date without such a day, or a number with too many digits.
            raise yaml.constructor.ConstructorError(
                problem=f"cannot be read: {error}", problem_mark=node.start_mark
            ) from None


def _told(error: yaml.YAMLError) -> str:
    if isinstance(error, yaml.reader.ReaderError):
        return "holds a character that is not printable; remove it"
    problem = str(getattr(error, "problem", None) or "is not YAML")
    return f"{problem}; indent with spaces" if r"'\t'" in problem else problem


def _line_of_error(error: yaml.YAMLError, text: str) -> int:
    if isinstance(error, yaml.reader.ReaderError):
        return text.count("\n", 0, error.position) + 1
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    return 1 if mark is None else mark.line + 1


def _lines(root: yaml.Node | None) -> dict[str, int]:
    """Map the path of each field to the line in which it stands, from 1."""
    found: dict[str, int] = {}
    # A node that is named again by an alias is followed once; it may hold itself.
    seen: set[int] = set()
    waiting: list[tuple[str, yaml.Node | None]] = [("", root)]
    while waiting:
        path, node = waiting.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        for name, place, value in _entries(node):
            inner = f"{path}.{name}" if path else name
            found[inner] = place.start_mark.line + 1
            waiting.append((inner, value))
    return found


def _entries(node: yaml.Node | None) -> list[tuple[str, yaml.Node, yaml.Node]]:
    if isinstance(node, yaml.MappingNode):
        return [(str(key.value), key, value) for key, value in node.value]
    if isinstance(node, yaml.SequenceNode):
        return [(str(at), value, value) for at, value in enumerate(node.value)]
    return []


def _named(violation: FieldViolation) -> FieldViolation:
    """Return a violation under the path as it was written, without the members of a union."""
    path = _UNION_MEMBER.sub("", violation.field)
    if path == violation.field:
        return violation
    shown, _, _ = violation.description.partition("; ")
    return FieldViolation(field=path, description=f"{shown}; write text or a list of texts")


def _line_of(field: str, lines: Mapping[str, int]) -> int:
    """Return the line of a field, or that of the nearest section around it."""
    parts = field.split(".")
    while parts:
        if line := lines.get(".".join(parts)):
            return line
        parts.pop()
    return 1


def _at(name: str, problems: list[tuple[int, FieldViolation]]) -> SpecInvalid:
    fields: list[FieldViolation] = [
        FieldViolation(field=one.field, description=f"line {line}: {one.description}")
        for line, one in problems
    ]
    told: list[Any] = [f"{name}:{line}: {one.field} {one.description}" for line, one in problems]
    return SpecInvalid("\n".join(told), fields=fields, file=name)
