"""What is looked at before a model is loaded: room for completions, and columns for rewards."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lehr.errors import FieldViolation, InvalidArgument
from lehr.samples.canonical import from_line, lines_at_rest
from lehr.samples.prepare import PreparedData
from lehr.samples.rows import PromptAnswerRow
from lehr.samples.selection import Samples
from lehr.training.methods.online import OnlineHyperparameters, RewardedHyperparameters
from lehr.training.plan import TrainingPlan
from lehr.training.rewards import columns_of, item_of

Item = Mapping[str, Any]
"""Columns of a row that rewards read, by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Items:
    """Columns of all rows, in the order of the samples; empty where no reward reads any."""

    train: tuple[Item, ...] = ()
    validation: tuple[Item, ...] = ()


def look_at_rows(plan: TrainingPlan, data: PreparedData, *, context: int | None) -> Items:
    """Return what rewards read of the rows; nothing for methods that are not online.

    Raises:
        InvalidArgument: prompts and completions are longer than the model's context together, or a
            reward reads a column that no row has.
    """
    own = plan.spec.hyperparameters
    if isinstance(own, OnlineHyperparameters):
        _refuse_too_long(own, data, context)
    if not isinstance(own, RewardedHyperparameters):
        return Items()
    columns = columns_of(own.rewards)
    train = _items(plan.dataset_file, data.train, columns)
    held_out = plan.validation_file or plan.dataset_file
    validation = _items(held_out, data.validation, columns)
    _refuse_missing("training", columns, train)
    if validation:
        _refuse_missing("validation", columns, validation)
    return Items(train=train, validation=validation)


def _refuse_too_long(own: OnlineHyperparameters, data: PreparedData, context: int | None) -> None:
    longest = max(int(side.lengths.max(initial=0)) for side in (data.train, data.validation))
    together = longest + own.max_completion_length
    if context is None or together <= context:
        return
    what = (
        f"prompts have up to {longest} tokens and completions {own.max_completion_length}, and the "
        f"model reads {context}; set max_completion_length to at most {context - longest}, or "
        f"data.max_length to at most {context - own.max_completion_length}"
    )
    if own.max_completion_length >= context:
        what = (
            f"completions of {own.max_completion_length} tokens leave no room for a prompt in the "
            f"{context} tokens that the model reads; lower max_completion_length"
        )
    raise _refused("hyperparameters.max_completion_length", what, reason="NO_ROOM_FOR_COMPLETIONS")


def _items(path: Path, samples: Samples, columns: frozenset[str]) -> tuple[Item, ...]:
    """Return the wanted columns of each sample's row; the file is read once, in its own order."""
    if not columns or not len(samples):
        return ()
    wanted = set(samples.rows.tolist())
    found: dict[int, Item] = {}
    for number, line in enumerate(lines_at_rest(path)):
        if number in wanted:
            row = from_line(line).row
            if isinstance(row, PromptAnswerRow):
                item = item_of(row.columns, row.answer)
                found[number] = {name: item[name] for name in columns if name in item}
    return tuple(found.get(number, {}) for number in samples.rows.tolist())


def _refuse_missing(side: str, columns: frozenset[str], items: tuple[Item, ...]) -> None:
    for column in sorted(columns):
        if all(item.get(column) is None for item in items):
            has = sorted({name for item in items for name in item})
            told = f"of the columns that rewards name they have {', '.join(has) or 'none'}"
            what = (
                f"a reward reads the column {column!r}, which none of the {len(items)} {side} rows "
                f"has; {told}"
            )
            raise _refused("hyperparameters.rewards", what, reason="COLUMN_MISSING")


def _refused(field: str, what: str, *, reason: str) -> InvalidArgument:
    violation = FieldViolation(field=field, description=what)
    return InvalidArgument(what, reason=reason, fields=[violation])
