"""Rows that the requirements say to train on, through the trainer: TR-01 to 09, DS-01, DS-11."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lehr.errors import InvalidArgument
from lehr.samples.tokens import SampleTokenizer
from lehr.training.ends import RunEnd
from lehr.training.plan import TrainingPlan
from tests.support import required_rows as required
from tests.support.canonical_rows import write_canonical
from tests.support.toy_model import (
    MARKED_TEMPLATE,
    MARKS,
    PLAIN_TEMPLATE,
    SHOUTING_TEMPLATE,
    write_toy_model,
)
from tests.support.trainers import Told, a_plan
from tests.train.seen import SeenRow, watch_steps
from tests.unit.samples.test_samples_reasoning import FORGETFUL

pytestmark = [pytest.mark.train, pytest.mark.filterwarnings("ignore")]

Train = Callable[..., Told]
PARIS = [*"Paris.", "</s>"]


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[list[SeenRow]]:
    """The rows of each step."""
    return watch_steps(monkeypatch)


def on_rows(
    folder: Path, *lines: str, steps: int, data: dict[str, Any], **model: Any
) -> TrainingPlan:
    """Plan steps on all rows of the requirements, with a toy model of its own."""
    folder.mkdir(exist_ok=True)
    rows = write_canonical(folder / "rows.jsonl.zst", required.as_rows(*lines))
    spec = {
        "adapter": {"type": "full"},
        "training": {"max_steps": steps},
        "data": {"validation_split": 0.0, **data},
    }
    toy = write_toy_model(folder / "toy", **model)
    return a_plan(folder / "run", spec, model_dir=toy, dataset_file=rows)


def whole_ids(plan: TrainingPlan, line: str) -> list[int]:
    """Return the tokens of a row before any cut."""
    [found] = SampleTokenizer.load(plan.model_dir).encode(required.as_rows(line))
    return list(found.token_ids)


def is_sound(told: Told, *, steps: int) -> None:
    """Every step was taken, and none of them on nothing."""
    assert told.end == RunEnd.COMPLETED
    assert list(told.losses) == list(range(1, steps + 1))
    assert all(math.isfinite(loss) and loss > 0 for loss in told.losses.values())
    assert all(step.values["grad_norm"] > 0 for step in told.steps)


def test_of_an_overlong_row_exactly_the_last_64_tokens_are_trained_on(
    tmp_path: Path, train: Train, seen: list[list[SeenRow]]
) -> None:
    plan = on_rows(tmp_path, required.TR_01_A, steps=2, data={"max_length": 64})

    told = train(plan)

    is_sound(told, steps=2)
    whole = whole_ids(plan, required.TR_01_A)
    assert len(whole) == 311
    for [row] in seen:
        assert list(row.token_ids) == whole[-64:]
        assert row.answer == PARIS
    assert len(seen) == 2
    assert (
        "training: 1 sample is longer than 64 tokens, cut to the last 64; the longest has 311"
        in told.logs
    )
    assert "training: 1 of 1 rows are used; 7 of 64 tokens are trained" in told.logs


def test_with_drop_nothing_is_left_and_nothing_is_trained(
    tmp_path: Path, train: Train, seen: list[list[SeenRow]]
) -> None:
    data = {"max_length": 64, "overlong": "drop"}

    with pytest.raises(InvalidArgument, match="0 of 1 training rows are left: 1 dropped"):
        train(on_rows(tmp_path, required.TR_01_A, steps=2, data=data))

    assert seen == []


def test_of_an_answer_that_fills_the_maximum_all_64_tokens_are_trained(
    tmp_path: Path, train: Train, seen: list[list[SeenRow]]
) -> None:
    plan = on_rows(tmp_path, required.TR_01_B, steps=2, data={"max_length": 64})

    told = train(plan)

    is_sound(told, steps=2)
    whole = whole_ids(plan, required.TR_01_B)
    assert len(whole) == 110
    assert [list(row.token_ids) for [row] in seen] == [whole[-64:]] * 2
    assert [sum(row.trained) for [row] in seen] == [64] * 2
    assert seen[0][0].answer[-1] == "</s>"


def test_a_row_of_which_no_answer_is_left_is_in_no_step_and_counted_on_its_own(
    tmp_path: Path, train: Train, seen: list[list[SeenRow]]
) -> None:
    lines = (required.TR_01_A, required.TR_01_B, required.TR_01_C)
    plan = on_rows(tmp_path, *lines, steps=4, data={"max_length": 64})
    one_by_one = plan.spec.training.model_copy(update={"per_device_train_batch_size": 1})
    spec = plan.spec.model_copy(update={"training": one_by_one})

    told = train(plan.model_copy(update={"spec": spec}))

    is_sound(told, steps=4)
    kept = {tuple(whole_ids(plan, line)[-64:]) for line in lines[:2]}
    assert {row.token_ids for [row] in seen} == kept
    assert "training: 2 of 3 rows are used; 71 of 128 tokens are trained" in told.logs
    assert "training: 1 sample is without a token to train, left out" in told.logs
    assert "training: 3 samples are longer than 64 tokens" in told.logs
    with pytest.raises(InvalidArgument, match=r"0 dropped .* 1 without a token to train"):
        train(on_rows(tmp_path / "c", required.TR_01_C, steps=1, data={"max_length": 64}))


def test_two_templates_of_one_text_train_the_same_seven_tokens_to_the_same_losses(
    tmp_path: Path, train: Train, seen: list[list[SeenRow]]
) -> None:
    data = {"max_length": 512}
    told = [
        train(on_rows(tmp_path / name, *required.TR_03, steps=2, data=data, template=template))
        for name, template in (("plain", PLAIN_TEMPLATE), ("marked", MARKED_TEMPLATE))
    ]

    for run in told:
        is_sound(run, steps=2)
        assert "training: 1 of 1 rows are used; 7 of 311 tokens are trained" in run.logs
    assert told[0].losses == told[1].losses
    assert len({row for [row] in seen}) == 1
    assert (len(seen), len(seen[0][0].token_ids), seen[0][0].answer) == (4, 311, PARIS)


def test_a_template_that_upper_cases_all_text_trains_nothing(
    tmp_path: Path, train: Train, seen: list[list[SeenRow]]
) -> None:
    data = {"max_length": 512}
    plan = on_rows(tmp_path, *required.TR_03, steps=2, data=data, template=SHOUTING_TEMPLATE)

    with pytest.raises(InvalidArgument) as refused:
        train(plan)

    assert (refused.value.reason, seen) == ("TEMPLATE_HIDES_ANSWERS", [])


@pytest.mark.parametrize("pad_token", ["</s>", "<pad>"])
def test_the_end_of_every_answer_is_trained_and_padding_never_whatever_the_pad_token(
    tmp_path: Path, train: Train, seen: list[list[SeenRow]], pad_token: str
) -> None:
    plan = on_rows(tmp_path, *required.TR_05, steps=2, data={}, pad_token=pad_token)

    told = train(plan)

    is_sound(told, steps=2)
    for step in seen:
        short, long = sorted(step, key=lambda row: len(row.token_ids))
        assert (short.answer, long.answer) == ([*"Yo", "</s>"], [*"Yo yo yo", "</s>"])
        assert (short.padding, long.padding) == ((MARKS.index(pad_token),) * 6, ())
        assert not any(row.is_padding_trained for row in step)
    assert "training: 2 of 2 rows are used; 12 of 24 tokens are trained" in told.logs


@pytest.mark.parametrize("pad_token", ["</s>", "<pad>"])
@pytest.mark.parametrize(
    ("lines", "answers"),
    [
        (
            ('{"text": "Once."}', '{"text": "Once upon."}'),
            [[*"Once.", "</s>"], [*"Once upon.", "</s>"]],
        ),
        (
            (
                '{"prompt": "1+1=", "completion": "2"}',
                '{"prompt": "5+5=", "completion": "10"}',
            ),
            [["2", "</s>"], ["1", "0", "</s>"]],
        ),
    ],
    ids=["text", "prompt and completion"],
)
def test_a_document_has_one_trained_end_token(
    tmp_path: Path,
    train: Train,
    seen: list[list[SeenRow]],
    pad_token: str,
    lines: tuple[str, ...],
    answers: list[list[str]],
) -> None:
    is_sound(train(on_rows(tmp_path, *lines, steps=1, data={}, pad_token=pad_token)), steps=1)

    [step] = seen
    assert sorted((row.answer for row in step), key=len) == answers
    assert not any(row.is_padding_trained for row in step)


def test_reasoning_that_the_template_hides_is_not_trained_and_its_answers_are_counted(
    tmp_path: Path, train: Train, seen: list[list[SeenRow]]
) -> None:
    told = train(on_rows(tmp_path, *required.TR_09, steps=1, data={}, template=FORGETFUL))

    is_sound(told, steps=1)
    [step] = seen
    assert sorted("".join(row.answer) for row in step) == [
        "<think>\nfive and five\n</think>\n\n10.</s>",
        "<think>\nthree plus three\n</think>\n\n6.</s>",
    ]
    assert not any("two plus two" in row.text for row in step)
    assert "1 earlier answers are read but not trained, because the model's chat" in told.logs


def test_calls_and_tools_are_trained_with_exactly_their_own_keys(
    tmp_path: Path, train: Train, seen: list[list[SeenRow]]
) -> None:
    plan = on_rows(tmp_path, *required.DS_01, steps=1, data={}, template=required.TOOL_TEMPLATE)

    is_sound(train(plan), steps=1)

    [step] = seen
    texts = {row.text.split("<|user|>")[1].split("</s>")[0]: row.text for row in step}
    weather = texts["Weather in Oslo?"]
    assert 'weather{"city": "Oslo"}</s>' in weather
    assert "time" not in weather
    assert "note" not in weather
    assert 'book{"time": "2025-08-01"}</s>' in texts["Book for 1 August"]
    epoch = texts["Book at epoch time"]
    assert 'book_epoch{"time": 1754006400, "note": null}</s>' in epoch
    assert texts["Hello"] == "<s><|user|>Hello</s><|assistant|>Hi there</s>"
    answers = {row.text: "".join(row.answer) for row in step}
    assert answers[weather] == 'weather{"city": "Oslo"}</s>It is 4 degrees.</s>'
    assert answers[epoch] == 'book_epoch{"time": 1754006400, "note": null}</s>Done.</s>'


def test_control_characters_and_whole_pairs_are_trained_as_they_are(
    tmp_path: Path, train: Train, seen: list[list[SeenRow]]
) -> None:
    is_sound(train(on_rows(tmp_path, *required.DS_11_ACCEPTED, steps=1, data={})), steps=1)

    [step] = seen
    # The toy tokenizer has no token of its own for a character beyond its range.
    beyond = "\N{REPLACEMENT CHARACTER}"
    assert sorted(row.answer for row in step) == sorted(
        [[*"fine", "</s>"], ["a", "\0", "b", "</s>"], ["x", beyond, "y", "</s>"]]
    )
