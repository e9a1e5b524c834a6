"""Packing changes speed, not what is learned."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from lehr.samples.selection import Sample
from lehr.training.packable import PACKABLE_MODEL_TYPES
from services.trainer_runner.trainer.data.batches import IGNORE, collate
from services.trainer_runner.trainer.data.packs import collate_packs
from services.trainer_runner.trainer.methods.sft import answer_losses, target_count
from tests.support.small_models import SMALL_MODELS

ATTENTION = ("eager", "sdpa")


def a_sample(seed: int, length: int) -> Sample:
    draws = torch.Generator().manual_seed(seed)
    ids = torch.randint(5, 120, (length,), generator=draws, dtype=torch.int32)
    return Sample(ids.numpy(), np.array([0, *[1] * (length - 1)], dtype=np.uint8))


def muted(sample: Sample) -> Sample:
    return Sample(sample.token_ids, np.zeros_like(sample.trained))


SAMPLES = [a_sample(seed, length) for seed, length in enumerate((7, 12, 3, 9))]


def build(model_type: str, settings: Mapping[str, Any], attention: str) -> Any:
    torch.manual_seed(0)
    config = AutoConfig.for_model(model_type, **settings)
    return AutoModelForCausalLM.from_config(config, attn_implementation=attention).eval()


def loss_of_each(model: Any, packs: list[list[Sample]]) -> dict[bytes, float]:
    """Return the loss of each sample by its tokens, computed in these packs."""
    losses = {}
    for pack in packs:
        for wanted in pack:
            # Of all samples of a row only one is a target, so the sum is its own.
            others_muted = [one if one is wanted else muted(one) for one in pack]
            batch = collate_packs([others_muted], pad_id=0)
            with torch.no_grad():
                losses[wanted.token_ids.tobytes()] = answer_losses(model, batch).sum().item()
    return losses


def loss_alone(model: Any, sample: Sample) -> float:
    with torch.no_grad():
        return float(answer_losses(model, collate([sample], pad_id=0)).sum().item())


#: transformers offers no sdpa for it.
NO_SDPA = {"gemma2"}


@pytest.mark.parametrize(
    ("model_type", "attention"),
    [
        (model_type, attention)
        for model_type in sorted(PACKABLE_MODEL_TYPES)
        for attention in ATTENTION
        if attention == "eager" or model_type not in NO_SDPA
    ],
)
def test_a_sample_has_the_same_loss_alone_and_in_any_pack(model_type: str, attention: str) -> None:
    model = build(model_type, SMALL_MODELS[model_type], attention)

    packed = loss_of_each(model, [SAMPLES])
    turned = loss_of_each(model, [SAMPLES[::-1]])

    for sample in SAMPLES:
        alone = loss_alone(model, sample)
        assert packed[sample.token_ids.tobytes()] == pytest.approx(alone, rel=1e-4)
        assert turned[sample.token_ids.tobytes()] == pytest.approx(alone, rel=1e-4)


def test_rows_of_different_length_do_not_see_their_padding() -> None:
    model = build("llama", SMALL_MODELS["llama"], "sdpa")
    batch = collate_packs([SAMPLES[:2], SAMPLES[2:3]], pad_id=7)

    with torch.no_grad():
        together = answer_losses(model, batch).sum().item()

    assert together == pytest.approx(sum(loss_alone(model, one) for one in SAMPLES[:3]), rel=1e-4)


def test_positions_begin_again_and_no_sample_predicts_the_next() -> None:
    batch = collate_packs([SAMPLES[:2], SAMPLES[2:3]], pad_id=0)

    assert batch["position_ids"].tolist() == [
        [*range(7), *range(12)],
        [*range(3), *range(16)],
    ]
    assert batch["labels"][0, 0] == batch["labels"][0, 7] == IGNORE
    assert set(batch["labels"][1, 3:].tolist()) == {IGNORE}
    assert int(batch["token_count"]) == 22
    assert target_count(batch) == sum(len(one) - 1 for one in SAMPLES[:3])


def test_what_a_sample_begins_with_is_never_a_target_although_it_is_trained() -> None:
    trained = [Sample(one.token_ids, np.ones_like(one.trained)) for one in SAMPLES[:2]]

    labels = collate_packs([trained], pad_id=0)["labels"][0].tolist()

    assert [at for at, label in enumerate(labels) if label == IGNORE] == [0, 7]
