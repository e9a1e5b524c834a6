"""Job: what billing knows of one beside its holds and leases."""

from dataclasses import dataclass, replace
from typing import Self

from services.billing.domain.holds import Rest


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job's money at one version."""

    tenant: str
    job_id: str
    project: str
    version: int
    """Sequence of the newest event about its money."""
    open_ordinal: int | None
    """Hold whose money is set aside; None when nothing is: before the first, and once settled."""
    opening_count: int
    """How often money was set aside."""
    held_micros: int
    """Set aside and not charged."""
    rest: Rest

    def opened(self, ordinal: int, micros: int) -> Self:
        """Return the job with money set aside under a hold; nothing was before."""
        if self.open_ordinal is not None:
            raise ValueError(f"job {self.job_id} has hold {self.open_ordinal}")
        opening_count = self.opening_count + 1
        return replace(self, open_ordinal=ordinal, opening_count=opening_count, held_micros=micros)

    def charged(self, micros: int) -> Self:
        """Return the job after a charge, or after a refund where it is below zero."""
        if self.open_ordinal is None:
            return self
        return replace(self, held_micros=self.held_micros - micros)

    def released(self) -> Self:
        """Return the job with nothing set aside."""
        return replace(self, open_ordinal=None, held_micros=0)
