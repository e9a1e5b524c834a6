"""What a person may set for the catalog; environment prefix ``CATALOG_``."""

import os
from datetime import timedelta
from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import AfterValidator, Field, SecretStr
from pydantic_settings import SettingsConfigDict

from lehr.egress import Guard
from lehr.settings import ServiceSettings
from services.catalog.domain.parts import PART_BYTES
from services.catalog.vault import Vault


def _hosts(value: str) -> str:
    Guard.parse(value)
    return value


def _key(value: SecretStr | None) -> SecretStr | None:
    if value is not None:
        try:
            Vault(value.get_secret_value())
        except ValueError:
            raise ValueError("must be 64 hex digits, such as openssl rand -hex 32 makes") from None
    return value


class Settings(ServiceSettings):
    """Settings of the catalog."""

    model_config = SettingsConfigDict(env_prefix="CATALOG_", frozen=True, hide_input_in_errors=True)

    needs_objects: ClassVar[bool] = True

    cache_dir: Path | None = None
    """Folder for copies of tokenizers and datasets; None makes one that ends with the process."""

    cache_bytes: int = Field(default=20 * 2**30, ge=2**20)
    """Bytes of copies kept; the longest unused go first."""

    scratch_dir: Path | None = None
    """Folder for what is worked on, with room for the largest datasets; None takes the system's."""

    link_lifetime: timedelta = timedelta(hours=1)
    """How long a signed address works."""

    upload_lifetime: timedelta = timedelta(hours=24)
    """How long an upload may take before what came of it is removed."""

    refused_lifetime: timedelta = timedelta(days=1)
    """How long what was refused keeps its report."""

    part_bytes: int = Field(default=PART_BYTES, ge=2**16, le=2**30)
    """Bytes of one part of an upload."""

    entries_at_once: int = Field(default=2, ge=1, le=16)
    """Datasets and models that are imported or validated at the same time."""

    processes: int = Field(default_factory=lambda: min(8, os.cpu_count() or 1), ge=1, le=64)
    """Processes that look at the rows of one dataset."""

    claim_lifetime: timedelta = timedelta(seconds=30)
    """How long an entry waits after its worker died."""

    hub_endpoint: str = Field(default="https://huggingface.co", pattern=r"^https?://[^\s/@]+/?$")
    """Hub that models and datasets are imported from."""

    egress_allow: Annotated[str, AfterValidator(_hosts)] = ""
    """Hosts that imports may connect to although they are not public: ``host:port, ...``."""

    secret_key: Annotated[SecretStr | None, AfterValidator(_key)] = None
    """32 random bytes as hex digits, which stored credentials are encrypted with; None stores
    none. Credentials that were stored with another key must be stored again."""

    allow_pickle: str = Field(
        default="", pattern=r"^(\s*[\w.-]+(/[\w.-]+)?@[0-9a-f]{40}\s*(,|$))*$"
    )
    """Models whose weights may be pickles: ``owner/name@commit, ...``. They are read as plain
    weights and kept as safetensors; nothing in them is run."""

    import_bytes_max: int = Field(default=2**40, ge=1)
    """Largest sum of the files of one import."""

    import_lifetime: timedelta = timedelta(hours=6)
    """How long one import may take."""

    import_wait: timedelta = timedelta(seconds=5)
    """Before a source that is away is asked again; each further wait is four times as long, but
    at most ten minutes, and after six tries in vain the import is refused."""
