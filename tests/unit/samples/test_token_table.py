"""The table of tokens at rest: what is written is what is read, by us and by others."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from lehr.errors import InvalidArgument
from lehr.samples.rows import PreferenceRow, Row, UnpairedRow
from lehr.samples.table import TableUnreadable, TableWriter, TokenTable
from lehr.samples.tabulate import line_batches, tabulate, tabulate_lines, write_table
from lehr.samples.tokens import SampleTokenizer
from tests.support.canonical_rows import a_chat, located, table_of, write_canonical
from tests.support.toy_model import write_toy_model

ARRAYS = [field.name for field in fields(TokenTable) if field.name not in ("kind", "mapped")]


@pytest.fixture
def tokenizer(tmp_path: Path) -> SampleTokenizer:
    return SampleTokenizer.load(write_toy_model(tmp_path / "model"))


def chats(count: int) -> list[Row]:
    return [a_chat(("user", "q" * number), ("assistant", f"a{number}")) for number in range(count)]


def same(first: TokenTable, second: TokenTable) -> bool:
    return first.kind == second.kind and all(
        np.array_equal(getattr(first, name), getattr(second, name)) for name in ARRAYS
    )


def written(path: Path, *chunks: TokenTable) -> Path:
    with TableWriter(path, kind=chunks[0].kind) as writer:
        for chunk in chunks:
            writer.append(chunk)
    return path


def test_a_table_written_in_chunks_is_read_as_one(
    tmp_path: Path, tokenizer: SampleTokenizer
) -> None:
    rows = located(chats(10))
    whole = tabulate(rows, tokenizer)

    path = written(
        tmp_path / "t", *(tabulate(part, tokenizer) for part in (rows[:3], rows[3:4], rows[4:]))
    )

    assert same(TokenTable.open(path), whole)
    assert not list(tmp_path.glob(".*"))


def test_the_file_is_a_safetensors_file(tmp_path: Path, tokenizer: SampleTokenizer) -> None:
    row = PreferenceRow(prompt="ask:", chosen="yes", rejected="no")
    table = table_of([row, row], tokenizer)

    arrays = load_file(written(tmp_path / "t", table))

    assert sorted(arrays) == sorted(ARRAYS)
    assert all(np.array_equal(arrays[name], getattr(table, name)) for name in ARRAYS)
    assert arrays["segment_ends"].shape == (2, 3)


def test_a_table_stays_readable_when_its_file_is_gone_and_its_memory_given_back(
    tmp_path: Path, tokenizer: SampleTokenizer
) -> None:
    whole = table_of(chats(5), tokenizer)
    path = written(tmp_path / "t", whole)
    table = TokenTable.open(path)

    path.unlink()
    table.release()

    assert same(table, whole)


def test_nothing_is_left_of_a_table_that_was_not_finished(
    tmp_path: Path, tokenizer: SampleTokenizer
) -> None:
    path = tmp_path / "tables" / "t"

    with pytest.raises(InvalidArgument, match="line 2"):
        write_table(
            write_canonical(
                tmp_path / "rows.jsonl.zst",
                [*chats(1), PreferenceRow(prompt="a", chosen="b", rejected="c")],
            ),
            tokenizer,
            path,
        )

    assert not path.parent.exists() or not list(path.parent.iterdir())


def test_chunks_of_another_kind_are_refused_and_leave_nothing(
    tmp_path: Path, tokenizer: SampleTokenizer
) -> None:
    other = table_of([PreferenceRow(prompt="a", chosen="b", rejected="c")], tokenizer)
    (tmp_path / "tables").mkdir()

    with pytest.raises(InvalidArgument, match="kind preference"):
        written(tmp_path / "tables" / "t", table_of(chats(2), tokenizer), other)

    assert not list((tmp_path / "tables").iterdir())


@pytest.mark.parametrize("damage", ["format", "cut", "empty", "text"])
def test_a_file_that_is_no_table_is_refused(
    tmp_path: Path, tokenizer: SampleTokenizer, damage: str
) -> None:
    path = written(tmp_path / "t", table_of(chats(5), tokenizer))
    whole = path.read_bytes()
    made = {
        "format": whole.replace(b'"format":"1"', b'"format":"0"'),
        "cut": whole[: len(whole) // 2],
        "empty": b"",
        "text": b"prompt,completion\na,b\n",
    }

    path.write_bytes(made[damage])

    with pytest.raises(TableUnreadable):
        TokenTable.open(path)


def test_rows_are_tokenised_in_batches_that_lose_none(
    tmp_path: Path, tokenizer: SampleTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = chats(50)
    path = write_canonical(tmp_path / "rows.jsonl.zst", rows)
    monkeypatch.setattr("lehr.samples.tabulate.BATCH_BYTES", 1000)

    batches = list(line_batches(path))
    write_table(path, tokenizer, tmp_path / "t")

    assert len(batches) > 3
    # Each ends with the row that reaches the size, the last one with the rows.
    sizes = [sum(map(len, batch)) for batch in batches]
    assert all(
        size >= 1000 > size - len(batch[-1])
        for size, batch in zip(sizes[:-1], batches[:-1], strict=True)
    )
    assert sum(len(tabulate_lines(batch, tokenizer)) for batch in batches) == 50
    assert same(TokenTable.open(tmp_path / "t"), table_of(rows, tokenizer))


def test_arrays_begin_where_their_numbers_may_lie(
    tmp_path: Path, tokenizer: SampleTokenizer
) -> None:
    for count in range(1, 30):
        path = written(tmp_path / f"{count}", table_of(chats(count), tokenizer))
        assert int.from_bytes(path.read_bytes()[:8], "little") % 8 == 0


def test_wanted_answers_alone_have_a_label(tokenizer: SampleTokenizer) -> None:
    pairs = [UnpairedRow(prompt="q", completion="a", label=label) for label in (True, False, True)]

    assert table_of(pairs, tokenizer).labels.tolist() == [1, 0, 1]
    assert table_of(chats(2), tokenizer).labels.tolist() == [0, 0]


def test_prompts_are_known_apart_from_their_answers(tokenizer: SampleTokenizer) -> None:
    rows = [a_chat(("user", "q"), ("assistant", answer)) for answer in ("a", "b")]

    table = table_of(rows, tokenizer)

    assert np.array_equal(table.prompt_keys[0], table.prompt_keys[1])
    assert not np.array_equal(table.keys[0], table.keys[1])


def test_the_row_that_cannot_be_rendered_is_the_one_that_is_named(
    tokenizer: SampleTokenizer,
) -> None:
    bad = a_chat(("user", "q"), ("assistant", "a"), images=("a.png",))

    with pytest.raises(InvalidArgument, match="line 3: ") as refused:
        tabulate(located([*chats(2), bad, *chats(1)]), tokenizer)

    assert "row" not in refused.value.facts


def test_what_is_trained_of_a_row_is_counted_with_it(tokenizer: SampleTokenizer) -> None:
    answered = a_chat(("user", "q"), ("assistant", "yes"), ("user", "and now?"))
    rows = [*chats(3), answered, a_chat(("user", "nobody answers"))]

    table = table_of(rows, tokenizer)

    for row, begin in enumerate(table.begins):
        trained = np.flatnonzero(table.trained[begin : table.segment_ends[row, 0]])
        assert table.trained_counts[row] == len(trained)
        assert table.trained_ends[row] == (trained[-1] + 1 if len(trained) else 0)


def test_a_line_of_a_second_file_is_named_with_it(tokenizer: SampleTokenizer) -> None:
    bad = a_chat(("user", "q"), ("assistant", "a"), images=("a.png",))
    row = replace(located([bad])[0], line=7, file=1)

    with pytest.raises(InvalidArgument, match="line 7 of file 2: ") as refused:
        tabulate([row], tokenizer)

    assert (refused.value.facts["line"], refused.value.facts["file"]) == ("7", "1")
