"""Real models trained through all services: they learn, load elsewhere, and resume to the bit."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest

from lehr.api.scheduler.v1 import job_pb2
from lehr.demo.model import NAME as SMOLLM2
from lehr.demo.model import smollm2
from lehr.demo.stdlib_rows import write_stdlib_rows
from lehr.demo.tiny import tiny_llama
from lehr.samples.prepare import prepare
from lehr.samples.rows import read_rows
from lehr.samples.tokens import SampleTokenizer
from lehr.training.spec import DataSpec
from tests.e2e.world import World
from tests.train.test_training import plain_loss

pytestmark = [pytest.mark.train, pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(900)]

PATIENT = 600.0
#: 0 to the bit: everything random is on, and steps lie across epochs.
TINY: dict[str, Any] = {
    "model": "tiny",
    "dataset": "chats",
    "adapter": {"type": "lora", "lora_dropout": 0.1},
    "training": {
        "max_steps": 120,
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 2,
        "eval_steps": 20,
        "save_steps": 10,
        "learning_rate": 1e-3,
        "lr_scheduler_type": "cosine",
    },
    "early_stopping": {"patience": None},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where models and rows are made."""
    return tmp_path_factory.mktemp("real")


async def losses(world: World, job_id: str) -> dict[int, str]:
    """Return the losses of a finished job, all digits of them, by step."""
    job = await world.rests(job_id, within=PATIENT)
    assert job.state == job_pb2.JOB_STATE_SUCCEEDED, f"{job.end_reason}: {job.state_message}"
    return await world.has_steps(job_id, job.progress.total_steps)


async def test_stopped_and_killed_runs_equal_the_uninterrupted_one_to_the_bit(
    world: World, folder: Path
) -> None:
    await world.client.models.add(tiny_llama(folder), name="tiny", license="Apache-2.0")
    chance = random.Random("seed 2026")  # noqa: S311 - repeatable

    straight = await losses(world, await world.launch_real(TINY))
    stopped = await world.launch_real(TINY)
    await world.reaches(stopped, chance.randint(12, 60))
    await world.client.jobs.stop(stopped)
    await world.rests(stopped)
    await world.client.jobs.resume(stopped)
    killed = await world.launch_real(TINY)
    await world.reaches(killed, chance.randint(12, 60))
    world.stack.kill("trainer_runner")

    assert await losses(world, stopped) == straight
    assert await losses(world, killed) == straight
    assert len((await world.client.jobs.get(killed)).runs) == 2
    await world.proves_clean()


@pytest.mark.slow
@pytest.mark.parametrize(("adapter", "learning_rate"), [("lora", 1e-3), ("full", 3e-5)])
async def test_smollm2_learns_and_loads_with_plain_libraries(
    world: World, folder: Path, adapter: str, learning_rate: float
) -> None:
    model = await asyncio.to_thread(smollm2, folder)
    rows = await asyncio.to_thread(write_stdlib_rows, folder)
    await world.client.models.add(model, name=SMOLLM2, license="Apache-2.0")
    await world.client.datasets.upload(rows, name="docstrings")
    data = {"max_length": 96, "max_train_samples": 16, "max_eval_samples": 8}
    job_id = await world.launch_real(
        {
            "model": SMOLLM2,
            "dataset": "docstrings",
            "adapter": {"type": adapter},
            "data": data,
            "training": {
                "max_steps": 4,
                "eval_steps": 2,
                "save_steps": 4,
                "learning_rate": learning_rate,
            },
        }
    )

    job = await world.rests(job_id, within=PATIENT)
    best = await world.client.checkpoints.download(f"{job_id}:best", folder / adapter)
    samples = prepare(
        list(read_rows(rows)),
        tokenizer=SampleTokenizer.load(model),
        data=DataSpec.model_validate(data),
    ).validation
    measured = await asyncio.to_thread(_loss, adapter, model, folder / adapter, samples)

    assert job.state == job_pb2.JOB_STATE_SUCCEEDED
    assert job.progress.best_loss < job.progress.baseline_loss - 0.02
    assert measured == pytest.approx(float(best.eval_loss), abs=1e-4)


def _loss(adapter: str, base: Path, tuned: Path, samples: Any) -> float:
    """Load what was downloaded as anybody would, and measure it."""
    from peft import PeftModel  # noqa: PLC0415 - takes seconds
    from transformers import AutoModelForCausalLM  # noqa: PLC0415

    if adapter == "full":
        model = AutoModelForCausalLM.from_pretrained(tuned, dtype="float32")
    else:
        plain = AutoModelForCausalLM.from_pretrained(base, dtype="float32")
        model = PeftModel.from_pretrained(plain, tuned)
    return plain_loss(model.eval(), samples)
