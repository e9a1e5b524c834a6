"""The DS items of the requirements that are about rows, with their exact inputs."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lehr.errors import InvalidArgument
from lehr.samples.canonical import from_line, to_line
from lehr.samples.chat import ChatTemplate
from lehr.samples.lines import lines_of, read_row
from lehr.samples.notes import notes
from lehr.samples.rows import ChatRow

INPUTS = Path(__file__).parent / "required"
TOOL_TEMPLATE = (
    "{% if tools %}{{ 'tools: ' + (tools | tojson) }}{% endif %}"
    "{% for message in messages %}{{ '<|' + message['role'] + '|>' + (message['content'] or '') }}"
    "{% for call in message['tool_calls'] or [] %}"
    "{{ call['function']['name'] + (call['function']['arguments'] | tojson) }}"
    "{% endfor %}{{ '</s>' }}{% endfor %}"
)


def looked_at(name: str) -> tuple[dict[int, ChatRow], dict[int, str]]:
    """Return the rows of a file by line, and what was refused by line."""
    rows: dict[int, ChatRow] = {}
    refused: dict[int, str] = {}
    for number, line in lines_of(INPUTS / name):
        try:
            row = read_row(line, number=number)
        except InvalidArgument as error:
            refused[number] = error.message
        else:
            assert isinstance(row, ChatRow)
            assert from_line(to_line(row, line=number, file=0)).row == row
            rows[number] = row
    return rows, refused


def rendered(row: ChatRow) -> str:
    """Return the text of a chat."""
    return ChatTemplate(TOOL_TEMPLATE, special_tokens={}).render(row.messages, tools=row.tools)


def call_of(row: ChatRow) -> str:
    """Return the arguments of a row's call, as JSON in the order of its author."""
    return json.dumps(row.messages[1]["tool_calls"][0]["function"]["arguments"])


def test_ds_01_nested_objects_keep_exactly_their_own_keys_and_types() -> None:
    rows, refused = looked_at("ds_01_train.jsonl")

    assert (list(rows), refused) == ([1, 2, 3, 4], {})
    assert call_of(rows[1]) == '{"city": "Oslo"}'
    assert call_of(rows[2]) == '{"time": "2025-08-01"}'
    assert call_of(rows[3]) == '{"time": 1754006400, "note": null}'
    assert "time" not in rendered(rows[1])
    assert "note" not in rendered(rows[1])
    assert "tools:" not in rendered(rows[4])


def ds_03_rows() -> Iterator[dict[str, Any]]:
    """Yield 60,004 rows whose unused columns have many types."""

    def chat(number: int) -> list[dict[str, str]]:
        return [
            {"role": "user", "content": f"q{number}"},
            {"role": "assistant", "content": f"a{number} {'x' * 200}"},
        ]

    for number in range(60_000):
        yield {"messages": chat(number), "meta": None}
    yield {"messages": chat(60_000), "meta": "late"}
    yield {"messages": chat(60_001), "meta": {"k": 1}}
    yield {"messages": chat(60_002)}
    yield {"messages": chat(60_003), "meta": None, "tags": ["a"]}


def test_ds_03_unused_columns_do_not_matter_and_the_order_of_rows_neither() -> None:
    lines = [json.dumps(row) for row in ds_03_rows()]

    def keys(told: Iterable[str]) -> list[bytes]:
        return [read_row(line, number=at).key() for at, line in enumerate(told, start=1)]

    forward, backward = keys(lines), keys(reversed(lines))

    assert len(forward) == len(set(forward)) == 60_004
    assert set(forward) == set(backward)


def test_ds_03_a_used_column_of_a_wrong_type_is_named_with_line_and_both_types() -> None:
    with pytest.raises(InvalidArgument) as refused:
        read_row('{"messages": {"role": "user"}, "meta": "late"}', number=60_001)

    assert refused.value.message == ("line 60001, messages: is an object; write a list of messages")
    assert refused.value.facts == {"field": "messages", "line": "60001"}


def test_ds_05_known_chat_layouts_are_recognised_and_odd_rows_named() -> None:
    rows, refused = looked_at("ds_05_sharegpt.jsonl")

    assert list(rows) == [1, 2, 3, 5, 6]
    assert rows[1] == rows[2] == rows[6]
    assert len({rendered(rows[at]) for at in (1, 2, 6)}) == 1
    assert [turn["role"] for turn in rows[3].messages] == ["system", "user", "assistant"]
    assert list(refused) == [4]
    assert refused[4].startswith("line 4, conversations[1].from: is 'bing'; use one of system, ")
    # Row 5 is told of, not refused: truncation to nothing trainable is counted where it is trained.
    assert {at: [note.reason for note in notes(row)] for at, row in rows.items()} == {
        1: [],
        2: [],
        3: [],
        5: ["ENDS_WITHOUT_ANSWER", "BEGINS_WITH_ANSWER"],
        6: [],
    }


def test_ds_09_copies_have_one_key() -> None:
    rows, refused = looked_at("ds_09_dups.jsonl")

    copies = Counter(row.key() for row in rows.values())

    assert refused == {}
    assert len(copies) == 7
    assert sorted(copies.values()) == [1, 1, 1, 1, 1, 1, 4]
    assert [at for at, row in rows.items() if copies[row.key()] > 1] == [1, 3, 6, 9]


def test_ds_11_nul_is_text_and_half_a_pair_is_named() -> None:
    rows, refused = looked_at("ds_11_nul.jsonl")

    assert {at: row.messages[1]["content"] for at, row in rows.items()} == {
        1: "fine",
        2: "a\0b",
        4: "x\N{GRINNING FACE}y",
    }
    assert [note.reason for note in notes(rows[2])] == ["CONTROL_CHARACTERS"]
    assert refused == {
        3: "line 3, messages[1].content: holds half a surrogate pair (U+D83D) at character 1"
    }


def test_ds_13_arguments_as_text_and_as_object_mean_the_same() -> None:
    rows, refused = looked_at("ds_13_args.jsonl")

    first, second, third = (rendered(rows[at]) for at in (1, 2, 3))

    assert rows[1].key() == rows[2].key()
    assert first == second
    assert "\\" not in first
    assert "now{}" in third
    assert list(refused) == [4]
    assert (
        "line 4, messages[1].tool_calls[0].function.arguments: is text that is not JSON"
        in (refused[4])
    )
