"""Train one run: from a frozen plan to reports."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from transformers import set_seed

from lehr.errors import FieldViolation, InvalidArgument
from lehr.samples.files import TokenizerFiles
from lehr.samples.prepare import PreparedData, describe, prepare
from lehr.training.ends import RunEnd
from lehr.training.methods import METHODS
from lehr.training.packable import check_packing
from lehr.training.plan import TrainingPlan
from lehr.training.progress import ProgressClock
from lehr.training.reports import LogReport
from lehr.training.steps import Steps, count_steps
from services.trainer_runner.cadence import Cadence
from services.trainer_runner.course import Course, Ending
from services.trainer_runner.ended import repeat_end
from services.trainer_runner.folders import Resumed, read_folder
from services.trainer_runner.pipes import Reporter, StopFlag
from services.trainer_runner.trainer.adapters import adapter_of
from services.trainer_runner.trainer.adapters.base import Making, is_out_of_memory, load_model
from services.trainer_runner.trainer.callbacks.course import (
    CourseCallback,
    RunEnded,
    TorchBackend,
)
from services.trainer_runner.trainer.data.tables import open_tables
from services.trainer_runner.trainer.environment import Environment, differences, fix_environment
from services.trainer_runner.trainer.loop import Setting, run_loop
from services.trainer_runner.trainer.methods import trainer_of
from services.trainer_runner.trainer.online.rows import Items, look_at_rows


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """What is known before the model is loaded."""

    plan: TrainingPlan
    data: PreparedData
    items: Items
    row_count: int
    steps: Steps
    resumed: Resumed | None
    environment: Environment
    render_time: datetime


def train(plan: TrainingPlan, report: Reporter, stop: StopFlag, *, threads: int) -> RunEnd:
    """Train as ``plan`` says, tell ``report`` everything, and return how the run ended.

    ``threads`` is how many the CPU's operations use, unless a resumed checkpoint says otherwise.

    Raises:
        InvalidArgument: the plan cannot be carried out; nothing was computed.
    """
    resumed = read_folder(plan, plan.resume_dir) if plan.resume_dir is not None else None
    if resumed is not None and resumed.end is not None:
        return repeat_end(plan, resumed, resumed.end, report)
    _refuse_what_is_not_done(plan)
    environment = fix_environment(threads, before=resumed.environment if resumed else None)
    render_time = _render_time(resumed)
    with ProgressClock(plan.progress_file) as clock:
        data = _data(plan, report, render_time)
        if resumed is not None:
            _tell_resume(resumed, environment, report)
        items = look_at_rows(plan, data, context=TokenizerFiles.read(plan.model_dir).context)
        row_count = _row_count(plan, data, report)
        steps = count_steps(row_count, plan.spec.training)
        course = Course(
            plan,
            cadence=_cadence(plan, steps, data),
            report=report,
            stop=stop,
            clock=clock,
            resumed=resumed,
        )
        run = _Run(
            plan=plan,
            data=data,
            items=items,
            row_count=row_count,
            steps=steps,
            resumed=resumed,
            environment=environment,
            render_time=render_time,
        )
        return course.finish(_ending(run, course))


def _refuse_what_is_not_done(plan: TrainingPlan) -> None:
    if plan.spec.gpus > 1:
        what = "this trainer computes on one GPU; set gpus to 1"
        raise InvalidArgument(
            what, reason="ONE_GPU_ONLY", fields=[FieldViolation(field="gpus", description=what)]
        )


def _render_time(resumed: Resumed | None) -> datetime:
    """Return the date that chat templates print, the same before and after a resume."""
    if resumed is None:
        return datetime.now(UTC)
    return datetime.fromisoformat(resumed.trainer["render_time"])


def _data(plan: TrainingPlan, report: Reporter, render_time: datetime) -> PreparedData:
    table, validation_table, context = open_tables(plan, render_time)
    data = prepare(table, data=plan.spec.data, context=context, validation_table=validation_table)
    for line in describe(data.facts):
        report(LogReport(text=line))
    if not data.validation and plan.spec.early_stopping.patience is not None:
        report(LogReport(text="early stopping is off: no rows are held out for validation"))
    return data


def _row_count(plan: TrainingPlan, data: PreparedData, report: Reporter) -> int:
    """Return the rows of batches of one pass over the training samples."""
    kind = data.train.table.kind
    own = plan.spec.hyperparameters
    each = METHODS[plan.spec.method].batch_rows(kind, own)
    count = data.row_count * each
    if own is not None:
        count = own.rows_per_epoch(count, rows_per_step=plan.spec.training.rows_per_step)
    if each > 1:
        report(LogReport(text=f"training: the answers of {kind} rows are {count} rows of batches"))
    return count


def _tell_resume(resumed: Resumed, environment: Environment, report: Reporter) -> None:
    report(LogReport(text=f"continuing from the checkpoint of step {resumed.step}"))
    changed = differences(environment.told(), resumed.environment)
    if changed:
        text = f"losses may differ in their last digits: {'; '.join(changed)}"
        report(LogReport(level="warning", text=text))


def _cadence(plan: TrainingPlan, steps: Steps, data: PreparedData) -> Cadence:
    return Cadence(
        total_steps=steps.total,
        eval_steps=plan.spec.training.eval_steps,
        save_steps=plan.spec.training.save_steps,
        patience=plan.spec.early_stopping.patience,
        evaluates=bool(data.validation),
    )


def _ending(run: _Run, course: Course) -> Ending:
    """Run to the end, which may be for want of memory."""
    stopped = course.stopped_before_begin()
    if stopped is not None:
        return stopped
    try:
        _train_to_end(run, course)
    except RunEnded as ended:
        return ended.ending
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        return _out_of_memory(course, error)
    raise AssertionError("the training loop ended before the run did")


def _train_to_end(run: _Run, course: Course) -> None:
    plan, adapter = run.plan, adapter_of(run.plan)
    making = Making(
        plan=plan, data=run.data, total_steps=run.steps.total, resume_dir=plan.resume_dir
    )
    # Adapters begin with random weights.
    set_seed(plan.spec.training.seed)
    model = adapter.build(making)
    _refuse_unknown_tokens(model, run.data)
    if run.data.packs:
        config = model.config.get_text_config()
        check_packing(config.model_type, config._attn_implementation)
    trainer = trainer_of(
        Setting(
            plan=plan,
            model=model,
            data=run.data,
            row_count=run.row_count,
            total_steps=run.steps.total,
            use_cpu=run.environment.device == "cpu",
            pad_id=_pad_id(model),
            reference=lambda: load_model(plan.model_dir, dtype=model.dtype),
            items=run.items,
            log=course.log,
        )
    )
    adapter.join(trainer, making)
    backend = TorchBackend(
        plan,
        trainer,
        adapter,
        environment=run.environment,
        facts={"render_time": run.render_time.isoformat()},
    )
    callback = CourseCallback(
        course,
        backend,
        trainer,
        rows=(len(run.data.train), len(run.data.validation)),
        steps_per_epoch=run.steps.per_epoch,
        resumed=run.resumed,
    )
    run_loop(trainer, callback, plan.resume_dir)


def _refuse_unknown_tokens(model: Any, data: PreparedData) -> None:
    """Look before the model does: a GPU's answer to an unknown token is a crash without a name."""
    # By its weight: an adapter's layer in its place has no other trait of an embedding.
    known = model.get_input_embeddings().weight.shape[0]
    highest = max(data.train.highest_token(), data.validation.highest_token())
    if highest >= known:
        raise InvalidArgument(
            f"the tokenizer gives token {highest}, and the model knows {known} tokens only; "
            "use the tokenizer that belongs to the model",
            reason="TOKENIZER_DOES_NOT_FIT",
        )


def _pad_id(model: Any) -> int:
    """Return any id that is in the vocabulary; padding is neither read nor trained."""
    pad = model.config.get_text_config().pad_token_id
    return pad if isinstance(pad, int) and pad >= 0 else 0


def _out_of_memory(course: Course, error: BaseException) -> Ending:
    said = str(error).strip().partition("\n")[0]
    message = (
        f"Out of memory after step {course.step}: {said} Use a smaller "
        "per_device_train_batch_size with more gradient_accumulation_steps, a smaller max_length, "
        "gradient_checkpointing, or a larger tier."
    )
    course.log(message, "error")
    return Ending(end=RunEnd.OUT_OF_MEMORY, message=message)
