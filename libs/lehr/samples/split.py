"""Hold out a share of the rows for validation, with exact copies always on one side."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from lehr.errors import FieldViolation, InvalidArgument


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Row numbers from 0 of either side, in an order that the seed decides."""

    train: list[int]
    validation: list[int]


def split_rows(keys: Sequence[Hashable], *, share: float, seed: int) -> Split:
    """Split rows, of which equal ``keys`` mean equal rows.

    ``share`` from 0.0 to below 1.0 is held out, rounded to whole rows, but at least one and never
    all; 0.0 holds out none. Both sides are shuffled, so the first n of one are a fair sample.

    Raises:
        InvalidArgument: a share is asked for that cannot leave a row on both sides.
    """
    order = list(range(len(keys)))
    random.Random(seed).shuffle(order)  # noqa: S311 - repeatable on purpose
    if share == 0.0:
        return Split(train=order, validation=[])
    held_out = _held_out([keys[at] for at in order], share)
    return Split(
        train=[at for at in order if keys[at] not in held_out],
        validation=[at for at in order if keys[at] in held_out],
    )


def _held_out(keys: Sequence[Hashable], share: float) -> set[Hashable]:
    copies = Counter(keys)
    if len(copies) < 2:
        raise _too_few(len(keys), share)
    left = min(max(int(len(keys) * share + 0.5), 1), len(keys) - 1)
    held_out: set[Hashable] = set()
    for key in copies:
        if copies[key] <= left:
            held_out.add(key)
            left -= copies[key]
    # Where every row has more copies than the share allows, the fewest go over.
    return held_out or {min(copies, key=copies.__getitem__)}


def _too_few(rows: int, share: float) -> InvalidArgument:
    what = (
        f"validation_split {share:g} needs at least two different rows, and there is 1 "
        f"(of {rows} in all), which cannot be both trained and validated; "
        "add rows, or set validation_split to 0"
    )
    return InvalidArgument(
        what,
        reason="TOO_FEW_ROWS",
        fields=[FieldViolation(field="data.validation_split", description=what)],
        rows=rows,
        share=share,
    )
