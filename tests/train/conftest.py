"""One tiny model for all trainings, and the trainer called in this process."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from lehr.demo.tiny import tiny_llama
from lehr.training.plan import TrainingPlan
from services.trainer_runner.pipes import StopFlag
from tests.support.trainers import Told


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def teacher(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a model with the tokens of ``tiny`` and opinions of its own."""
    import torch  # noqa: PLC0415 - takes seconds
    from transformers import AutoModelForCausalLM  # noqa: PLC0415

    folder = tmp_path_factory.mktemp("teacher")
    shutil.copytree(tiny, folder, dirs_exist_ok=True)
    model = AutoModelForCausalLM.from_pretrained(tiny, dtype="float32")
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        embeddings = model.get_input_embeddings().weight
        embeddings.copy_(torch.randn(embeddings.shape, generator=generator) * 0.05)
    model.save_pretrained(folder)
    return folder


@pytest.fixture
def train(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Told]:
    """Return the trainer as a function: importing torch once saves most of each test's time."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")

    def call(plan: TrainingPlan, stop: StopFlag | None = None) -> Told:
        from services.trainer_runner.trainer.train import train as run  # noqa: PLC0415

        told = Told()
        # One thread: on a busy machine, a second would make a tiny model slower.
        run(plan, told, stop or StopFlag(), threads=1)
        return told

    return call
