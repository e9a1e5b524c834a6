"""A run on tokens that the catalog made equals one that tokenises the rows itself, to the bit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lehr.samples.tabulate import write_table
from lehr.samples.tokens import SampleTokenizer
from lehr.training.ends import RunEnd
from lehr.training.plan import TrainingPlan
from tests.support.canonical_rows import a_chat, write_canonical
from tests.support.trainers import Told, a_plan

pytestmark = [pytest.mark.train, pytest.mark.filterwarnings("ignore")]

Train = Callable[[TrainingPlan], Told]
SPEC: dict[str, Any] = {
    "adapter": {"type": "lora", "lora_dropout": 0.1},
    "training": {"max_steps": 8, "eval_steps": 4, "save_steps": 4, "learning_rate": 0.01},
    "data": {"max_length": 24},
}


@pytest.fixture
def plan(tmp_path: Path, tiny: Path) -> Callable[..., TrainingPlan]:
    chats = [
        a_chat(("user", f"row-{at:02}" * (at % 5)), ("assistant", f"It is {at * 7 % 13}."))
        for at in range(40)
    ]
    rows = write_canonical(tmp_path / "rows.jsonl.zst", chats)
    tokens = tmp_path / "tokens.safetensors"
    write_table(rows, SampleTokenizer.load(tiny), tokens)

    def build(name: str, *, has_tokens: bool, **more: Any) -> TrainingPlan:
        spec = {**SPEC, **more.pop("spec", {})}
        return a_plan(
            tmp_path / name,
            spec,
            model_dir=tiny,
            dataset_file=rows,
            tokens_file=tokens if has_tokens else None,
            **more,
        )

    return build


def numbers(told: Told) -> dict[int, tuple[float, ...]]:
    names = ("loss", "learning_rate", "grad_norm", "num_tokens")
    return {step.step: tuple(step.values[name] for name in names) for step in told.steps}


def test_losses_are_the_same_with_the_catalogs_tokens_and_with_ones_own(
    plan: Callable[..., TrainingPlan], train: Train
) -> None:
    given, own = (train(plan(str(has), has_tokens=has)) for has in (True, False))

    assert numbers(given) == numbers(own)
    assert given.eval_losses == own.eval_losses
    assert given.logs == own.logs
    assert "cut to the last 24" in own.logs


@pytest.mark.parametrize("first_has_tokens", [True, False])
def test_a_resume_may_change_where_the_tokens_come_from(
    plan: Callable[..., TrainingPlan], train: Train, first_has_tokens: bool
) -> None:
    straight = train(plan("straight", has_tokens=first_has_tokens))
    first = train(plan("first", has_tokens=first_has_tokens, stop_at_step=3))

    folder = first.checkpoint_at(3)
    second = train(plan("second", has_tokens=not first_has_tokens, resume_dir=folder))

    assert (first.end, second.end) == (RunEnd.USER_STOPPED, RunEnd.COMPLETED)
    assert numbers(first) | numbers(second) == numbers(straight)
    assert first.eval_losses | second.eval_losses == straight.eval_losses


def test_tokens_of_another_version_are_made_anew(
    plan: Callable[..., TrainingPlan], train: Train
) -> None:
    own = train(plan("own", has_tokens=False))
    damaged = plan("damaged", has_tokens=True)
    whole = damaged.tokens_file.read_bytes()  # type: ignore[union-attr]
    damaged.tokens_file.write_bytes(  # type: ignore[union-attr]
        whole.replace(b'"format":"1"', b'"format":"0"')
    )

    assert numbers(train(damaged)) == numbers(own)


def test_nothing_of_the_tokens_is_left_beside_the_checkpoints(
    plan: Callable[..., TrainingPlan], train: Train
) -> None:
    run = plan("own", has_tokens=False)

    train(run)

    assert not list(run.progress_file.parent.rglob("*tokens*"))


def test_a_bundled_template_is_trained_instead_of_the_models_own(
    plan: Callable[..., TrainingPlan], train: Train
) -> None:
    data = {"max_length": 128, "chat_template": "zephyr"}

    usual = train(plan("usual", has_tokens=False, spec={"data": {"max_length": 128}}))
    bundled = train(plan("bundled", has_tokens=False, spec={"data": data}))

    assert bundled.end == RunEnd.COMPLETED
    assert numbers(bundled)[1] != numbers(usual)[1]
