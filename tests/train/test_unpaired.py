"""Which row of a step is given the answer of which other one."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.train


@pytest.mark.parametrize("size", [1, 2, 3, 6])
def test_a_step_gives_its_rows_each_others_answers_however_it_is_cut(size: int) -> None:
    from services.trainer_runner.trainer.data.batches import epoch_order  # noqa: PLC0415
    from services.trainer_runner.trainer.data.unpaired import StepBatches  # noqa: PLC0415

    batches = StepBatches(20, batch_size=size, batches_per_step=6 // size, seed=3)
    for epoch in (0, 1):
        batches.epoch = epoch

        keys = [key for batch in batches for key in batch]

        assert [own for own, _ in keys] == epoch_order(20, seed=3, epoch=epoch)
        for begin in range(0, 20, 6):
            step = keys[begin : begin + 6]
            assert {own for own, _ in step} == {other for _, other in step}
            assert all(own != other for own, other in step)
            assert step[0][1] == step[-1][0]
        assert [len(batch) for batch in batches][-1] in (size, 20 % size)
