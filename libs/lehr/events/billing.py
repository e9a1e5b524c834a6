"""Facts about money, said by billing."""

from __future__ import annotations

from typing import ClassVar

from lehr.events.base import Event


class HoldPlaced(Event):
    """Money is held for a job."""

    NOUN: ClassVar[str] = "hold"
    PAST: ClassVar[str] = "placed"

    job_id: str
    currency_code: str
    held_micros: int

    @property
    def subject_id(self) -> str:
        """The job."""
        return self.job_id


class ChargeEvent(Event):
    """What every fact about a charge carries."""

    NOUN: ClassVar[str] = "charge"

    job_id: str
    currency_code: str
    total_micros: int
    """Charged for the job so far."""
    billed_seconds: int

    @property
    def subject_id(self) -> str:
        """The job."""
        return self.job_id


class ChargePosted(ChargeEvent):
    """The job's cost grew and is in the ledger."""

    PAST: ClassVar[str] = "posted"


class ChargeSettled(ChargeEvent):
    """The job rests or ended, its last charge is posted and its hold is released."""

    PAST: ClassVar[str] = "settled"
