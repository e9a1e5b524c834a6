"""What a person may set about the scheduler; environment prefix ``SCHEDULER_``."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from lehr.settings import ServiceSettings

Seconds = Annotated[float, Field(gt=0)]


class Settings(ServiceSettings):
    """Settings of the scheduler."""

    model_config = SettingsConfigDict(
        env_prefix="SCHEDULER_", frozen=True, hide_input_in_errors=True
    )

    cycle_seconds: Seconds = Field(default=1.0, le=60)
    """Longest time between two looks at the queue; changes are looked at once."""

    sweep_seconds: Seconds = Field(default=60.0, le=3600)
    """Time between two comparisons with the allocator."""

    plan_kept_hours: Seconds = Field(default=168.0, le=8760)
    """How long a plan can be launched after it was made."""

    faults_max: int = Field(default=5, ge=0, le=100)
    """Faults of the platform after which a job is tried again."""

    backoff_seconds: Seconds = Field(default=5.0, le=300)
    """Wait after the first fault; each further one doubles it, up to ``backoff_max_seconds``."""

    backoff_max_seconds: Seconds = Field(default=300.0, le=3600)
    """Longest wait after a fault."""

    @property
    def cycle(self) -> timedelta:
        """Longest time between two looks at the queue."""
        return timedelta(seconds=self.cycle_seconds)

    @property
    def sweep(self) -> timedelta:
        """Time between two comparisons with the allocator."""
        return timedelta(seconds=self.sweep_seconds)
