"""The matrix: which kinds of rows each kind of method takes, and what a refusal says."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from lehr.samples.columns import KIND_OF, check_columns
from lehr.samples.layouts import recognise
from lehr.samples.rows import ROW_TYPES
from lehr.training import registry
from lehr.training.methods.base import ROW_KINDS, Method, Signal
from lehr.training.proto import parse_spec
from lehr.training.registry import problems
from tests.unit.samples.test_samples_layouts import EXAMPLES

TAKEN = {
    ("sft", "messages"),
    ("sft", "prompt_completion"),
    ("sft", "text"),
    ("continued_pretraining", "text"),
    ("preference", "preference"),
    ("unpaired", "unpaired_preference"),
    ("unpaired", "preference"),
    ("reward_based", "prompt_answer"),
    ("prompts", "prompt_answer"),
    ("stepwise", "stepwise"),
}


def told(signal: Signal, kind: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return what a method of one kind says to rows of another."""
    method = Method(method_id="m", title="M", signal=signal, source="none")
    monkeypatch.setattr(registry, "METHODS", {"m": method})
    spec = parse_spec({"name": "n", "model": "a", "dataset": "b"}).model_copy(
        update={"method": "m"}
    )
    return [one.description for one in problems(spec, row_kind=kind)]


@pytest.mark.parametrize("signal", get_args(Signal))
@pytest.mark.parametrize(("layout", "value", "row"), EXAMPLES)
def test_each_layout_is_taken_or_refused_by_each_kind_of_method(
    signal: Signal, layout: str, value: Any, row: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = recognise(value)[0].kind

    found = told(signal, kind, monkeypatch)

    assert bool(found) is ((signal, kind) not in TAKEN)
    if found:
        assert f"this dataset has {kind} rows; add it again with a column map of " in found[0]
        assert found[0].startswith(f"m needs {' or '.join(ROW_KINDS[signal])} rows; ")


def test_all_kinds_of_rows_and_methods_are_in_the_matrix() -> None:
    assert set(ROW_KINDS) == set(get_args(Signal))
    assert {kind for kinds in ROW_KINDS.values() for kind in kinds} == set(ROW_TYPES)
    assert {row.kind for _, _, row in EXAMPLES} == set(ROW_TYPES)


def test_every_kind_of_row_can_be_reached_by_a_map() -> None:
    kinds = {check_columns(dict.fromkeys(fields, "c")) for fields in KIND_OF}

    assert kinds == set(ROW_TYPES)


def test_supervised_fine_tuning_says_what_to_map() -> None:
    spec = parse_spec({"name": "n", "model": "a", "dataset": "b"})

    [problem] = problems(spec, row_kind="preference")

    assert problem.field == "dataset"
    assert problem.description == (
        "sft needs messages or prompt_completion or text rows; this dataset has preference rows; "
        "add it again with a column map of messages; or prompt and completion; or text"
    )
