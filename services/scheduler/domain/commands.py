"""What the scheduler can be asked to do."""

from __future__ import annotations

from dataclasses import dataclass

from lehr.training.canonical import canonical_json, digest_of, spec_json
from lehr.training.spec import JobSpec
from services.scheduler.domain.job import Authorization


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """On whose behalf something is asked."""

    tenant: str
    project: str
    principal: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateJob:
    """Launch a plan, or plan and launch a spec."""

    owner: Owner
    plan_digest: str = ""
    spec: JobSpec | None = None
    """Given where there is no plan_digest."""
    authorization: Authorization
    request_id: str
    dry_run: bool = False

    @property
    def fingerprint(self) -> str:
        """SHA-256 of everything that makes this request what it is, but for its key."""
        content = {
            "project": self.owner.project,
            "plan": self.plan_digest,
            "spec": spec_json(self.spec) if self.spec else "",
            "authorization": _canonical(self.authorization),
        }
        return digest_of(canonical_json(content))


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeJob:
    """Take a job back to the queue."""

    owner: Owner
    job_id: str
    request_id: str
    authorization: Authorization | None
    """None keeps the old one."""

    @property
    def fingerprint(self) -> str:
        """SHA-256 of everything that makes this request what it is, but for its key."""
        given = _canonical(self.authorization) if self.authorization else None
        return digest_of(canonical_json({"job": self.job_id, "authorization": given}))


@dataclass(frozen=True, slots=True, kw_only=True)
class StopJob:
    """End a job's run, saved; or its waiting."""

    owner: Owner
    job_id: str


def _canonical(authorization: Authorization) -> list[object]:
    cost = authorization.max_cost
    return [cost.currency, cost.micros, authorization.max_duration.total_seconds()]
