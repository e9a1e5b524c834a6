"""The report of a dataset: every line counts once, under its real number."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lehr.errors import InvalidArgument
from lehr.samples.layouts import recognise
from services.catalog.domain.entries import RowProblem
from services.catalog.domain.report import KINDS_MAX, LINES_SHOWN, Copies, Report
from services.catalog.examination import Examination
from tests.support.datasets import examined


def turn(role: str, content: Any = "x") -> dict[str, Any]:
    """Return a message."""
    return {"role": role, "content": content}


def chat(*turns: dict[str, Any]) -> str:
    """Return the line of a row of messages."""
    return json.dumps({"messages": list(turns)})


def good(number: int = 0) -> str:
    """Return the line of a row in which nothing is wrong."""
    return chat(turn("user", f"q{number}"), turn("assistant", f"a{number}"))


def look(tmp_path: Path, *lines: str | bytes, end: bytes = b"\n") -> Examination:
    """Look at lines of a file."""
    raw = [line.encode() if isinstance(line, str) else line for line in lines]
    return examined(tmp_path, {"a.jsonl": b"".join(line + end for line in raw)}).found


def only(found: Examination) -> RowProblem:
    """Return the one problem."""
    [problem] = found.problems
    return problem


def report_of(*lines: str, file: int = 0, first: int = 1) -> Report:
    """Return the report of lines, each of which is a row or not."""
    report = Report()
    for number, line in enumerate(lines, start=first):
        try:
            row, layout = recognise(json.loads(line))
            report.add_row(row, layout, file=file, line=number)
        except InvalidArgument as error:
            report.add_unreadable(error, file=file, line=number)
    return report


def finish(report: Report, files: int = 1, *copies: Copies) -> tuple[RowProblem, ...]:
    """Return the problems of a report."""
    names = [f"{at}.jsonl" for at in range(files)]
    return report.finish(files=names, copies=copies, copied_rows=len(copies))


def test_good_rows_have_no_problems(tmp_path: Path) -> None:
    found = look(tmp_path, *(good(number) for number in range(5)))

    assert (found.row_count, found.distinct_count, found.problems) == (5, 5, ())
    assert found.is_accepted


@pytest.mark.parametrize(
    ("line", "reason", "is_error", "words"),
    [
        ("{", "ROW_INVALID", True, "is not JSON"),
        ("[1]", "ROW_INVALID", True, "one JSON object a line"),
        ("{}", "ROW_INVALID", True, "fits no layout"),
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
    tmp_path: Path, line: str, reason: str, is_error: bool, words: str
) -> None:
    found = look(tmp_path, good(1), good(2), line)

    problem = only(found)

    assert (problem.reason, problem.row_count, problem.lines) == (reason, 1, (3,))
    assert problem.is_error is is_error
    assert found.is_accepted is not is_error
    assert words in problem.description


def test_lines_that_are_not_utf8_are_named_and_the_next_are_read(tmp_path: Path) -> None:
    found = look(tmp_path, good(1), b"ab\xff{", good(2))

    assert (only(found).lines, found.row_count) == ((2,), 2)
    assert "not UTF-8 at byte 3" in only(found).description


@pytest.mark.parametrize("count", [0, 1, 2, LINES_SHOWN, LINES_SHOWN + 1, 60])
def test_all_are_counted_and_the_first_twenty_lines_shown(tmp_path: Path, count: int) -> None:
    found = look(tmp_path, good(), *["{"] * count)

    shown = [(one.row_count, one.lines) for one in found.problems]

    assert shown == [(count, tuple(range(2, count + 2))[:LINES_SHOWN])][: min(count, 1)]


def test_the_same_problem_at_another_place_is_the_same_kind(tmp_path: Path) -> None:
    first = chat(turn("bing"))
    second = chat(turn("user"), turn("assistant"), turn("bing"))

    problem = only(look(tmp_path, good(), first, second))

    assert problem.lines == (2, 3)
    assert problem.description.startswith("messages[].role")


def test_a_problem_of_one_row_tells_its_place(tmp_path: Path) -> None:
    late = chat(turn("user"), turn("assistant"), turn("bing"))

    assert only(look(tmp_path, good(), late)).description.startswith("messages[2].role")


def test_errors_come_first_and_then_what_is_frequent(tmp_path: Path) -> None:
    rows = [good(), good(), good(), good(), chat(turn("user", "no answer")), "{", "[]", "[]"]

    found = [(one.reason, one.row_count) for one in look(tmp_path, *rows).problems]

    assert found == [
        ("ROW_INVALID", 2),
        ("ROW_INVALID", 1),
        ("DUPLICATE_ROW", 3),
        ("NO_ANSWER", 1),
    ]


def test_kinds_beyond_the_limit_are_counted_together_and_none_is_lost() -> None:
    rows = [chat(turn(f"role{number}")) for number in range(3 * KINDS_MAX)]

    problems = finish(report_of(*rows))

    assert len(problems) == KINDS_MAX + 1
    assert sum(one.row_count for one in problems) == 3 * KINDS_MAX
    assert problems[0].description == "further problems of this kind"
    assert problems[0].lines == tuple(range(KINDS_MAX + 1, KINDS_MAX + 1 + LINES_SHOWN))


def test_kinds_of_very_many_files_are_bounded_and_none_is_lost() -> None:
    report = Report()
    for file in range(5 * KINDS_MAX):
        report.merge(report_of("{}", file=file))

    problems = finish(report, 5 * KINDS_MAX)

    assert len(problems) == 2 * KINDS_MAX + 1
    assert sum(one.row_count for one in problems) == 5 * KINDS_MAX
    assert (problems[0].file, problems[0].lines) == ("", ())


LINES = st.sampled_from(["{}", good(), chat(turn("x")), '{"text": "t"}'])


@given(st.lists(LINES), st.data())
def test_reports_of_parts_make_the_report_of_the_whole(
    lines: list[str], data: st.DataObject
) -> None:
    cut = data.draw(st.integers(0, len(lines)))
    whole = report_of(*lines)

    parts = report_of(*lines[:cut])
    parts.merge(report_of(*lines[cut:], first=cut + 1))

    assert (parts.row_count, parts.row_kind) == (whole.row_count, whole.row_kind)
    assert parts.layouts == whole.layouts
    assert finish(parts) == finish(whole)


def test_copies_are_told_for_each_file_and_counted_over_all() -> None:
    copies = Copies(file=0, row_count=2, lines=(3, 4)), Copies(file=1, row_count=1, lines=(1,))

    problems = finish(report_of(good()), 2, *copies)

    assert [(one.file, one.row_count, one.lines) for one in problems] == [
        ("0.jsonl", 2, (3, 4)),
        ("1.jsonl", 1, (1,)),
    ]
    assert {one.description[:27] for one in problems} == {"3 extra copies of 2 rows; c"}


def test_a_description_is_bounded_however_long_the_mistake(tmp_path: Path) -> None:
    assert len(only(look(tmp_path, good(), chat(turn("r" * 5000)))).description) <= 300


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_blank_lines_and_line_ends_keep_the_real_numbers(tmp_path: Path, end: bytes) -> None:
    found = look(tmp_path, good(1), "", "  ", "{", "", good(2), end=end)

    assert (found.row_count, only(found).lines) == (2, (4,))


def test_a_byte_order_mark_in_a_later_line_is_a_mistake(tmp_path: Path) -> None:
    assert only(look(tmp_path, good(1), b"\xef\xbb\xbf" + good(2).encode())).lines == (2,)


def test_a_file_with_old_mac_line_ends_is_one_bad_line(tmp_path: Path) -> None:
    assert only(look(tmp_path, good(1), good(2), end=b"\r")).lines == (1,)
