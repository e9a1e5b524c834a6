"""A plan as a person reads it."""

from __future__ import annotations

from lehr.api.scheduler.v1 import job_pb2
from lehr.cli.output import clock, console, money, print_table
from lehr.training.adapters import ADAPTERS


def show_plan(plan: job_pb2.Plan) -> None:
    """Print what a job would do, with how much, and at what cost."""
    spec, data = plan.spec, plan.data
    console.print(f"[bold]plan[/] {plan.plan_digest[:16]}")
    _line("name", spec.name)
    _line("model", f"{spec.model.partition('@')[0]} at {plan.model_revision[:12]}")
    _line("dataset", f"{spec.dataset.partition('@')[0]} at {plan.dataset_revision[:12]}")
    _line("method", f"{spec.method} with {_adapter(spec.adapter)}")
    _line(
        "rows",
        f"{data.train_count} trained, {data.validation_count} held out, of {data.row_count}",
    )
    _line(
        "length",
        f"{data.max_length} tokens: {data.truncated_count} cut to their last tokens,"
        f" {data.dropped_count} dropped, {data.untrainable_count} with nothing to learn;"
        f" longest {data.longest_tokens}",
    )
    if data.packed_row_count:
        _line("packed", f"{data.train_count} samples into {data.packed_row_count} rows")
    _line("trained", f"{data.trained_token_count} of {data.token_count} tokens")
    training = spec.training
    _line(
        "steps",
        f"{plan.total_steps}, evaluated every {training.eval_steps},"
        f" saved every {training.save_steps}",
    )
    estimate = plan.estimate
    _line(
        "takes", f"{clock(estimate.seconds_low)} to {clock(estimate.seconds_high)} of running time"
    )
    _line("costs", f"{money(estimate.cost_low)} to {money(estimate.cost_high)}")
    _line("basis", estimate.basis)
    _line("goes to", plan.destination)
    for text in plan.not_done:
        _line("not done", text)
    for text in plan.warnings:
        console.print(f"  [yellow]{'warning':9}[/] ", end="")
        console.print(text, markup=False)
    print_table(
        ("  TIER", "PRICE PER GPU HOUR", "FREE NOW"),
        [
            (f"  {offer.tier}", money(offer.price_per_gpu_hour), offer.free_count)
            for offer in plan.tiers
        ],
    )


def _line(name: str, text: str) -> None:
    if text:
        console.print(f"  [bold]{name:9}[/] ", end="")
        console.print(text, markup=False)


def _adapter(adapter: job_pb2.AdapterSpec) -> str:
    title = ADAPTERS[adapter.type].title if adapter.type in ADAPTERS else adapter.type
    sizes = [f"r {adapter.r}"] if adapter.r else []
    sizes += [f"alpha {adapter.lora_alpha}"] if adapter.lora_alpha else []
    return ", ".join([f"{adapter.type} ({title.lower()})", *sizes])
