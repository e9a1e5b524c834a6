"""Put short samples together into rows, so that little of a batch is padding."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def pack(lengths: Sequence[int], *, capacity: int) -> list[list[int]]:
    """Return the numbers of the samples of each row, longest row first; equal for equal input.

    Best-fit decreasing (Johnson 1974; for training Ding et al. 2024, "Fewer Truncations Improve
    Language Modeling"): each sample, longest first, goes where it leaves the least room. No sample
    is cut. ``lengths`` and ``capacity`` are tokens; no length is above ``capacity`` or below 1.
    """
    rows: list[list[int]] = []
    room_of_rows: dict[int, list[int]] = {}
    # Bit r is set where some row has room for exactly r more tokens.
    rooms = 0
    for number in np.argsort(-np.asarray(lengths, dtype=np.int64), kind="stable").tolist():
        length = int(lengths[number])
        if not 1 <= length <= capacity:
            raise ValueError(f"sample {number} has {length} tokens; a row takes 1 to {capacity}")
        fitting = rooms >> length
        if fitting:
            room = length + (fitting & -fitting).bit_length() - 1
            row = room_of_rows[room].pop()
            if not room_of_rows[room]:
                rooms &= ~(1 << room)
        else:
            room, row = capacity, len(rows)
            rows.append([])
        rows[row].append(number)
        left = room - length
        if left:
            room_of_rows.setdefault(left, []).append(row)
            rooms |= 1 << left
    return rows
