"""On whose behalf something is read."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """Everything of anybody else answers as if it did not exist."""

    tenant: str
    project: str
