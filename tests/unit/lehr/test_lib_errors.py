"""Errors carry a message for people and facts for programs."""

from datetime import timedelta

from lehr.errors import (
    Aborted,
    FailedPrecondition,
    FieldViolation,
    InvalidArgument,
    PlatformError,
    Stale,
    Unavailable,
)


class BudgetExceeded(FailedPrecondition):
    """A subclass as services write them."""

    reason = "BUDGET_EXCEEDED"

    def __init__(self, job_id: str, *, micros: int) -> None:
        super().__init__(f"{job_id} would cost {micros}", job_id=job_id, micros=micros)


def test_an_error_keeps_its_message_and_its_facts_as_text() -> None:
    error = BudgetExceeded("job_1", micros=7)

    assert str(error) == error.message == "job_1 would cost 7"
    assert error.facts == {"job_id": "job_1", "micros": "7"}


def test_a_subclass_has_its_own_reason_and_the_patience_of_its_kind() -> None:
    assert (BudgetExceeded.reason, BudgetExceeded.retryable) == ("BUDGET_EXCEEDED", False)
    assert Unavailable.retryable
    assert Aborted.retryable
    assert Stale("job_1 has changed").retryable


def test_one_error_may_have_another_reason_without_changing_its_class() -> None:
    error = PlatformError("no deadline", reason="DEADLINE_REQUIRED")

    assert (error.reason, PlatformError.reason) == ("DEADLINE_REQUIRED", "INTERNAL")


def test_a_wait_is_no_fact() -> None:
    error = Unavailable("later", retry_in=timedelta(seconds=3), part="nats")

    assert (error.retry_in, error.facts) == (timedelta(seconds=3), {"part": "nats"})
    assert Unavailable("later").retry_in is None


def test_a_wrong_input_names_every_wrong_field() -> None:
    violations = [
        FieldViolation(field="training.learning_rate", description="must be above 0"),
        FieldViolation(field="method", description="must be one of sft, dpo"),
    ]

    error = InvalidArgument("2 fields are wrong", fields=violations, file="job.yaml")

    assert error.fields == violations
    assert error.facts == {"file": "job.yaml"}
