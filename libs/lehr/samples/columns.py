"""The user's column map: which of his columns is which field of a row."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from lehr.errors import FieldViolation, InvalidArgument
from lehr.samples.checks import parsed, wrong
from lehr.samples.rows import RowKind

OPTIONAL = frozenset({"tools", "images", "system"})
"""Fields that any map may add; null in a row means that it has none."""

KIND_OF: Mapping[frozenset[str], RowKind] = {
    frozenset({"messages"}): "messages",
    frozenset({"prompt", "completion"}): "prompt_completion",
    frozenset({"text"}): "text",
    frozenset({"prompt", "chosen", "rejected"}): "preference",
    frozenset({"chosen", "rejected"}): "preference",
    frozenset({"prompt", "completion", "label"}): "unpaired_preference",
    frozenset({"messages", "label"}): "unpaired_preference",
    frozenset({"prompt", "answer"}): "prompt_answer",
    frozenset({"prompt"}): "prompt_answer",
    frozenset({"prompt", "completions", "labels"}): "stepwise",
}
"""Fields that are mapped together, and the kind of row that they make."""

FIELDS = frozenset().union(*KIND_OF) | OPTIONAL

_MAY_BE_NULL = OPTIONAL | {"answer"}
_HEAD = re.compile(r"[a-z]+")


def check_columns(columns: Mapping[str, str]) -> RowKind:
    """Return the kind of row that a map (field to column) makes.

    Raises:
        InvalidArgument: a field is unknown, a column has no name, or the fields make no row.
    """
    unknown = sorted(set(columns) - FIELDS)
    if unknown:
        raise _refused(unknown[0], f"is no field; map {', '.join(sorted(FIELDS))}")
    for field, column in columns.items():
        if not column:
            raise _refused(field, "has no column")
    kind = KIND_OF.get(frozenset(columns) - OPTIONAL)
    if kind is None:
        mapped_fields = " and ".join(sorted(columns))
        sets = "; ".join(" and ".join(sorted(fields)) for fields in KIND_OF)
        raise _refused("", f"{mapped_fields} make no row; map one of: {sets}")
    return kind


def mapped(
    value: Mapping[str, Any], columns: Mapping[str, str]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the mapped fields of a row, and its other columns.

    A column may be a path with dots into objects, unless a column has just that name.

    Raises:
        InvalidArgument: a mapped column is missing, or null where the row needs it.
    """
    fields: dict[str, Any] = {}
    used = set()
    for field, column in columns.items():
        fields[field] = _at(value, field, column)
        used.add(column if column in value else column.split(".")[0])
        if fields[field] is None and field not in _MAY_BE_NULL:
            raise wrong(_both(field, column), "is null")
    return fields, {name: item for name, item in value.items() if name not in used}


def renamed(error: InvalidArgument, columns: Mapping[str, str]) -> InvalidArgument:
    """Return the refusal of a mapped row with the user's name of the column in it."""
    field = error.facts.get("field", "")
    head = _HEAD.match(field)
    if head is None or head.group() not in columns:
        return error
    name = head.group()
    return wrong(_both(name, columns[name] + field.removeprefix(name)), error.fields[0].description)


def _at(value: Mapping[str, Any], field: str, column: str) -> Any:
    if column in value:
        return value[column]
    found: Any = value
    for name in column.split("."):
        found = parsed(found, column, begins="{")
        if not isinstance(found, Mapping) or name not in found:
            raise wrong(_both(field, column), f"is missing; the columns are {names_of(value)}")
        found = found[name]
    return found


def names_of(value: Mapping[str, Any]) -> str:
    """Return the first of the columns of a row, to be named in a message."""
    names = [repr(str(name)[:40]) for name in value]
    more = f" and {len(names) - 12} more" if len(names) > 12 else ""
    return (", ".join(names[:12]) or "none") + more


def _both(field: str, column: str) -> str:
    return f"{column} (mapped to {field})"


def _refused(field: str, what: str) -> InvalidArgument:
    path = f"columns.{field}" if field else "columns"
    return InvalidArgument(
        f"{path}: {what}",
        reason="COLUMNS_INVALID",
        fields=[FieldViolation(field=path, description=what)],
        field=path,
    )
