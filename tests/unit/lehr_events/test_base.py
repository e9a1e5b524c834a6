"""What every event model does, whatever it tells."""

import json
import math
from typing import ClassVar

import pytest
from pydantic import ValidationError

from lehr.events.base import READING, Event, Fact, Number


class Point(Fact):
    step: int
    value: Number


class RunTold(Event):
    NOUN: ClassVar[str] = "run"
    PAST: ClassVar[str] = "told"

    run_id: str
    points: tuple[Point, ...] = ()
    seconds: float = 0.0

    @property
    def subject_id(self) -> str:
        return self.run_id


def a_run_told(**changes: object) -> RunTold:
    return RunTold.model_validate({"tenant": "acme", "run_id": "run_1"} | changes)


def test_the_type_is_made_of_noun_past_and_version() -> None:
    assert RunTold.type_name() == "lehr.run.told.v1"


def test_an_event_does_not_change() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        a_run_told().run_id = "run_2"  # type: ignore[misc]


def test_an_event_without_a_subject_cannot_be_made() -> None:
    with pytest.raises(TypeError, match="abstract"):
        Event(tenant="acme")  # type: ignore[abstract]


def test_a_misspelled_field_is_refused_when_written() -> None:
    with pytest.raises(ValidationError, match="RunTold has no field run_idd"):
        a_run_told(run_idd="run_1")


def test_a_misspelled_field_of_a_part_is_refused_when_written() -> None:
    with pytest.raises(ValidationError, match="Point has no field valu"):
        a_run_told(points=[{"step": 1, "value": 0.5, "valu": 1}])


def test_unknown_fields_are_ignored_when_read_at_any_depth() -> None:
    read = RunTold.read(
        {
            "tenant": "acme",
            "run_id": "run_1",
            "newer": 1,
            "points": [{"step": 1, "value": 0.5, "newer": 2}],
        }
    )

    assert read == a_run_told(points=[{"step": 1, "value": 0.5}])


@pytest.mark.parametrize(
    ("value", "spelled"),
    [(math.nan, '"NaN"'), (math.inf, '"Infinity"'), (-math.inf, '"-Infinity"'), (0.1, "0.1")],
)
def test_a_number_travels_as_strict_json_and_comes_back(value: float, spelled: str) -> None:
    told = Point(step=1, value=value).model_dump_json()

    back = Point.model_validate(json.loads(told), context=READING)

    assert f'"value":{spelled}' in told
    assert back.value == value or (math.isnan(back.value) and math.isnan(value))


@pytest.mark.parametrize("value", ["nan", "inf", "1.5", "", None, True])
def test_other_spellings_of_a_number_are_refused(value: object) -> None:
    with pytest.raises(ValidationError):
        Point.model_validate({"step": 1, "value": value})


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_plain_float_must_be_finite(value: float) -> None:
    with pytest.raises(ValidationError, match="finite"):
        a_run_told(seconds=value)
