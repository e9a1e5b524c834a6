"""Values of the domain as gRPC carries them."""

from __future__ import annotations

from datetime import datetime

from google.protobuf.timestamp_pb2 import Timestamp

from lehr.api.common.v1 import common_pb2
from lehr.api.scheduler.v1 import job_pb2, scheduler_pb2
from lehr.money import Money
from lehr.training.canonical import spec_digest, spec_json
from lehr.training.proto import spec_to_proto
from services.scheduler.domain.job import Authorization, JobState
from services.scheduler.domain.plan import Plan
from services.scheduler.domain.progress import Progress
from services.scheduler.domain.run import Run
from services.scheduler.handlers.runs import RunPlan
from services.scheduler.handlers.views import JobView
from services.scheduler.storage.jobs import Change


def job_to_proto(view: JobView) -> job_pb2.Job:
    """Write a job as it is shown."""
    job = view.job
    return job_pb2.Job(
        job_id=job.job_id,
        spec=spec_to_proto(job.spec),
        state=state_to_proto(job.state),
        end_reason=job.end_reason or "",
        state_message=view.message,
        version=job.version,
        plan_digest=job.plan_digest,
        model_revision=job.inputs.model_revision,
        dataset_revision=job.inputs.dataset_revision,
        authorization=_authorization(job.authorization),
        progress=_progress(view.progress, total_steps=job.total_steps),
        runs=[_run(run) for run in view.runs],
        create_time=timestamp(job.create_time),
        update_time=timestamp(job.update_time),
        start_time=timestamp(job.start_time),
        finish_time=timestamp(job.finish_time),
        stop_time=timestamp(job.stop_time),
        project=job.project,
        queue_position=view.queue_position,
    )


def plan_to_proto(plan: Plan) -> job_pb2.Plan:
    """Write a plan."""
    data, found = plan.data, plan.estimate
    return job_pb2.Plan(
        plan_digest=plan.plan_digest,
        spec=spec_to_proto(plan.spec),
        model_revision=plan.inputs.model_revision,
        dataset_revision=plan.inputs.dataset_revision,
        validation_revision=plan.inputs.validation_revision,
        data=job_pb2.DataFacts(
            row_count=data.row_count,
            train_count=data.train_count,
            validation_count=data.validation_count,
            longest_tokens=data.longest_tokens,
            max_length=data.max_length,
            truncated_count=data.truncated_count,
            dropped_count=data.dropped_count,
            untrainable_count=data.untrainable_count,
            token_count=data.token_count,
            trained_token_count=data.trained_token_count,
            packed_row_count=data.packed_row_count,
        ),
        total_steps=plan.total_steps,
        tiers=[
            job_pb2.TierOffer(
                tier=one.tier,
                price_per_gpu_hour=money_to_proto(one.price),
                memory_bytes=one.memory_bytes,
                free_count=one.free_count,
            )
            for one in plan.offers
        ],
        estimate=job_pb2.Estimate(
            seconds_low=found.seconds_low,
            seconds_high=found.seconds_high,
            cost_low=money_to_proto(found.cost_low),
            cost_high=money_to_proto(found.cost_high),
            basis=found.basis,
        ),
        destination=plan.destination,
        not_done=plan.not_done,
        warnings=plan.warnings,
        create_time=timestamp(plan.create_time),
        expire_time=timestamp(plan.expire_time),
    )


def run_plan_to_proto(plan: RunPlan) -> scheduler_pb2.GetRunPlanResponse:
    """Write what a trainer needs."""
    job, inputs = plan.job, plan.job.inputs
    return scheduler_pb2.GetRunPlanResponse(
        job_id=job.job_id,
        run_id=plan.run.run_id,
        tenant=job.tenant,
        project=job.project,
        spec_json=spec_json(job.spec),
        spec_digest=spec_digest(job.spec),
        model_id=inputs.model_id,
        model_name=inputs.model_name,
        model_revision=inputs.model_revision,
        dataset_id=inputs.dataset_id,
        dataset_revision=inputs.dataset_revision,
        validation_dataset_id=inputs.validation_dataset_id,
        validation_revision=inputs.validation_revision,
    )


def change_to_proto(change: Change) -> scheduler_pb2.JobChange:
    """Write the last change of a job."""
    return scheduler_pb2.JobChange(
        job_id=change.job_id,
        tenant=change.tenant,
        state=state_to_proto(change.state),
        end_reason=change.end_reason,
        version=change.version,
        update_time=timestamp(change.update_time),
    )


def state_to_proto(state: JobState) -> job_pb2.JobState.ValueType:
    """Write a state."""
    return job_pb2.JobState.Value(f"JOB_STATE_{state.value}")


def state_from_proto(value: job_pb2.JobState.ValueType) -> JobState:
    """Read a state; raise ValueError for one that is none."""
    return JobState(job_pb2.JobState.Name(value).removeprefix("JOB_STATE_"))


def money_to_proto(money: Money) -> common_pb2.Money:
    """Write an amount."""
    return common_pb2.Money(currency_code=money.currency, micros=money.micros)


def timestamp(time: datetime | None) -> Timestamp | None:
    """Write an instant; None stays absent."""
    if time is None:
        return None
    message = Timestamp()
    message.FromDatetime(time)
    return message


def _authorization(given: Authorization) -> job_pb2.Authorization:
    message = job_pb2.Authorization(max_cost=money_to_proto(given.max_cost))
    message.max_duration.FromTimedelta(given.max_duration)
    return message


def _progress(known: Progress, *, total_steps: int) -> job_pb2.Progress:
    return job_pb2.Progress(
        step=known.step,
        total_steps=known.total_steps or total_steps,
        remaining_seconds=known.remaining_seconds,
        values=dict(known.values),
        best_step=known.best_step,
        best_loss=known.best_loss,
        baseline_loss=known.baseline_loss,
        eval_loss=known.eval_loss,
    )


def _run(run: Run) -> job_pb2.Run:
    return job_pb2.Run(
        run_id=run.run_id,
        ordinal=run.ordinal,
        lease_id=run.lease_id,
        epoch=run.epoch,
        tier=run.tier,
        end_reason=run.end or "",
        end_message=run.end_message,
        create_time=timestamp(run.create_time),
        finish_time=timestamp(run.finish_time),
    )
