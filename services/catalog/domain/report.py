"""The report of a dataset: every row is looked at, every kind of problem is counted once."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from lehr.errors import InvalidArgument
from lehr.samples.notes import notes
from lehr.samples.rows import Row
from services.catalog.domain.entries import RowProblem

LINES_SHOWN = 20
KINDS_MAX = 100
"""Kinds of problem that are told apart; further ones are counted together."""
ANY_FILE = -1
"""The file of what belongs to none, or is counted together over many."""

_DESCRIPTION_MAX = 300
_FURTHER = "further problems of this kind"
_INDEX = re.compile(r"\[\d+\]")
_PLACE = re.compile(r" at (?:column|byte|character) \d+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Copies:
    """Rows of one file that are exact copies of earlier rows of the dataset."""

    file: int
    row_count: int
    lines: tuple[int, ...]
    """The first of them."""


@dataclass(slots=True)
class _Kind:
    told: str = ""
    """What the first of them is, with its place; the description of a kind leaves places out."""
    is_error: bool = False
    row_count: int = 0
    lines: list[int] = field(default_factory=list)

    def add(self, count: int, lines: Iterable[int]) -> None:
        self.row_count += count
        self.lines.extend(lines)
        del self.lines[LINES_SHOWN:]


class Report:
    """Collects what is found in rows; reports of parts are merged in the order of their rows."""

    def __init__(self) -> None:
        self._kinds: dict[tuple[int, str, str], _Kind] = {}
        self._row_kinds: dict[str, dict[int, _Kind]] = {}
        self._layouts: Counter[str] = Counter()
        self.row_count = 0
        """Rows that can be read."""
        self.image_row_count = 0

    @property
    def row_kind(self) -> str:
        """Kind of most rows, the earlier one of two; empty where there are none."""
        counts = {
            kind: sum(one.row_count for one in files.values())
            for kind, files in self._row_kinds.items()
        }
        return max(counts, key=counts.__getitem__, default="")

    @property
    def layouts(self) -> dict[str, int]:
        """Rows of each layout by its name."""
        return dict(sorted(self._layouts.items()))

    def add_row(
        self, row: Row, layout: str, *, file: int, line: int, may_hold_controls: bool = True
    ) -> None:
        """Take a readable row into account; ``may_hold_controls`` as in ``notes``."""
        self.row_count += 1
        self.image_row_count += row.has_images
        self._layouts[layout] += 1
        self._row_kinds.setdefault(row.kind, {}).setdefault(file, _Kind()).add(1, (line,))
        for note in notes(row, may_hold_controls=may_hold_controls):
            self.add(note.reason, note.description, file=file, line=line)

    def add_unreadable(self, error: InvalidArgument, *, file: int, line: int) -> None:
        """Take a row into account that is none."""
        where = error.facts.get("field", "")
        what = error.fields[0].description if error.fields else error.message
        self.add(error.reason, f"{where} {what}".strip(), file=file, line=line, is_error=True)

    def add(
        self,
        reason: str,
        what: str,
        *,
        file: int,
        line: int | None,
        is_error: bool = False,
        count: int = 1,
    ) -> None:
        """Take anything else into account; ``line`` is None where a whole file is meant."""
        description = _PLACE.sub("", _INDEX.sub("[]", what))[:_DESCRIPTION_MAX]
        kind = self._kind(file, reason, description, told=what[:_DESCRIPTION_MAX])
        kind.is_error |= is_error
        kind.add(count, () if line is None else (line,))

    def merge(self, later: "Report") -> None:
        """Take the report of the rows that follow into account."""
        self.row_count += later.row_count
        self.image_row_count += later.image_row_count
        self._layouts += later._layouts
        for row_kind, files in later._row_kinds.items():
            mine = self._row_kinds.setdefault(row_kind, {})
            for file, kind in files.items():
                mine.setdefault(file, _Kind()).add(kind.row_count, kind.lines)
        for key, kind in later._kinds.items():
            known = self._kind(*key, told=kind.told)
            known.is_error |= kind.is_error
            known.add(kind.row_count, kind.lines)

    def has_problems(self, file: int) -> bool:
        """Tell whether anything was found in a file."""
        return any(key[0] == file for key in self._kinds)

    def finish(
        self, *, files: Sequence[str], copies: Sequence[Copies], copied_rows: int
    ) -> tuple[RowProblem, ...]:
        """Return the problems, errors first, most frequent first.

        ``files`` are their names by number; ``copied_rows`` is how many rows have ``copies``.
        """
        self._tell_mixed_kinds()
        self._tell_copies(copies, copied_rows)
        if not self.row_count and not any(kind.is_error for kind in self._kinds.values()):
            what = "the file has no rows; write one JSON object a line"
            self.add("NO_ROWS", what, file=0, line=1, is_error=True)
        several = len(files) > 1
        problems = [
            RowProblem(
                reason=reason,
                description=kind.told if kind.row_count == 1 and kind.told else description,
                row_count=kind.row_count,
                lines=() if file == ANY_FILE else tuple(kind.lines),
                is_error=kind.is_error,
                file=files[file] if several and file != ANY_FILE else "",
            )
            for (file, reason, description), kind in self._kinds.items()
        ]
        return tuple(sorted(problems, key=lambda one: (not one.is_error, -one.row_count)))

    def _tell_mixed_kinds(self) -> None:
        most = self.row_kind
        for row_kind, files in self._row_kinds.items():
            if row_kind == most:
                continue
            what = f"is a {row_kind} row among {most} rows; keep one kind a dataset"
            for file, found in files.items():
                kind = self._kind(file, "MIXED_KINDS", what)
                kind.is_error = True
                kind.add(found.row_count, found.lines)

    def _tell_copies(self, copies: Sequence[Copies], copied_rows: int) -> None:
        extra = sum(one.row_count for one in copies)
        what = (
            f"{_counted(extra, 'extra copy', 'extra copies')} of "
            f"{_counted(copied_rows, 'row', 'rows')}; copies stay on one side of the split"
        )
        for one in copies:
            self._kind(one.file, "DUPLICATE_ROW", what).add(one.row_count, one.lines)

    def _kind(self, file: int, reason: str, description: str, *, told: str = "") -> _Kind:
        key = (file, reason, description)
        if key not in self._kinds and len(self._kinds) >= KINDS_MAX:
            key = (file, reason, _FURTHER)
        if key not in self._kinds and len(self._kinds) >= 2 * KINDS_MAX:
            key = (ANY_FILE, reason, _FURTHER)
        if key[2] == _FURTHER:
            told = ""
        return self._kinds.setdefault(key, _Kind(told=told))


def _counted(count: int, one: str, many: str) -> str:
    return f"{count} {one if count == 1 else many}"
