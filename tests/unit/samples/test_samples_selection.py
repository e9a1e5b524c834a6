"""Samples as views of a table: what is trained of them, their ends, and the tokens they use."""

from __future__ import annotations

import numpy as np

from lehr.samples.length import fit
from lehr.samples.selection import Sample, Samples
from tests.unit.samples.test_samples_length import a_mask, a_table

#: A wrong step, a right one, and what is only read.
STEPS = Sample(np.array([7, 8, 9, 5], dtype=np.int32), np.array([0, 1, 0, 2], dtype=np.uint8))


def test_a_verdict_of_either_kind_is_one_trained_token() -> None:
    assert STEPS.trained_count == 2
    assert STEPS.labels().tolist() == [-100, 8, -100, 5]
    assert STEPS.labels(-1).tolist() == [-1, 8, -1, 5]


def test_the_highest_token_is_that_of_what_is_used() -> None:
    table = a_table(a_mask(4, range(2, 4)), a_mask(9, range(1)), a_mask(3, range(1, 3)))

    kept = Samples(table, fit(table, np.array([2, 0]), max_length=3, overlong="truncate"))
    none = Samples(table, fit(table, np.array([1]), max_length=3, overlong="truncate"))

    assert kept.highest_token() == 15
    assert [sample.token_ids.tolist() for sample in kept] == [[13, 14, 15], [1, 2, 3]]
    assert kept.lengths.tolist() == [3, 3]
    assert none.highest_token() == -1


def test_the_length_of_a_preference_is_that_of_its_prompt_and_both_answers() -> None:
    table = a_table([[0, 0], [1, 1, 1], [1]], kind="preference")

    found = Samples(table, fit(table, np.array([0]), max_length=9, overlong="drop"))

    assert found.lengths.tolist() == [len(found[0])] == [6]
    chosen, rejected = found.sides(0)
    assert (chosen.token_ids.tolist(), rejected.token_ids.tolist()) == ([0, 1, 2, 3, 4], [0, 1, 5])
