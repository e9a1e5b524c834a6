"""What a person may set for the catalog; environment prefix ``CATALOG_``."""

from datetime import timedelta
from pathlib import Path
from typing import ClassVar

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from lehr.settings import ServiceSettings


class Settings(ServiceSettings):
    """Settings of the catalog."""

    model_config = SettingsConfigDict(env_prefix="CATALOG_", frozen=True, hide_input_in_errors=True)

    needs_objects: ClassVar[bool] = True

    cache_dir: Path | None = None
    """Folder for copies of tokenizers and datasets; None makes one that ends with the process."""

    cache_bytes: int = Field(default=20 * 2**30, ge=2**20)
    """Bytes of copies kept; the longest unused go first."""

    link_lifetime: timedelta = timedelta(hours=1)
    """How long a signed address works."""

    upload_lifetime: timedelta = timedelta(hours=24)
    """How long an upload may take before what came of it is removed."""
