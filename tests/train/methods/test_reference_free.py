"""ORPO, SimPO and CPO against trl's experimental trainers on the same batches."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lehr.samples.selection import Sample
from tests.train.method_cases import preference_row
from tests.train.references import FULL, data_of, library_arguments, plan_of, setting_of

pytestmark = [pytest.mark.train, pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

Pairs = Sequence[tuple[Sample, Sample]]

CPO: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "cpo": ("cpo", {}, {}),
    "cpo smoothed": ("cpo", {"label_smoothing": 0.1, "cpo_alpha": 0.3}, {}),
    "cpo without cross-entropy": ("cpo", {"cpo_alpha": 0.0}, {}),
    "cpo hinge": ("cpo", {"loss_type": "hinge", "beta": 0.05}, {}),
    "cpo ipo": ("cpo", {"loss_type": "ipo"}, {}),
    "simpo": ("simpo", {}, {"loss_type": "simpo", "cpo_alpha": 0.0}),
    "simpo smoothed": (
        "simpo",
        {"label_smoothing": 0.2, "simpo_gamma": 0.3, "beta": 2.5},
        {"loss_type": "simpo", "cpo_alpha": 0.0},
    ),
}


def a_sample(ids: Sequence[int], prompt: int) -> Sample:
    trained = [0] * prompt + [1] * (len(ids) - prompt)
    return Sample(np.array(ids, dtype=np.int32), np.array(trained, dtype=np.uint8))


def some_pairs(*, prompt: int) -> Pairs:
    """Return pairs of many lengths; the first answers of a pair differ from the second."""
    random = np.random.RandomState(7)
    lengths = [(3, 9), (6, 2), (12, 12), (1, 5)]
    prompts = [random.randint(0, 380, prompt).tolist() for _ in lengths]
    return [
        (
            a_sample(start + random.randint(0, 380, chosen).tolist(), prompt),
            a_sample(start + random.randint(0, 380, rejected).tolist(), prompt),
        )
        for start, (chosen, rejected) in zip(prompts, lengths, strict=True)
    ]


def ours(folder: Path, tiny: Path, pairs: Pairs, method: str, **own: Any) -> dict[str, Any]:
    """Return loss, charts and a gradient of our trainer."""
    from services.trainer_runner.trainer.methods import trainer_of  # noqa: PLC0415

    plan = plan_of(folder, tiny, preference_row, method=method, adapter=FULL, hyperparameters=own)
    trainer = trainer_of(setting_of(plan, data_of(plan, preference_row)))
    batch = trainer.collate(pairs)
    _, count = trainer.get_batch_samples(iter([batch]), 1, None)
    trainer.model.train()
    loss = trainer.compute_loss(trainer.model, batch, num_items_in_batch=count)
    return {"loss": loss.item(), **trainer.charted(trainer.sums), **gradient(trainer.model, loss)}


def theirs(folder: Path, tiny: Path, pairs: Pairs, kind: str, **own: Any) -> dict[str, Any]:
    """Return the same of a trainer of trl.experimental."""
    from datasets import Dataset  # noqa: PLC0415 - takes seconds
    from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: PLC0415
    from trl.experimental import cpo, orpo  # noqa: PLC0415

    from services.trainer_runner.trainer.data.pairs import collate_sides  # noqa: PLC0415

    configs: Any = {
        "cpo": (cpo.CPOConfig, cpo.CPOTrainer),
        "orpo": (orpo.ORPOConfig, orpo.ORPOTrainer),
    }
    config, trainer_type = configs[kind]
    plan = plan_of(folder, tiny, preference_row, method="orpo")
    model = AutoModelForCausalLM.from_pretrained(tiny, dtype="float32")
    tokenizer = AutoTokenizer.from_pretrained(tiny)
    tokenizer.pad_token_id = tokenizer.eos_token_id
    rows = [{"prompt": "a", "chosen": " b", "rejected": " c"}] * 4
    trainer = trainer_type(
        model=model,
        args=config(**{**library_arguments(plan, folder), "max_length": 64}, **own),
        train_dataset=Dataset.from_list(rows),
        processing_class=tokenizer,
    )
    batch = {}
    for name, side in (("chosen", 0), ("rejected", 1)):
        padded = collate_sides([pair[side] for pair in pairs], pad_id=0)
        mask = padded.pop("completion_mask")
        batch.update({f"{name}_{key}": values for key, values in padded.items()})
        batch[f"{name}_labels"] = padded["input_ids"].masked_fill(mask == 0, -100)
    model.train()
    loss, told = trainer.get_batch_loss_metrics(model, batch)
    return {"loss": loss.item(), **told, **gradient(model, loss)}


def gradient(model: Any, loss: Any) -> dict[str, list[float]]:
    loss.backward()
    found = dict(model.named_parameters())
    name = next(name for name in found if name.endswith("layers.0.self_attn.q_proj.weight"))
    return {
        "gradient": found[name].grad[0].tolist(),
        "head": found["model.embed_tokens.weight"].grad[7].tolist(),
    }


def assert_equal(mine: dict[str, Any], other: dict[str, Any], names: Sequence[str]) -> None:
    for name in ("loss", "gradient", "head", *names):
        assert mine[name] == pytest.approx(other[name], abs=1e-5), name
    assert any(mine["gradient"])


SHARED = [
    *(f"rewards/{name}" for name in ("chosen", "rejected", "margins", "accuracies")),
    *("logps/chosen", "logps/rejected"),
]


@pytest.mark.parametrize("name", CPO)
def test_loss_and_gradient_are_those_of_trls_cpo(name: str, tmp_path: Path, tiny: Path) -> None:
    method, own, only_theirs = CPO[name]
    pairs = some_pairs(prompt=4)
    defaults = {"beta": 2.0, "simpo_gamma": 1.0} if method == "simpo" else {}

    mine = ours(tmp_path, tiny, pairs, method, **own)
    other = theirs(tmp_path, tiny, pairs, "cpo", **{**defaults, **own, **only_theirs})

    assert_equal(mine, other, [*SHARED, *(["nll_loss"] if "nll_loss" in mine else [])])


def test_loss_and_gradient_are_those_of_trls_orpo_where_a_prompt_has_nothing_to_train(
    tmp_path: Path, tiny: Path
) -> None:
    # trl trains the prompt too; of one token nothing is predicted.
    pairs = some_pairs(prompt=1)

    mine = ours(tmp_path, tiny, pairs, "orpo", beta=0.2)
    other = theirs(tmp_path, tiny, pairs, "orpo", beta=0.2)

    assert_equal(mine, other, [*SHARED, "nll_loss", "log_odds_ratio", "log_odds_chosen"])


def test_odds_stay_finite_where_an_answer_is_certain() -> None:
    import torch  # noqa: PLC0415 - takes seconds

    from services.trainer_runner.trainer.methods.orpo import log_odds_ratio  # noqa: PLC0415

    chosen = torch.tensor([0.0, -1e-9, -200.0], requires_grad=True)

    ratio = log_odds_ratio(chosen, torch.tensor([-1.0, -200.0, 0.0]))
    ratio.sum().backward()

    assert ratio.isfinite().all()
    assert chosen.grad is not None
    assert chosen.grad.isfinite().all()
