"""Hold out a share of the rows for validation, with exact copies always on one side."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lehr.errors import FieldViolation, InvalidArgument

Keys = NDArray[np.uint8]
"""Digests of rows, one a line of 16 bytes."""
RowNumbers = NDArray[np.int64]
"""Numbers of rows, from 0."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Split:
    """Rows of either side, in an order that the seed decides."""

    train: RowNumbers
    validation: RowNumbers


def shuffled(count: int, *, seed: int) -> RowNumbers:
    """Return the numbers 0 to ``count - 1`` in an order that only the seed decides."""
    # The one generator whose stream numpy promises never to change (NEP 19); a job that is resumed
    # after an upgrade must find its rows in the same order.
    order: RowNumbers = np.random.RandomState(seed).permutation(count)
    return order


def split_rows(keys: Keys, *, share: float, seed: int) -> Split:
    """Split rows, of which equal ``keys`` mean equal rows.

    ``share`` from 0.0 to below 1.0 is held out, rounded to whole rows, but at least one and never
    all; 0.0 holds out none. Both sides are shuffled, so the first n of one are a fair sample.

    Raises:
        InvalidArgument: a share is asked for that cannot leave a row on both sides.
    """
    order = shuffled(len(keys), seed=seed)
    if share == 0.0:
        return Split(train=order, validation=order[:0])
    is_held_out = _held_out(keys[order], share)
    return Split(train=order[~is_held_out], validation=order[is_held_out])


def as_words(keys: Keys) -> NDArray[np.void]:
    """Return each digest as one value that numpy can sort and compare."""
    words: NDArray[np.void] = np.ascontiguousarray(keys).view(f"V{keys.shape[1]}").ravel()
    return words


def _held_out(keys: Keys, share: float) -> NDArray[np.bool_]:
    _, first, groups, sizes = np.unique(
        as_words(keys), return_index=True, return_inverse=True, return_counts=True
    )
    if len(sizes) < 2:
        raise _too_few(len(keys), share)
    left = min(max(int(len(keys) * share + 0.5), 1), len(keys) - 1)
    chosen = np.zeros(len(sizes), dtype=np.bool_)
    by_place = np.argsort(first, kind="stable")
    for group, copies in zip(by_place.tolist(), sizes[by_place].tolist(), strict=True):
        if copies <= left:
            chosen[group] = True
            left -= copies
        if not left:
            break
    if not chosen.any():
        # Where every row has more copies than the share allows, the fewest go over.
        chosen[by_place[np.argmin(sizes[by_place])]] = True
    held_out: NDArray[np.bool_] = chosen[groups]
    return held_out


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
