"""The report of a dataset: every line counts once, under its real number."""

import io
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.catalog.domain.entries import RowProblem
from services.catalog.domain.report import KINDS_MAX, LINES_SHOWN, Report
from services.catalog.handlers.datasets import look_at_lines


def turn(role: str, content: Any = "x") -> dict[str, Any]:
    """Return a message."""
    return {"role": role, "content": content}


def chat(*turns: dict[str, Any]) -> str:
    """Return the line of a row of messages."""
    return json.dumps({"messages": list(turns)})


def good(number: int = 0) -> str:
    """Return the line of a row in which nothing is wrong."""
    return chat(turn("user", f"q{number}"), turn("assistant", f"a{number}"))


def look(*lines: str | bytes, end: bytes = b"\n", **limits: int) -> Report:
    """Look at lines of a file."""
    raw = [line.encode() if isinstance(line, str) else line for line in lines]
    return look_at_lines(io.BytesIO(b"".join(line + end for line in raw)), **limits)


def only(report: Report) -> RowProblem:
    """Return the one problem."""
    [problem] = report.finish()
    return problem


def test_good_rows_have_no_problems() -> None:
    report = look(*(good(number) for number in range(5)))

    assert (report.row_count, report.distinct_count, report.finish()) == (5, 5, ())
    assert report.is_accepted


@pytest.mark.parametrize(
    ("line", "reason", "is_error", "words"),
    [
        ("{", "ROW_INVALID", True, "is not JSON"),
        ("[1]", "ROW_INVALID", True, "one JSON object a line"),
        ("{}", "ROW_INVALID", True, "neither messages nor prompt"),
        (chat(turn("bing")), "ROW_INVALID", True, "'bing'"),
        (chat(), "ROW_INVALID", True, "is empty"),
        ('{"messages": [{"role": "user", "content": NaN}]}', "ROW_INVALID", True, "NaN"),
        (chat(turn("user", "x\ud83dy")), "ROW_INVALID", True, "surrogate"),
        ('{"prompt": "p", "completion": "c"}', "MIXED_KINDS", True, "prompt_completion"),
        (good(1), "DUPLICATE_ROW", False, "copy"),
        (chat(turn("user", "a\0b"), turn("assistant")), "CONTROL_CHARACTERS", False, "control"),
        (chat(turn("user")), "NO_ANSWER", False, "no assistant"),
        (
            chat(turn("user"), turn("assistant"), turn("user", "y")),
            "ENDS_WITHOUT_ANSWER",
            False,
            "does not end",
        ),
        (
            chat(turn("system"), turn("assistant")),
            "BEGINS_WITH_ANSWER",
            False,
            "begins with an answer",
        ),
    ],
)
def test_each_kind_of_problem_has_its_reason_and_line(
    line: str, reason: str, is_error: bool, words: str
) -> None:
    report = look(good(1), good(2), line)

    problem = only(report)

    assert (problem.reason, problem.row_count, problem.lines) == (reason, 1, (3,))
    assert problem.is_error is is_error
    assert report.is_accepted is not is_error
    assert words in problem.description


def test_lines_that_are_not_utf8_are_named_and_the_next_are_read() -> None:
    report = look(good(1), b"\xff\xfe{", good(2))

    assert (only(report).lines, report.row_count) == ((2,), 2)
    assert "UTF-8" in only(report).description


def test_a_file_without_rows_is_refused() -> None:
    report = look("", "  ", "\t")

    assert only(report).reason == "NO_ROWS"
    assert not report.is_accepted


@given(st.integers(0, 60))
def test_all_are_counted_and_the_first_twenty_lines_shown(count: int) -> None:
    report = look(good(), *["{"] * count)

    shown = [(one.row_count, one.lines) for one in report.finish()]

    assert shown == [(count, tuple(range(2, count + 2))[:LINES_SHOWN])][: min(count, 1)]


def test_the_same_problem_at_another_place_is_the_same_kind() -> None:
    first = chat(turn("bing"))
    second = chat(turn("user"), turn("assistant"), turn("bing"))

    assert only(look(good(), first, second)).lines == (2, 3)


def test_errors_come_first_and_then_what_is_frequent() -> None:
    rows = [good(), good(), good(), good(), chat(turn("user", "no answer")), "{", "[]", "[]"]

    found = [(one.reason, one.row_count) for one in look(*rows).finish()]

    assert found == [
        ("ROW_INVALID", 2),
        ("ROW_INVALID", 1),
        ("DUPLICATE_ROW", 3),
        ("NO_ANSWER", 1),
    ]


def test_kinds_beyond_the_limit_are_counted_together_and_none_is_lost() -> None:
    rows = [chat(turn(f"role{number}")) for number in range(3 * KINDS_MAX)]

    problems = look(*rows, good(1), good(1)).finish()

    assert len(problems) == KINDS_MAX + 2
    assert sum(one.row_count for one in problems if one.is_error) == 3 * KINDS_MAX
    assert problems[0].description == "further problems of this kind"
    assert problems[0].lines == tuple(range(KINDS_MAX + 1, KINDS_MAX + 1 + LINES_SHOWN))


def test_a_description_is_bounded_however_long_the_mistake() -> None:
    assert len(only(look(good(), chat(turn("r" * 5000)))).description) <= 300


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_blank_lines_and_line_ends_keep_the_real_numbers(end: bytes) -> None:
    report = look(good(1), "", "  ", "{", "", good(2), end=end)

    assert (report.row_count, only(report).lines) == (2, (4,))


def test_a_byte_order_mark_is_no_part_of_the_first_row() -> None:
    report = look(b"\xef\xbb\xbf" + good(1).encode(), good(2))

    assert (report.row_count, report.finish()) == (2, ())


def test_a_byte_order_mark_in_a_later_line_is_a_mistake() -> None:
    assert only(look(good(1), b"\xef\xbb\xbf" + good(2).encode())).lines == (2,)


def test_the_last_line_needs_no_end() -> None:
    report = look_at_lines(io.BytesIO(f"{good(1)}\n{good(2)}".encode()))

    assert report.row_count == 2


def test_a_file_with_old_mac_line_ends_is_one_bad_line() -> None:
    assert only(look(good(1), good(2), end=b"\r")).lines == (1,)


@given(st.integers(0, 250), st.sampled_from([b"\n", b"\r\n"]))
def test_an_endless_line_is_one_problem_and_swallows_no_other_row(size: int, end: bytes) -> None:
    report = look(good(1), "x" * size, good(2), end=end, line_bytes_max=100)

    told = [(one.lines, "longer than 100" in one.description) for one in report.finish()]

    assert report.row_count == 2
    assert told == [((2,), size > 100)][: min(size, 1)]


def test_an_endless_last_line_ends_with_the_file() -> None:
    report = look_at_lines(io.BytesIO(good().encode() + b"\n" + b"x" * 1000), line_bytes_max=100)

    assert only(report).lines == (2,)


def test_rows_that_differ_only_in_unused_columns_are_copies() -> None:
    row = {"messages": [turn("user"), turn("assistant")]}

    report = look(json.dumps(row), json.dumps(row | {"meta": 1}))

    assert (report.distinct_count, only(report).reason) == (1, "DUPLICATE_ROW")


@given(st.lists(st.binary(max_size=40), max_size=20))
def test_every_line_that_is_not_blank_is_a_row_or_a_problem(lines: list[bytes]) -> None:
    report = look(*lines)

    problems = report.finish()

    assert report.row_count == 0
    assert all(one.is_error and one.row_count >= len(one.lines) > 0 for one in problems)
