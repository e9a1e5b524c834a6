"""What billing asks of other services."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Protocol

from services.billing.domain.holds import Rest
from services.billing.domain.lease import Lease


@dataclass(frozen=True, slots=True, kw_only=True)
class JobChange:
    """What the scheduler says of a job."""

    tenant: str
    job_id: str
    rest: Rest


class Leases(Protocol):
    """The owner of leases; each method raises Unavailable when it does not answer."""

    async def of_job(
        self, tenant: str, job_id: str, *, within_seconds: float | None = None
    ) -> list[Lease]:
        """Return all leases of a job as they are now."""
        ...

    def of_tenant(self, tenant: str) -> AsyncIterator[list[Lease]]:
        """Return all leases of a tenant as they are now, page by page."""
        ...

    def still_open(self) -> AsyncIterator[list[Lease]]:
        """Return every lease of the installation that is not closed, page by page."""
        ...

    async def changed_since(self, cursor: str) -> tuple[list[Lease], str]:
        """Return the next changes and the cursor behind them; no leases when there are no more."""
        ...


class Jobs(Protocol):
    """The owner of jobs."""

    async def changed_since(self, cursor: str) -> tuple[list[JobChange], str]:
        """Return the next changes and the cursor behind them; no changes when there are no more."""
        ...
