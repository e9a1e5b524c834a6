"""The report of a dataset: every row is looked at, every kind of problem is counted once."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lehr.errors import InvalidArgument
from lehr.samples.rows import Row
from services.catalog.domain.entries import RowProblem

LINES_SHOWN = 20
KINDS_MAX = 100
"""Kinds of problem that are told apart; further ones are counted together."""

_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_INDEX = re.compile(r"\[\d+\]")
_PLACE = re.compile(r" at (?:column|byte|character) \d+")


@dataclass(slots=True)
class _Kind:
    is_error: bool
    row_count: int = 0
    lines: list[int] = field(default_factory=list)

    def add(self, line: int) -> None:
        self.row_count += 1
        if len(self.lines) < LINES_SHOWN:
            self.lines.append(line)


class Report:
    """Collects what is found in the rows of one dataset."""

    def __init__(self) -> None:
        self._kinds: dict[tuple[str, str], _Kind] = {}
        self._first_line: dict[bytes, int] = {}
        self._row_kinds: dict[str, int] = {}
        self.row_count = 0

    @property
    def distinct_count(self) -> int:
        """Rows that are not copies of an earlier one."""
        return len(self._first_line)

    @property
    def row_kind(self) -> str:
        """Kind of the rows; that of the first where they differ."""
        return next(iter(self._row_kinds), "")

    @property
    def is_accepted(self) -> bool:
        """Whether nothing was found that forbids training on the rows."""
        return not any(kind.is_error for kind in self._kinds.values())

    def add_row(self, row: Row, *, line: int) -> None:
        """Take a readable row into account."""
        self.row_count += 1
        self._row_kinds.setdefault(row.kind, line)
        if row.kind != self.row_kind:
            self._note(
                "MIXED_KINDS",
                f"is a {row.kind} row among {self.row_kind} rows; keep one kind a dataset",
                line,
                is_error=True,
            )
        key = row.key()[:16]
        if self._first_line.setdefault(key, line) != line:
            self._note(
                "DUPLICATE_ROW",
                "is an exact copy of an earlier row; copies stay on one side of the split",
                line,
            )
        if _has_control(row):
            self._note(
                "CONTROL_CHARACTERS", "holds control characters; they are trained as is", line
            )
        self._look_at_turns(row, line)

    def add_unreadable(self, error: InvalidArgument, *, line: int) -> None:
        """Take a line into account that is no row."""
        where = _INDEX.sub("[]", error.facts.get("field", ""))
        what = error.fields[0].description if error.fields else error.message
        told = f"{where} {_PLACE.sub('', what)}".strip()
        self._note("ROW_INVALID", told[:300], line, is_error=True)

    def finish(self) -> tuple[RowProblem, ...]:
        """Return the problems, errors first, most frequent first."""
        if not self.row_count and not self._kinds:
            self._note(
                "NO_ROWS", "the file has no rows; write one JSON object a line", 1, is_error=True
            )
        problems = [
            RowProblem(
                reason=reason,
                description=description,
                row_count=kind.row_count,
                lines=tuple(kind.lines),
                is_error=kind.is_error,
            )
            for (reason, description), kind in self._kinds.items()
        ]
        return tuple(sorted(problems, key=lambda one: (not one.is_error, -one.row_count)))

    def _look_at_turns(self, row: Row, line: int) -> None:
        roles = [turn["role"] for turn in row.turns]
        if not roles:
            return
        if "assistant" not in roles:
            self._note("NO_ANSWER", "has no assistant message, so nothing of it is trained", line)
        elif roles[-1] != "assistant":
            self._note("ENDS_WITHOUT_ANSWER", "does not end with an answer", line)
        if next((role for role in roles if role not in ("system", "developer")), "") == "assistant":
            self._note("BEGINS_WITH_ANSWER", "begins with an answer to no question", line)

    def _note(self, reason: str, description: str, line: int, *, is_error: bool = False) -> None:
        key = (reason, description)
        if key not in self._kinds and len(self._kinds) >= KINDS_MAX:
            key = (reason, "further problems of this kind")
        self._kinds.setdefault(key, _Kind(is_error)).add(line)


def _has_control(row: Row) -> bool:
    return any(
        _in_text(part) for part in (row.prompt, row.completion, *row.messages, row.tools or ())
    )


def _in_text(value: Any) -> bool:
    if isinstance(value, str):
        return _CONTROL.search(value) is not None
    if isinstance(value, Mapping):
        return any(map(_in_text, value.values()))
    return isinstance(value, list | tuple) and any(map(_in_text, value))
