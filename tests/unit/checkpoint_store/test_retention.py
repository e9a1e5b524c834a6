"""Retention against a model: random saves, deletes, pins and resumes with one to three kept."""

from dataclasses import replace
from typing import Any

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from services.checkpoint_store.domain.best import best_of
from services.checkpoint_store.domain.checkpoint import Checkpoint, CheckpointState, Job
from services.checkpoint_store.domain.retention import replaced_by, superseded_by, victims
from tests.unit.checkpoint_store.builders import a_checkpoint, a_job

LOSSES = st.sampled_from(["", "NaN", "Infinity", "-Infinity", "1.0", "1.5", "2.0", "0.5"])


def steps(found: tuple[Checkpoint, ...]) -> list[int]:
    return [each.step for each in found]


def test_the_newest_ordinary_ones_stay_whatever_order_they_come_in() -> None:
    saved = [a_checkpoint(step) for step in (30, 10, 50, 20, 40)]

    assert steps(victims(saved, a_job(max_checkpoints=2))) == [10, 20, 30]


def test_a_step_that_is_saved_again_is_there_once() -> None:
    again = a_checkpoint(40, epoch=2, loss="1.0")
    older = a_checkpoint(40, epoch=1, loss="1.0")

    assert replaced_by(again, [a_checkpoint(30), older, again]) == (older,)


def test_a_step_that_is_saved_again_with_less_replaces_nothing() -> None:
    evaluated = a_checkpoint(40, epoch=1, loss="1.0")
    plain = a_checkpoint(40, epoch=1)

    assert replaced_by(a_checkpoint(40, epoch=2), [evaluated]) == ()
    assert replaced_by(a_checkpoint(40, epoch=2, is_resumable=False), [plain]) == ()


def test_best_final_and_pinned_come_on_top() -> None:
    saved = [
        a_checkpoint(10, loss="1.0"),
        a_checkpoint(20, is_pinned=True),
        a_checkpoint(30),
        a_checkpoint(40),
        a_checkpoint(50),
        a_checkpoint(60, is_final=True),
    ]

    assert steps(victims(saved, a_job(max_checkpoints=2))) == [30]


def test_a_resume_source_stays_while_it_is_being_read() -> None:
    saved = [a_checkpoint(10), a_checkpoint(20), a_checkpoint(30)]
    job = a_job(max_checkpoints=1, resume_checkpoint_id="ckpt_1_10", is_resuming=True)

    assert steps(victims(saved, job)) == [20]
    assert steps(victims(saved, a_job(max_checkpoints=1, resume_checkpoint_id="ckpt_1_10"))) == [
        10,
        20,
    ]


def test_an_announced_best_stays_until_its_loss_is_known() -> None:
    job = a_job(max_checkpoints=1, expected_best_epoch=1, expected_best_step=10)

    assert steps(victims([a_checkpoint(10), a_checkpoint(20)], job)) == []
    known = [a_checkpoint(10, loss="NaN"), a_checkpoint(20)]
    assert steps(victims(known, job)) == [10]


def test_nothing_is_pruned_before_the_first_upload_said_how_many_to_keep() -> None:
    saved = [a_checkpoint(step) for step in range(9)]

    assert victims(saved, a_job(max_checkpoints=None)) == ()


def test_what_a_resume_made_obsolete_goes_first_and_displaces_nothing() -> None:
    saved = [a_checkpoint(10), a_checkpoint(20), a_checkpoint(99, is_superseded=True)]

    assert steps(victims(saved, a_job(max_checkpoints=2))) == [99]


def test_what_lies_past_the_resume_point_is_superseded() -> None:
    saved = [a_checkpoint(step) for step in (10, 20, 30)]

    assert steps(superseded_by(saved, resume_step=20)) == [30]
    assert steps(superseded_by(saved, resume_step=0)) == [10, 20, 30]


class Keeping(RuleBasedStateMachine):
    """What the store does to the rows of one job, and what must be true after each step."""

    @initialize(keep=st.integers(1, 3))
    def begin(self, keep: int) -> None:
        self.job: Job = a_job(max_checkpoints=keep)
        self.rows: dict[str, Checkpoint] = {}
        self.epoch, self.step = 1, 0

    @rule(advance=st.integers(1, 3), loss=LOSSES, is_final=st.booleans())
    def save(self, advance: int, loss: str, is_final: bool) -> None:
        self.step += advance
        saved = a_checkpoint(self.step, loss=loss, epoch=self.epoch, is_final=is_final)
        self.rows[saved.checkpoint_id] = saved
        self.prune()

    @rule(data=st.data())
    def pin(self, data: st.DataObject) -> None:
        self.change(data, is_pinned=data.draw(st.booleans()))
        self.prune()

    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        self.change(data, state=CheckpointState.DELETED)
        self.prune()

    @rule(data=st.data())
    def resume(self, data: st.DataObject) -> None:
        """A new run goes on from any visible checkpoint, or afresh."""
        point = data.draw(st.sampled_from([0, *[each.step for each in self.visible()]]))
        for gone in superseded_by(self.rows.values(), resume_step=point):
            state = gone.state if gone.is_pinned else CheckpointState.DELETED
            self.put(gone, is_superseded=True, state=state)
        for row in [each for each in self.rows.values() if each.step > point]:
            self.put(row, is_superseded=True)
        self.epoch, self.step = self.epoch + 1, point
        self.prune()

    @invariant()
    def no_more_than_so_many_ordinary_ones(self) -> None:
        best = best_of(self.rows.values())
        ordinary = [
            each
            for each in self.visible()
            if each is not best and not each.is_final and not each.is_pinned
        ]
        assert len(ordinary) <= (self.job.max_checkpoints or 0)
        assert not any(each.is_superseded for each in ordinary)

    @invariant()
    def best_is_the_lowest_of_everything_ever_saved_in_the_series_that_counts(self) -> None:
        counted = [
            each
            for each in self.rows.values()
            if not each.is_superseded and each.eval_loss is not None
        ]
        lowest = min((each.eval_loss or 0.0 for each in counted), default=None)
        first = min((each.step for each in counted if each.eval_loss == lowest), default=None)
        best = best_of(self.rows.values())
        shown = [each.step for each in counted if each.is_visible and each.step == first]
        assert best is None or (best.eval_loss, best.step) == (lowest, first)
        assert best is not None or not shown

    def prune(self) -> None:
        best = best_of(self.rows.values())
        doomed = victims(self.rows.values(), self.job)
        for each in doomed:
            assert each is not best
            assert not each.is_final
            assert not each.is_pinned
            self.put(each, state=CheckpointState.DELETED)

    def change(self, data: st.DataObject, **changes: Any) -> None:
        if visible := self.visible():
            self.put(data.draw(st.sampled_from(visible)), **changes)

    def put(self, row: Checkpoint, **changes: Any) -> None:
        now = self.rows[row.checkpoint_id]
        self.rows[row.checkpoint_id] = replace(now, **changes)

    def visible(self) -> list[Checkpoint]:
        return [each for each in self.rows.values() if each.is_visible]


TestKeeping = Keeping.TestCase
TestKeeping.settings = settings(max_examples=150, stateful_step_count=25, deadline=None)
