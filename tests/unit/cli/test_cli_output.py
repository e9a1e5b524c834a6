"""How commands talk: to the letter for people, strictly for programs."""

import json
from typing import Any

import pytest
import typer
from google.protobuf.timestamp_pb2 import Timestamp

from lehr.api.catalog.v1 import catalog_pb2
from lehr.api.common.v1.common_pb2 import Money
from lehr.api.scheduler.v1 import job_pb2
from lehr.cli.output import (
    clock,
    fail,
    money,
    print_json,
    print_json_line,
    print_table,
    size,
    when,
)
from lehr.errors import FieldViolation, InvalidArgument, NotFound
from lehr.training.yaml import spec_of

ODD = "[/red] [bold]x[/] \\[y] :warning: \xe9 \U0001f600 " + "long " * 60

Captured = pytest.CaptureFixture[str]


@pytest.mark.parametrize(
    ("count", "told"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1024**2, "1.0 MiB"),
        (5 * 1024**3, "5.0 GiB"),
        (1024**4, "1.0 TiB"),
        (3 * 1024**5, "3072.0 TiB"),
    ],
)
def test_bytes_have_a_binary_unit(count: int, told: str) -> None:
    assert size(count) == told


@pytest.mark.parametrize(
    ("seconds", "told"),
    [(0, "0:00"), (59.4, "0:59"), (-3, "0:00"), (61, "1:01"), (3600, "1:00:00")],
)
def test_seconds_are_told_like_a_clock(seconds: float, told: str) -> None:
    assert clock(seconds) == told


def test_money_is_told_exactly_and_its_absence_by_a_dash() -> None:
    assert money(Money(currency_code="EUR", micros=1)) == "0.000001 EUR"
    assert money(Money(currency_code="EUR", micros=-2_500_000)) == "-2.50 EUR"
    assert money(Money()) == "-"


def test_a_time_is_told_in_utc_and_its_absence_by_a_dash() -> None:
    assert when(Timestamp(seconds=86_400)) == "1970-01-02 00:00:00"
    assert when(Timestamp()) == "-"


def test_a_message_is_strict_json_with_the_names_of_the_protos(capsys: Captured) -> None:
    job = job_pb2.Job(job_id="job_1", state_message=ODD)
    job.progress.best_loss = float("nan")

    print_json(job)

    found = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert (found["job_id"], found["state_message"]) == ("job_1", ODD)
    assert found["progress"]["best_loss"] == "NaN"


def test_several_messages_are_one_json_list(capsys: Captured) -> None:
    print_json([catalog_pb2.Model(name="a"), catalog_pb2.Model(name="b")])

    assert [one["name"] for one in json.loads(capsys.readouterr().out)] == ["a", "b"]


@pytest.mark.parametrize("kind", [dict, catalog_pb2.Model])
def test_a_json_line_is_one_line_whatever_is_in_it(capsys: Captured, kind: Any) -> None:
    print_json_line(kind(license=ODD + "\n\r\0"))

    out = capsys.readouterr().out
    assert out.count("\n") == 1
    assert json.loads(out)["license"] == ODD + "\n\r\0"


def test_text_of_users_is_no_markup_in_a_table(capsys: Captured) -> None:
    words = ("[/red]", "[bold]x[/]", "\\[y]", ":warning:")

    print_table(("NAME", "COUNT"), [(word, 1) for word in words])

    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:]] == list(words)


def test_an_empty_table_has_its_columns(capsys: Captured) -> None:
    print_table(("NAME", "COUNT"), [])

    assert capsys.readouterr().out.split() == ["NAME", "COUNT"]


def test_an_error_goes_to_stderr_with_its_reason_in_one_line(capsys: Captured) -> None:
    with pytest.raises(typer.Exit) as ended:
        fail(NotFound(ODD, reason="JOB_NOT_FOUND"))

    told = capsys.readouterr()
    assert (ended.value.exit_code, told.out) == (1, "")
    assert told.err == f"error JOB_NOT_FOUND {ODD}\n"


def test_wrong_fields_are_told_once(capsys: Captured) -> None:
    known = FieldViolation(field="gpus", description="is 0; use 1")
    further = FieldViolation(field="tier", description="is unknown")

    with pytest.raises(typer.Exit):
        fail(InvalidArgument("the job cannot be read: gpus is 0; use 1", fields=[known, further]))

    assert capsys.readouterr().err.splitlines()[1:] == ["  tier: is unknown"]


def test_a_mistake_in_a_file_is_told_once(capsys: Captured) -> None:
    with pytest.raises(InvalidArgument) as refusal:
        spec_of("name: x\nmodel: m\ndataset: d\ngpus: -1\n")
    with pytest.raises(typer.Exit):
        fail(refusal.value)

    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("error SPEC_INVALID job.yaml:4: gpus is -1;")
