"""What a person may set for the checkpoint store."""

from datetime import timedelta
from typing import Annotated, ClassVar

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from lehr.settings import ServiceSettings

# S3 refuses signatures that live for more than a week.
Lifetime = Annotated[timedelta, Field(ge=timedelta(seconds=1), le=timedelta(days=7))]
Interval = Annotated[timedelta, Field(ge=timedelta(milliseconds=50), le=timedelta(hours=1))]


class Settings(ServiceSettings):
    """Settings of the checkpoint store; prefix ``CHECKPOINT_STORE_``; times as ``PT15M``."""

    model_config = SettingsConfigDict(
        env_prefix="CHECKPOINT_STORE_", frozen=True, hide_input_in_errors=True
    )

    needs_objects: ClassVar[bool] = True

    upload_url_lifetime: Lifetime = timedelta(hours=1)
    """How long a signed address to write lives; Begin again gives new ones."""

    download_url_lifetime: Lifetime = timedelta(minutes=15)
    """How long a signed address to read lives; a deleted checkpoint's bytes stay as long."""

    abandon_uploads_after: Annotated[timedelta, Field(ge=timedelta(seconds=1))] = timedelta(
        hours=24
    )
    """Age at which an upload that nobody renews is given up."""

    resume_hash_bytes_max: Annotated[int, Field(ge=0, le=1 << 40)] = 256 << 20
    """Bytes hashed when a resume point is checked, smallest files first; the rest by size."""

    collect_interval: Interval = timedelta(seconds=1)
    """How often deleted checkpoints and given-up uploads are looked for."""

    sweep_interval: Interval = timedelta(seconds=60)
    """How often the scheduler is asked for finished jobs whose event was lost."""
