"""What a person may set about the allocator."""

from datetime import timedelta
from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator, Field
from pydantic_settings import SettingsConfigDict

from lehr.settings import ServiceSettings


def _from_text(value: object) -> object:
    """Take a bare number as seconds."""
    if isinstance(value, str):
        try:
            return timedelta(seconds=float(value))
        except ValueError:
            return value
    return value


Seconds = Annotated[timedelta, BeforeValidator(_from_text)]


class Settings(ServiceSettings):
    """Environment prefix ``GPU_ALLOCATOR_``; durations are numbers of seconds."""

    model_config = SettingsConfigDict(env_prefix="GPU_ALLOCATOR_")

    tiers_file: Path | None = None
    """Kinds of GPU; None is the file that came with the installation."""

    sync_interval: Seconds = Field(
        default=timedelta(seconds=2), ge=timedelta(milliseconds=100), le=timedelta(seconds=10)
    )
    """How often a node is asked to sync."""

    lease_ttl: Seconds = Field(
        default=timedelta(seconds=30), ge=timedelta(seconds=1), le=timedelta(hours=1)
    )
    """Silence of a node after which its leases are lost."""

    node_fresh: Seconds = Field(
        default=timedelta(seconds=10), ge=timedelta(milliseconds=500), le=timedelta(hours=1)
    )
    """Silence of a node after which it is given nothing new."""

    unseen_limit: Seconds = Field(
        default=timedelta(seconds=60), ge=timedelta(seconds=1), le=timedelta(hours=1)
    )
    """How long a granted lease may go unmentioned by its node."""

    starting_limit: Seconds = Field(
        default=timedelta(minutes=30), ge=timedelta(seconds=10), le=timedelta(days=1)
    )
    """From the grant until the run must compute."""

    lost_limit: Seconds = Field(
        default=timedelta(minutes=20), ge=timedelta(seconds=1), le=timedelta(days=1)
    )
    """From a lost node's last word until its leases are closed; its GPUs still wait for proof."""
