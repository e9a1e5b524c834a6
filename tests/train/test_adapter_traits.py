"""What single adapters promise beside training: budgets, references, embeddings, precision."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lehr.demo.tiny import LlamaShape, write_llama
from lehr.errors import InvalidArgument
from lehr.training.adapters import ADAPTERS
from lehr.training.plan import TrainingPlan
from tests.support.canonical_rows import a_row, write_canonical
from tests.support.trainers import Told
from tests.train.adapter_cases import (
    CASES,
    AdapterCase,
    assert_merges,
    base_of,
    data_of,
    evaluation_loss,
    lora,
    losses,
    plan_of,
    scores,
    tuned_of,
)
from tests.train.method_cases import preference_row

pytestmark = [pytest.mark.train, pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

Train = Callable[..., Told]
BY_NAME = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


@pytest.fixture
def plan(tmp_path: Path, tiny: Path) -> Callable[..., TrainingPlan]:
    def build(case: AdapterCase, name: str, **more: Any) -> TrainingPlan:
        return plan_of(tmp_path, tiny, case, name, **more)

    return build


@pytest.fixture(scope="session")
def untied(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a tiny model whose head is a tensor of its own."""
    folder = tmp_path_factory.mktemp("untied")
    for file in tiny.glob("token*.json"):
        shutil.copyfile(file, folder / file.name)
    vocabulary = json.loads((tiny / "config.json").read_bytes())["vocab_size"]
    shape = LlamaShape(vocab_size=vocabulary, tie_word_embeddings=False)
    write_llama(folder, shape, special_ids={"pad_token_id": 0, "eos_token_id": 2})
    return folder


@pytest.mark.parametrize(
    "case",
    [
        lora("embedding saved", modules_to_save=["embed_tokens", "lm_head"]),
        lora("embedding", target_modules=["embed_tokens", "lm_head", "q_proj"]),
        AdapterCase(adapter="trainable_tokens", fields={"token_indices": list(range(60, 120))}),
        AdapterCase(
            adapter="freeze", fields={"trained_layers": 0, "trained_modules": ["embed_tokens"]}
        ),
    ],
    ids=lambda case: case.name,
)
def test_a_trained_embedding_survives_where_the_head_is_another_tensor(
    case: AdapterCase,
    plan: Callable[..., TrainingPlan],
    train: Train,
    untied: Path,
    tmp_path: Path,
) -> None:
    made = plan(case, "run", model_dir=untied)
    told = train(made)
    folder = told.checkpoint_at(6)

    base, *_, last = told.evaluations
    assert last.eval_loss < base.eval_loss
    tuned = tuned_of(folder, untied, case)
    assert evaluation_loss(tuned, made) == pytest.approx(last.eval_loss, abs=1e-5)
    if ADAPTERS[case.adapter].mergeable:
        assert_merges(folder, untied, tmp_path / "merged")


def test_an_embedding_and_a_head_that_are_one_tensor_stay_one(
    plan: Callable[..., TrainingPlan], train: Train, tiny: Path
) -> None:
    case = lora("embedding saved", modules_to_save=["embed_tokens"])

    merged = tuned_of(train(plan(case, "run")).checkpoint_at(6), tiny, case).merge_and_unload()

    embedding, head = merged.get_input_embeddings(), merged.get_output_embeddings()
    assert embedding.weight.equal(head.weight)


@pytest.mark.parametrize(
    ("adapter", "field", "what"),
    [
        ({"target_modules": ["embed_tokens"]}, "adapter.target_modules", "are one tensor"),
        ({"target_modules": ["lm_head"]}, "adapter.target_modules", "use modules_to_save"),
        ({"target_modules": ["no_such"]}, "adapter", "not found in the base model"),
        ({"init_lora_weights": "pissa", "r": 64}, "adapter.r", "lower r"),
        ({"type": "adalora", "tfinal": 5}, "adapter.tfinal", "lower tinit or tfinal"),
        ({"type": "freeze", "trained_layers": 3}, "adapter.trained_layers", "it has 2"),
        (
            {"type": "freeze", "trained_modules": ["no_such"]},
            "adapter.trained_modules",
            "called no_such",
        ),
        ({"type": "shira", "r": 64}, "adapter", "more shira params"),
    ],
)
def test_an_adapter_that_does_not_fit_the_model_is_refused_with_what_to_do(
    adapter: dict[str, Any],
    field: str,
    what: str,
    plan: Callable[..., TrainingPlan],
    train: Train,
) -> None:
    told = {"type": "lora", **adapter}
    kind = told.pop("type")

    with pytest.raises(InvalidArgument) as caught:
        train(plan(AdapterCase(adapter=kind, fields=told), "run"))

    assert caught.value.reason == "ADAPTER_DOES_NOT_FIT"
    assert [one.field for one in caught.value.fields] == [field]
    assert what in str(caught.value)


@pytest.mark.parametrize("init", ["pissa", "olora"])
def test_switched_off_an_adapter_that_took_weights_over_gives_the_base_model(
    init: str, plan: Callable[..., TrainingPlan], train: Train, tiny: Path
) -> None:
    from services.trainer_runner.trainer.adapters import adapter_of  # noqa: PLC0415 - seconds
    from services.trainer_runner.trainer.adapters.base import Making  # noqa: PLC0415

    case = lora(init, init_lora_weights=init)
    checkpoint = train(plan(case, "run")).checkpoint_at(6)
    made = plan(case, "again", resume_dir=checkpoint)
    making = Making(plan=made, data=data_of(made), total_steps=6, resume_dir=checkpoint)
    model = adapter_of(made).build(making).eval()
    tuned, base = scores(model), scores(base_of(tiny, lora("")).eval())

    with model.disable_adapter():
        switched_off = scores(model)

    assert switched_off.allclose(base, atol=1e-5)
    assert not tuned.allclose(base, atol=1e-3)
    assert scores(model).equal(tuned)


@pytest.mark.parametrize(
    "case",
    [
        lora("embedding saved", modules_to_save=["embed_tokens"]),
        AdapterCase(adapter="qlora"),
        AdapterCase(adapter="freeze", fields={"trained_layers": 1}),
        AdapterCase(adapter="ln_tuning", learning_rate=0.05),
        AdapterCase(adapter="prefix_tuning", learning_rate=0.1),
    ],
    ids=lambda case: case.name,
)
def test_in_bf16_what_is_trained_is_kept_in_fp32_and_resumed_exactly(
    case: AdapterCase, plan: Callable[..., TrainingPlan], train: Train
) -> None:
    import torch  # noqa: PLC0415 - takes seconds
    from safetensors.torch import load_file  # noqa: PLC0415

    half = {"training": {"precision": "bf16"}}
    straight = train(plan(case, "straight", **half))
    first = train(plan(case, "first", stop_at_step=4, **half))

    second = train(plan(case, "second", resume_dir=first.checkpoint_at(4), **half))

    assert losses(first, second) == losses(straight)
    assert straight.eval_losses[6] < straight.eval_losses[0]
    [weights] = straight.checkpoint_at(6).glob("*model.safetensors")
    types = {tensor.dtype for tensor in load_file(weights).values()}
    assert torch.float32 in types
    assert types == {torch.float32} or case.adapter == "freeze"


@pytest.mark.parametrize("method", ["dpo", "kto"])
@pytest.mark.parametrize(
    "case",
    [
        lora("pissa", init_lora_weights="pissa"),
        lora("embedding saved", modules_to_save=["embed_tokens"]),
        AdapterCase(adapter="qlora"),
        AdapterCase(adapter="freeze"),
        AdapterCase(adapter="adalora"),
        AdapterCase(adapter="boft"),
        AdapterCase(adapter="ln_tuning"),
    ],
    ids=lambda case: case.name,
)
def test_a_method_with_a_reference_compares_with_the_base_model(
    method: str,
    case: AdapterCase,
    plan: Callable[..., TrainingPlan],
    train: Train,
    tmp_path: Path,
) -> None:
    rows = write_canonical(tmp_path / "pairs", map(a_row, map(preference_row, range(12))))
    more = {"spec": {"method": method}, "training": {"max_steps": 3}, "dataset_file": rows}

    told = train(plan(case, "run", **more))

    # Nothing has been learnt at the first step, so nothing differs from the reference.
    assert told.steps[0].values["rewards/margins"] == pytest.approx(0.0, abs=1e-5)
    assert abs(told.steps[-1].values["rewards/margins"]) > 1e-4


def test_what_is_frozen_stays_to_the_bit_what_it_was(
    plan: Callable[..., TrainingPlan], train: Train, tiny: Path
) -> None:
    from safetensors.torch import load_file  # noqa: PLC0415 - takes seconds

    fields = {"trained_layers": 1, "trained_modules": ["model.norm"]}
    told = train(plan(AdapterCase(adapter="freeze", fields=fields), "run"))
    before = load_file(tiny / "model.safetensors")
    after = load_file(told.checkpoint_at(6) / "model.safetensors")

    changed = {name for name, one in before.items() if not one.to(after[name]).equal(after[name])}
    assert {name.rpartition(".layers.1.")[0] or name for name in changed} == {
        "model",
        "model.norm.weight",
    }


def test_with_lora_plus_b_learns_faster_than_a(
    plan: Callable[..., TrainingPlan], train: Train
) -> None:
    case = lora("plus", loraplus_lr_ratio=4.0)
    told = train(plan(case, "run", training={"lr_scheduler_type": "constant"}))

    state = json.loads((told.checkpoint_at(6) / "optimizer.json").read_bytes())
    rates = {
        state["names"][number].split(".")[-3]: group["lr"]
        for group in state["param_groups"]
        for number in group["params"]
    }
    assert rates == {"lora_A": 0.01, "lora_B": 0.04}


def test_adalora_keeps_to_its_budget_and_its_factors_orthogonal(
    plan: Callable[..., TrainingPlan], train: Train
) -> None:
    import torch  # noqa: PLC0415 - takes seconds
    from safetensors.torch import load_file  # noqa: PLC0415

    def trained(name: str, weight: float) -> dict[str, torch.Tensor]:
        fields = {"init_r": 6, "target_r": 2, "tfinal": 1, "orth_reg_weight": weight}
        told = train(plan(AdapterCase(adapter="adalora", fields=fields), name))
        return load_file(told.checkpoint_at(6) / "adapter_model.safetensors")

    def distance(weights: dict[str, torch.Tensor]) -> float:
        downs = [one for name, one in weights.items() if "lora_A" in name]
        return sum((one @ one.T - torch.eye(6)).norm().item() for one in downs)

    free, held = trained("free", 0.0), trained("held", 50.0)

    ranks = [one for name, one in held.items() if "lora_E" in name]
    assert sum(int(one.count_nonzero()) for one in ranks) == 2 * len(ranks)
    assert distance(held) < 0.9 * distance(free)
