"""What a tokenizer or a chat template does to one row ends a process, and not the catalog's."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lehr.errors import InvalidArgument, PlatformError
from lehr.samples.table import TokenTable
from services.catalog.examination.pool import Pool, ReaderDied, allow_seconds
from services.catalog.tokens.counting import Reading, count, describe
from services.catalog.tokens.looking import Rows, look
from services.catalog.tokens.probing import probe
from tests.support.canonical_rows import a_chat, write_canonical
from tests.support.toy_model import PLAIN_TEMPLATE, write_toy_model

ROWS = [a_chat(("user", "a"), ("assistant", "b")), a_chat(("user", "q" * 40), ("assistant", "b"))]
FIRST = frozenset({1})
SECOND = frozenset({2})


def grown(kind: str) -> dict[str, Any]:
    """Return a part that makes of a q a million million of them."""
    tenfold = {"type": "Replace", "pattern": {"String": "q"}, "content": "q" * 10}
    list_name = {"normalizer": "normalizers", "decoder": "decoders"}[kind]
    return {kind: {"type": "Sequence", list_name: [tenfold] * 12}}


#: Compares lists inside each other, of which each holds the one before three times.
NESTED = (
    "{% set state = namespace(x=[1], y=[1]) %}{% if 'q' in messages[0].content %}"
    "{% for a in range(30) %}{% set state.x = [state.x, state.x, state.x] %}"
    "{% set state.y = [state.y, state.y, state.y] %}{% endfor %}"
    "{{ state.x == state.y }}{% endif %}"
)
#: What waits for a row with a q, by its name: parts of the tokenizer, and what begins the template.
TRAPS: dict[str, tuple[dict[str, Any], str]] = {
    "normalizer": (grown("normalizer"), ""),
    "template": ({}, NESTED),
    "template that pads": (
        {},
        "{% if 'q' in messages[0].content %}"
        "{{ (('\\U0010ffff' * 99999999 ~ 'y') | list) | length }}{% endif %}",
    ),
}
PIECES = grown("decoder")


def a_trap(folder: Path, parts: dict[str, Any], template: str = "") -> Reading:
    """Write a toy model that does harm once a row holds a q."""
    write_toy_model(folder, template=template + PLAIN_TEMPLATE)
    path = folder / "tokenizer.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | parts))
    return Reading(model_dir=folder, template=None, images=None, seconds_max=2)


def rows(lines: frozenset[int], *, max_length: int = 0) -> Rows:
    return Rows(lines=lines, file=0, files=("a",), max_length=max_length, overlong="truncate")


def counted(asked: tuple[Path, Reading, Path]) -> str:
    """Count, and return what was refused; run apart, so that a test survives its failure."""
    try:
        count(*asked, processes=1)
    except PlatformError as error:
        return f"{error.reason}: {error.message}"
    return ""


def looked(asked: tuple[Path, Reading, Rows]) -> str:
    """Look at rows, and return what was refused."""
    try:
        look(*asked)
    except PlatformError as error:
        return f"{error.reason}: {error.message}"
    return ""


def apart(function: Any, asked: Any) -> str:
    with Pool(1, heartbeat=lambda: None) as pool:
        found: str = pool.call(function, asked)
        return found


@pytest.mark.parametrize("trap", TRAPS)
def test_a_row_that_is_too_much_is_refused_by_its_line(tmp_path: Path, trap: str) -> None:
    reading = a_trap(tmp_path / "model", *TRAPS[trap])
    # What looks at a model sees nothing of it.
    assert not probe(reading.model_dir).refusal
    path = write_canonical(tmp_path / "rows", ROWS)

    refused = apart(counted, (path, reading, tmp_path / "table"))
    shown = apart(looked, (path, reading, rows(SECOND)))

    assert refused.startswith("COUNTING_FAILED: a process died while it tokenised the rows from l")
    assert shown.startswith("COUNTING_FAILED: a row needs more memory or time")
    assert not apart(looked, (path, reading, rows(FIRST)))


def test_a_token_whose_text_grows_without_end_is_not_shown(tmp_path: Path) -> None:
    reading = a_trap(tmp_path / "model", PIECES)
    path = write_canonical(tmp_path / "rows", ROWS)

    assert apart(looked, (path, reading, rows(SECOND))).startswith("COUNTING_FAILED")
    assert not apart(looked, (path, reading, rows(FIRST)))
    assert not apart(counted, (path, reading, tmp_path / "table"))


def test_rows_that_no_answer_holds_are_refused_with_what_helps(tmp_path: Path) -> None:
    reading = replace(a_trap(tmp_path / "model", {}), seconds_max=60)
    long = a_chat(("user", "q" * 2_000_000), ("assistant", "b"))
    path = write_canonical(tmp_path / "rows", [ROWS[0], long])

    with pytest.raises(InvalidArgument, match="ask for fewer lines") as refused:
        look(path, reading, rows(frozenset({1, 2})))

    assert (refused.value.reason, refused.value.facts["line"]) == ("PREVIEW_TOO_LARGE", "2")
    [shown] = look(path, reading, rows(SECOND, max_length=10))
    assert (shown.token_count, len(shown.tokens)) == (2_000_006, 10)


def test_a_template_that_waits_for_a_date_does_nothing_where_it_is_only_read(
    tmp_path: Path,
) -> None:
    later = "{% if strftime_now('%Y') != '1999' %}" + NESTED.replace("'q' in", "'' in")
    reading = a_trap(tmp_path / "model", {}, later + "{% endif %}")

    assert describe(reading).prints_dates


def test_rows_that_fit_are_counted_and_shown_alike(tmp_path: Path) -> None:
    reading = a_trap(tmp_path / "model", {})
    path = write_canonical(tmp_path / "rows", ROWS)

    count(path, reading, tmp_path / "table", processes=2)

    table = TokenTable.open(tmp_path / "table")
    shown = look(path, reading, rows(frozenset()))
    assert [one.token_count for one in shown] == table.lengths.tolist() == [7, 46]
    assert not describe(reading).prints_dates


def endless(seconds: int) -> None:
    """Work without end, in the time that is allowed."""
    allow_seconds(100)
    allow_seconds(seconds)
    while True:
        pass


def test_a_process_dies_of_the_processor_time_that_it_was_allowed() -> None:
    with Pool(1, heartbeat=lambda: None) as pool, pytest.raises(ReaderDied):
        pool.call(endless, 1)
