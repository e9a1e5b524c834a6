"""Each layout of rows with each method through PlanJob: accepted, or refused with what to do."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from lehr.client import AsyncClient
from lehr.errors import InvalidArgument
from lehr.samples.columns import KIND_OF
from lehr.samples.layouts import LAYOUTS
from lehr.training.methods import METHODS
from lehr.training.methods.base import ROW_KINDS
from tests.e2e.audit import rows
from tests.e2e.world import World

#: Of each layout: the kind that its rows are, and one row, ``{}`` being the row's number.
EXAMPLES: Mapping[str, tuple[str, str]] = {
    "chat": (
        "messages",
        '{"messages": [{"role": "user", "content": "q{}"},'
        ' {"role": "assistant", "content": "a{}"}]}',
    ),
    "sharegpt": (
        "messages",
        '{"conversations": [{"from": "human", "value": "q{}"}, {"from": "gpt", "value": "a{}"}]}',
    ),
    "alpaca": ("messages", '{"instruction": "q{}", "input": "", "output": "a{}"}'),
    "prompt_completion": ("prompt_completion", '{"prompt": "q{}", "completion": "a{}"}'),
    "text": ("text", '{"text": "once upon a time {}"}'),
    "preference": ("preference", '{"prompt": "q{}", "chosen": "a{}", "rejected": "b{}"}'),
    "openai_preference": (
        "preference",
        '{"input": {"messages": [{"role": "user", "content": "q{}"}]},'
        ' "preferred_output": [{"role": "assistant", "content": "a{}"}],'
        ' "non_preferred_output": [{"role": "assistant", "content": "b{}"}]}',
    ),
    "unpaired_preference": (
        "unpaired_preference",
        '{"prompt": "q{}", "completion": "a{}", "label": true}',
    ),
    "prompt_answer": ("prompt_answer", '{"question": "q{}", "answer": "{}"}'),
    "stepwise": (
        "stepwise",
        '{"prompt": "q{}", "completions": ["x{}", "y{}"], "labels": [true, false]}',
    ),
}

CHATS = ("chat", "sharegpt", "alpaca")
PREFERENCES = ("preference", "openai_preference")
#: What a person maps to get rows of each kind; every field is one that a column map knows.
FIELDS: Mapping[str, tuple[str, ...]] = {
    "messages": ("messages",),
    "prompt_completion": ("prompt", "completion"),
    "text": ("text",),
    "preference": ("chosen", "rejected"),
    "unpaired_preference": ("prompt", "completion", "label"),
    "prompt_answer": ("prompt", "answer"),
    "stepwise": ("prompt", "completions", "labels"),
}


@dataclass(frozen=True, kw_only=True)
class Expected:
    """What is expected of a method, written down apart from the registry."""

    layouts: tuple[str, ...]
    """Layouts that it takes."""
    spec: Mapping[str, Any] = field(default_factory=dict)
    """Fields without which a job of this method cannot be planned."""


SUPERVISED = Expected(layouts=(*CHATS, "prompt_completion", "text"))
COMPARING = Expected(layouts=PREFERENCES)
LABELLED = Expected(layouts=("unpaired_preference", *PREFERENCES))
_REWARDS: Mapping[str, Any] = {
    "rewards": [{"type": "length", "unit": "characters", "min": 5}],
    "max_completion_length": 8,
}
REWARDED = Expected(layouts=("prompt_answer",), spec={"hyperparameters": _REWARDS})
GROUPED = Expected(
    layouts=("prompt_answer",), spec={"hyperparameters": {**_REWARDS, "num_generations": 2}}
)

#: Whoever adds a method to ``lehr.training.methods`` says here what it takes.
EXPECTED: Mapping[str, Expected] = {
    "sft": SUPERVISED,
    "sft_dft": SUPERVISED,
    "sft_neftune": SUPERVISED,
    "continued_pretraining": Expected(layouts=("text",)),
    "dpo": COMPARING,
    "orpo": COMPARING,
    "simpo": COMPARING,
    "cpo": COMPARING,
    "kto": LABELLED,
    "bco": LABELLED,
    "grpo": GROUPED,
    "rloo": GROUPED,
    "online_dpo": REWARDED,
}
#: Refused on all rows as yet: they need a second model on the node.
NOT_YET = {"distill"}


def test_every_method_layout_and_kind_of_row_is_in_the_tables() -> None:
    assert set(EXPECTED) | NOT_YET == set(METHODS)
    assert set(EXAMPLES) == {layout.name for layout in LAYOUTS}
    kinds = {kind for kinds in ROW_KINDS.values() for kind in kinds}
    assert set(FIELDS) == kinds == {kind for kind, _ in EXAMPLES.values()}
    assert all(any(set(names) <= set(known) for known in KIND_OF) for names in FIELDS.values())


def a_spec(method: str, layout: str) -> dict[str, Any]:
    """Return a job of a method on rows of a layout."""
    fields = {"name": f"{method} on {layout}", "model": "toy", "method": method, "gpus": 1}
    return {**fields, **EXPECTED[method].spec, "dataset": dataset_of(layout)}


def dataset_of(layout: str) -> str:
    """Return the name of the dataset of a layout."""
    return layout.replace("_", "-")


@pytest.fixture
async def layouts(world: World, tmp_path_factory: pytest.TempPathFactory) -> World:
    """A world with one dataset of each layout."""
    known = {one.name for one in await world.client.datasets.list()}
    for layout in EXAMPLES:
        if dataset_of(layout) not in known:
            await upload(world.client, layout, tmp_path_factory.mktemp("rows"))
    return world


async def upload(client: AsyncClient, layout: str, folder: Path) -> None:
    """Put 20 rows of a layout into the catalog."""
    kind, row = EXAMPLES[layout]
    lines = [row.replace("{}", str(number)) for number in range(20)]
    assert all(json.loads(line) for line in lines)
    path = folder / "train.jsonl"
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    answer = await client.datasets.upload(path, name=dataset_of(layout))
    assert answer.is_accepted, answer.dataset.problems
    found = answer.dataset
    assert (found.row_kind, found.row_count) == (kind, 20)
    assert list(found.layouts) == [layout]


@pytest.mark.parametrize("method", EXPECTED)
async def test_each_layout_is_planned_or_refused_with_what_to_do(
    layouts: World, method: str
) -> None:
    for layout in EXAMPLES:
        spec = a_spec(method, layout)
        if layout in EXPECTED[method].layouts:
            plan = await layouts.client.jobs.plan(spec)
            assert plan.spec.method == method
            assert plan.data.train_count + plan.data.validation_count == 20
            assert await is_stored(layouts, spec["name"])
        else:
            with pytest.raises(InvalidArgument) as refused:
                await layouts.client.jobs.plan(spec)
            says_what_to_do(refused.value, method, layout)
            assert not await is_stored(layouts, spec["name"])


def says_what_to_do(refused: InvalidArgument, method: str, layout: str) -> None:
    """Look for the kind of rows that was found, the kinds that are needed, and the cure."""
    [violation] = refused.fields
    assert violation.field == "dataset"
    assert violation.description in refused.message
    needed = {EXAMPLES[name][0] for name in EXPECTED[method].layouts}
    needs, has, cure = violation.description.split("; ", 2)
    assert needs.split()[:2] == [method, "needs"]
    assert set(needs.removesuffix(" rows").split()[2:]) - {"or"} == needed
    assert has == f"this dataset has {EXAMPLES[layout][0]} rows"
    assert cure.startswith("add it again with a column map of ")
    assert all(name in cure for kind in needed for name in FIELDS[kind])


async def is_stored(world: World, name: str) -> bool:
    """Tell whether there is a plan of a name, which a launch could name."""
    query = "SELECT count(*) FROM scheduler.plans WHERE position($1 IN body) > 0"
    [[count]] = await rows(world, query, json.dumps(name))
    return bool(count)
