"""The demo: a real model fine-tuned on real data by the real services, from nothing to a bill."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

from rich.rule import Rule

from lehr.api.scheduler.v1 import job_pb2
from lehr.cli.follow import follow
from lehr.cli.output import console, money
from lehr.cli.plan import show_plan
from lehr.cli.stack import tell_progress
from lehr.client import AsyncClient
from lehr.demo.model import NAME as MODEL_NAME
from lehr.demo.model import smollm2
from lehr.demo.stdlib_rows import write_stdlib_rows
from lehr.errors import PlatformError
from lehr.money import Money
from lehr.stack import Stack
from lehr.training.yaml import read_spec

JOB_FILE = Path(__file__).with_name("job.yaml")
DATASET_NAME = "python-docstrings"
MAX_COST = Money(currency="EUR", micros=500_000)
MAX_DURATION = timedelta(minutes=20)
QUESTION = "Explain the function shutil.copyfile."

_FOLDER = "demo"


def run_demo(*, keep: bool) -> int:
    """Run the demo and return its exit status; the stack is stopped unless ``keep``."""
    folder = Path(os.environ.get("LEHR_STATE_DIR", ".state")).absolute() / _FOLDER
    stack = Stack(folder / "stack")
    if stack.status().supervisor_pid is not None:
        console.print(f"a demo runs in {folder}; stop it with", markup=False)
        console.print(f"    lehr down --state-dir {stack.layout.root}", markup=False)
        return 1
    try:
        _section("model and data")
        folder.mkdir(parents=True, exist_ok=True)
        console.print(f"preparing {MODEL_NAME} (once; some seconds)")
        model = smollm2(folder / "cache")
        rows = write_stdlib_rows(folder / "cache")
        _section("servers and services")
        # Each demo begins with nothing: a job of one that was killed would go on in this one.
        stack.remove()
        status = stack.up(owned=not keep, progress=tell_progress())
        console.print(f"gateway at {status.gateway}, state in {folder}", markup=False)
        return asyncio.run(_through(stack, folder, model, rows))
    except PlatformError as error:
        console.print(f"[bold red]error[/] [dim]{error.reason}[/]", end=" ")
        console.print(str(error), markup=False)
        return 1
    except KeyboardInterrupt:
        console.print("stopping")
        return 130
    finally:
        if keep:
            console.print(
                f"the stack runs on: lehr status --state-dir {stack.layout.root}", markup=False
            )
        else:
            stack.down()


async def _through(stack: Stack, folder: Path, model: Path, rows: Path) -> int:
    async with AsyncClient(stack.status().gateway, stack.secrets().api_key) as client:
        await _fill_catalog(client, model, rows)
        _section("the plan")
        spec = read_spec(JOB_FILE)
        plan = await client.jobs.plan(spec)
        show_plan(plan)
        console.print(
            f"\nauthorised: at most {MAX_COST} and {MAX_DURATION} of running time; nothing more"
            " can be charged"
        )
        _section("training")
        job = await client.jobs.create(
            plan.plan_digest, max_cost=MAX_COST, max_duration=MAX_DURATION
        )
        console.print(f"job {job.job_id}")
        job = await follow(client, job.job_id)
        if job.state != job_pb2.JOB_STATE_SUCCEEDED:
            console.print(f"[bold red]the job ended as {job.end_reason}[/]")
            async for line in client.jobs.logs(job.job_id):
                console.print(f"  {line.text}", markup=False)
            return 1
        await _summary(client, job, folder, model)
        return 0


async def _fill_catalog(client: AsyncClient, model: Path, rows: Path) -> None:
    added = await client.models.add(model, name=MODEL_NAME, license="Apache-2.0")
    console.print(
        f"model {added.name}@{added.revision[:12]}: {added.parameter_count / 1e6:.1f} M parameters"
    )
    answer = await client.datasets.upload(rows, name=DATASET_NAME)
    dataset = answer.dataset
    console.print(
        f"dataset {dataset.name}@{dataset.revision[:12]}: {dataset.row_count} rows, all checked"
    )


async def _summary(client: AsyncClient, job: job_pb2.Job, folder: Path, model: Path) -> None:
    _section("result")
    adapter = folder / "adapters" / job.job_id
    best = await client.checkpoints.download(f"{job.job_id}:best", adapter)
    cost = await client.jobs.cost(job.job_id)
    proof = await client.billing.reconcile()
    progress = job.progress
    console.print(
        f"validation loss  {progress.baseline_loss:.4f} (base) -> [bold green]"
        f"{progress.best_loss:.4f}[/] (tuned, step {best.step} of {progress.total_steps})"
    )
    answers = await asyncio.to_thread(_answers, model, adapter)
    console.print(f"\n[bold]{QUESTION}[/]")
    for name in ("base", "tuned"):
        console.print(f"[bold]{name:>6}[/]", end="  ")
        console.print(answers[name].strip(), markup=False)
    console.print(
        f"\nbilled {cost.billed_seconds} s, {money(cost.total)} of at most {MAX_COST};"
        f" ledger against leases: {len(proof.differences)} differences"
    )
    console.print(f"the adapter is in {adapter}; load it with\n", markup=False)
    console.print(
        "    from peft import PeftModel\n"
        "    from transformers import AutoModelForCausalLM, AutoTokenizer\n"
        f'    base = AutoModelForCausalLM.from_pretrained("{model}")\n'
        f'    tuned = PeftModel.from_pretrained(base, "{adapter}")\n'
        f'    tokenizer = AutoTokenizer.from_pretrained("{model}")\n',
        markup=False,
        soft_wrap=True,
    )


def _answers(model: Path, adapter: Path) -> dict[str, str]:
    """Ask both models the same question, in a process of its own: torch is not for a CLI."""
    command = [sys.executable, "-m", "services.trainer_runner.trainer.answer"]
    command += ["--model", str(model), "--adapter", str(adapter), "--question", QUESTION]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    answers: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return answers


def _section(title: str) -> None:
    console.print()
    console.print(Rule(f"[bold]{title}", align="left", style="dim"))
