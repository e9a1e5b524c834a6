"""Real models trained through all services: they learn, load elsewhere, and resume to the bit."""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path
from typing import Any

import pytest

from lehr.api.scheduler.v1 import job_pb2
from lehr.client.catalog import CheckpointIsAdapter
from lehr.client.checkpoints import TRAINING_STATE
from lehr.demo.model import NAME as SMOLLM2
from lehr.demo.model import smollm2
from lehr.demo.stdlib_rows import write_stdlib_rows
from lehr.demo.tiny import tiny_llama
from lehr.samples.lines import read_rows
from lehr.samples.prepare import prepare
from lehr.samples.tokens import SampleTokenizer
from lehr.training.spec import DataSpec
from tests.e2e.world import World, eventually
from tests.support.canonical_rows import table_of
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


async def test_a_checkpoint_of_full_fine_tuning_becomes_a_model_to_train_on(
    world: World, folder: Path
) -> None:
    base = await world.client.models.add(tiny_llama(folder), name="tiny", license="Apache-2.0")
    training = {"max_steps": 2, "eval_steps": 2}
    full = await world.launch_real({**TINY, "training": training, "adapter": {"type": "full"}})
    lora = await world.launch_real({**TINY, "training": training})
    for job_id in (full, lora):
        assert (await world.rests(job_id, within=PATIENT)).state == job_pb2.JOB_STATE_SUCCEEDED

    tuned = await world.client.models.add_checkpoint(
        f"{full}:final", name="tuned", license="Apache-2.0"
    )
    with pytest.raises(CheckpointIsAdapter, match="adapter"):
        await world.client.models.add_checkpoint(f"{lora}:final", name="x", license="Apache-2.0")
    again = await world.launch_real({**TINY, "training": training, "model": "tuned"})

    assert (tuned.source.kind, tuned.source.origin[:5]) == ("checkpoint", "ckpt_")
    assert (tuned.parameter_count, tuned.facts.dtype) == (base.parameter_count, "float32")
    names = {file.name for file in tuned.files}
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= names
    assert not names & TRAINING_STATE
    assert (await world.rests(again, within=PATIENT)).state == job_pb2.JOB_STATE_SUCCEEDED


async def test_the_log_counts_what_the_plan_counted(world: World, folder: Path) -> None:
    await world.client.models.add(tiny_llama(folder), name="tiny", license="Apache-2.0")
    training = {"max_steps": 2, "eval_steps": 2}
    spec = {**TINY, "training": training, "data": {"max_length": 12, "validation_split": 0.2}}
    plan = (await world.client.jobs.plan({"name": "counted", **spec})).data

    job_id = await world.launch_real(spec)
    await world.rests(job_id, within=PATIENT)

    async def logged() -> str | None:
        log = await world.log(job_id)
        return log if "validation:" in log else None

    log = await eventually(logged, within=PATIENT)
    assert f"training: {plan.train_count} of 32 rows are used" in log
    assert f"validation: {plan.validation_count} of 8 rows are used" in log
    assert f"{plan.trained_token_count} of {plan.token_count} tokens are trained" in log
    assert plan.truncated_count > 0
    # The node trained on the tokens that the plan counted.
    lines = world.stack.log("trainer_runner", 2000)
    ready = [json.loads(line) for line in lines if "dataset_ready" in line]
    assert ready[-1]["has_tokens"] is True


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
    tokenizer = SampleTokenizer.load(model)
    table = table_of(read_rows(rows), tokenizer)
    samples = prepare(
        table, data=DataSpec.model_validate(data), context=tokenizer.context
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
