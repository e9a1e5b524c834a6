"""Rows of the data sets that the requirements name, through the real catalog."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from lehr.api.catalog.v1 import catalog_pb2 as pb
from lehr.api.catalog.v1 import catalog_pb2_grpc
from lehr.client import AsyncClient
from lehr.errors import InvalidArgument
from lehr.rpc.translate import raises_platform_errors
from lehr.training.canonical import spec_json
from lehr.training.proto import parse_spec
from tests.integration.catalog.test_datasets import chat, reasons, write
from tests.support.one_service import OneService
from tests.support.toy_model import write_toy_model

TOOL_TEMPLATE = (
    "{{ '<s>' }}{% if tools %}{{ '<|tool|>tools: ' + (tools | tojson) + '</s>' }}{% endif %}"
    "{% for message in messages %}{{ '<|' + message['role'] + '|>' + (message['content'] or '') }}"
    "{% for call in message['tool_calls'] or [] %}"
    "{{ call['function']['name'] + (call['function']['arguments'] | tojson) }}"
    "{% endfor %}{{ '</s>' }}{% endfor %}"
)


@pytest.fixture(scope="session")
def tool_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A toy model whose template shows tools and calls."""
    folder = tmp_path_factory.mktemp("tools") / "model"
    return write_toy_model(folder, template=TOOL_TEMPLATE)


@pytest.fixture
async def model(client: AsyncClient, tool_model: Path) -> str:
    """That model in the catalog."""
    return (await client.models.add(tool_model, name="tools", license="MIT")).name


@pytest.fixture
async def resolve(catalog: OneService) -> AsyncIterator[Any]:
    """Ask what a job would train on, as the scheduler does."""
    async with catalog.called_by("scheduler", tenant="default") as channel:
        stub = catalog_pb2_grpc.CatalogServiceStub(channel)

        async def ask(dataset: str, **data: Any) -> pb.ResolveTrainingResponse:
            spec = parse_spec({"name": "n", "model": "tools", "dataset": dataset, "data": data})
            request = pb.ResolveTrainingRequest(spec_json=spec_json(spec))
            with raises_platform_errors():
                return await stub.ResolveTraining(request, timeout=30)

        yield ask


def tool_row(question: str, name: str, arguments: Any, *, tools: Any = None) -> dict[str, Any]:
    """Return a row in which an assistant calls a tool."""
    call = {"type": "function", "function": {"name": name, "arguments": arguments}}
    turns = [
        {"role": "user", "content": question},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "name": name, "content": "4 C"},
        {"role": "assistant", "content": "4"},
    ]
    return {"messages": turns} if tools is None else {"messages": turns, "tools": tools}


def a_tool(name: str, **properties: str) -> dict[str, Any]:
    """Return the description of a tool."""
    fields = {field: {"type": kind} for field, kind in properties.items()}
    parameters = {"type": "object", "properties": fields}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


async def texts_of(client: AsyncClient, dataset: str, model: str) -> list[str]:
    """Return the text of each row as it is trained."""
    return [one.text for one in await client.datasets.preview(dataset, model=model)]


async def test_nested_objects_keep_exactly_their_own_keys(
    client: AsyncClient, model: str, tmp_path: Path
) -> None:
    city, time = a_tool("weather", city="string"), a_tool("book", time="string")
    epoch = a_tool("book_epoch", time="integer", note="string")
    rows = [
        tool_row("Weather?", "weather", {"city": "Oslo"}, tools=[city]),
        tool_row("Book", "book", {"time": "2025-08-01"}, tools=[time]),
        tool_row("Book", "book_epoch", {"time": 1754006400, "note": None}, tools=[epoch]),
        chat("Hello", "Hi there"),
    ]
    answer = await client.datasets.upload(write(tmp_path, *rows), name="ds-01")

    first, second, third, fourth = await texts_of(client, "ds-01", model)

    assert answer.is_accepted
    assert answer.dataset.row_count == 4
    assert 'weather{"city": "Oslo"}' in first
    assert "time" not in first
    assert "note" not in first
    assert 'book{"time": "2025-08-01"}' in second
    assert 'book_epoch{"time": 1754006400, "note": null}' in third
    assert "tools:" not in fourth


@pytest.mark.parametrize(
    ("value", "words"),
    [(5, "a number"), ("hi", "text"), ({"role": "user"}, "an object"), (True, "true or false")],
)
async def test_a_used_column_of_a_wrong_type_late_in_the_file_is_named_with_both_types(
    client: AsyncClient, tmp_path: Path, value: Any, words: str
) -> None:
    rows = [chat(f"q{number}", "a" * 200) for number in range(3000)]

    answer = await client.datasets.upload(write(tmp_path, *rows, {"messages": value}), name="ds-03")

    [problem] = answer.dataset.problems
    assert (answer.is_accepted, list(problem.lines)) == (False, [3001])
    assert problem.description == f"messages is {words}; write a list of messages"


async def test_odd_chats_are_named_and_nothing_is_guessed(
    client: AsyncClient, tmp_path: Path
) -> None:
    bing = {"messages": [{"role": "user", "content": "Hi"}, {"role": "bing", "content": "x"}]}
    backwards = {
        "messages": [{"role": "assistant", "content": "I"}, {"role": "user", "content": "Ok"}]
    }
    rows = [chat("Hi", "Hello"), chat("Why?", "Because."), bing, backwards, chat("Hi", "Hello!")]

    answer = await client.datasets.upload(write(tmp_path, *rows), name="ds-05")

    assert not answer.is_accepted
    assert reasons(answer.dataset) == {
        "ROW_INVALID": (1, [3]),
        "BEGINS_WITH_ANSWER": (1, [4]),
        "ENDS_WITHOUT_ANSWER": (1, [4]),
    }
    assert "'bing'" in answer.dataset.problems[0].description


@pytest.mark.parametrize(
    ("share", "validation"), [(0.01, 1), (0.1, 1), (0.5, 3), (0.99, 4), (0.0, 0)]
)
async def test_both_sides_of_a_split_have_a_row(
    client: AsyncClient, model: str, resolve: Any, tmp_path: Path, share: float, validation: int
) -> None:
    rows = [chat(f"q{number}", f"a{number}") for number in range(5)]
    await client.datasets.upload(write(tmp_path, *rows), name="ds-07")

    found = await resolve("ds-07", validation_split=share)

    assert found.train_count + found.validation_count == 5
    assert found.train_count >= 1
    assert found.validation_count == validation


async def test_one_row_cannot_be_split_and_can_be_trained_whole(
    client: AsyncClient, model: str, resolve: Any, tmp_path: Path
) -> None:
    await client.datasets.upload(write(tmp_path, chat("only", "one")), name="ds-07-one")

    with pytest.raises(InvalidArgument):
        await resolve("ds-07-one", validation_split=0.1)
    whole = await resolve("ds-07-one", validation_split=0.0)

    assert (whole.train_count, whole.validation_count) == (1, 0)


@pytest.mark.parametrize("seed", range(10))
async def test_copies_are_counted_and_none_is_lost_whatever_the_seed(
    client: AsyncClient, model: str, resolve: Any, tmp_path: Path, seed: int
) -> None:
    rows = [chat(f"q{at}", f"a{at}") for at in (0, 1, 0, 2, 3, 0, 4, 5, 0, 6)]
    await client.datasets.upload(write(tmp_path, *rows), name="ds-09")

    found = await resolve("ds-09", validation_split=0.2, split_seed=seed)

    assert found.train_count + found.validation_count == 10
    # The four copies go together, so they are never a part of either side.
    assert found.validation_count in (1, 2, 3, 4)
    assert found.dataset.distinct_count == 7


async def test_nul_and_half_a_pair_are_no_error_of_the_server(
    client: AsyncClient, model: str, tmp_path: Path
) -> None:
    def line(question: str, answer: str) -> str:
        turns = f'{{"role":"user","content":"{question}"}},{{"role":"assistant","content":'
        return f'{{"messages":[{turns}"{answer}"}}]}}'

    good = [line("ok", "fine"), line("nul", "a\\u0000b"), line("pair", "x\\ud83d\\ude00y")]
    lone = line("lone", "x\\ud83dy")

    refused = await client.datasets.upload(write(tmp_path, *good[:2], lone, good[2]), name="ds-11")
    taken = await client.datasets.upload(write(tmp_path, *good), name="ds-11")
    texts = await texts_of(client, "ds-11", model)

    assert reasons(refused.dataset) == {
        "ROW_INVALID": (1, [3]),
        "CONTROL_CHARACTERS": (1, [2]),
    }
    assert taken.is_accepted
    assert "a\0b" in texts[1]
    assert "x\U0001f600y" in texts[2]


async def test_arguments_as_text_and_as_object_mean_the_same(
    client: AsyncClient, model: str, tmp_path: Path
) -> None:
    rows = [
        tool_row("Weather?", "weather", {"city": "Oslo"}),
        tool_row("Weather?", "weather", json.dumps({"city": "Oslo"})),
        tool_row("Time?", "now", "", tools=[{"type": "function", "function": {"name": "now"}}]),
    ]
    await client.datasets.upload(write(tmp_path, *rows), name="ds-13")

    first, second, third = await texts_of(client, "ds-13", model)

    assert first == second
    assert "\\" not in first
    assert "now{}" in third


async def test_arguments_that_are_no_json_are_named_with_their_line(
    client: AsyncClient, tmp_path: Path
) -> None:
    rows = [chat("q", "a"), tool_row("Weather?", "weather", "{city: Oslo")]

    answer = await client.datasets.upload(write(tmp_path, *rows), name="ds-13-bad")

    [problem] = answer.dataset.problems
    assert (answer.is_accepted, list(problem.lines)) == (False, [2])
    assert "arguments is text that is not JSON" in problem.description
