"""What to do when a run ends badly."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How often and how soon a job is tried again after a fault of the platform."""

    faults_max: int = 5
    """Faults after which the job is tried again; one more and it has failed."""
    backoff: timedelta = timedelta(seconds=5)
    """Wait after the first fault; each further one doubles it."""
    backoff_max: timedelta = timedelta(seconds=300)

    def attempts_left(self, fault_count: int) -> int:
        """Return how many more faults may be followed by another run."""
        return max(0, self.faults_max - fault_count)

    def wait_after(self, fault_count: int) -> timedelta:
        """Return how long to wait after the ``fault_count``-th fault, from 1."""
        # Bounded first: a large exponent would overflow the duration.
        doublings = min(max(0, fault_count - 1), 20)
        return min(self.backoff * float(2**doublings), self.backoff_max)
