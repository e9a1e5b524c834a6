"""Reads the file of tiers: which kinds of GPU an installation knows."""

from pathlib import Path
from typing import Annotated

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from lehr.errors import FailedPrecondition
from services.gpu_allocator.domain.tier import Tier

#: An installed package carries the file beside this module, a checkout in deploy/.
PLACES = (
    Path(__file__).with_name("tiers.yaml"),
    Path(__file__).parents[2] / "deploy" / "tiers.yaml",
)

TierName = Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")]


class TiersRefused(FailedPrecondition):
    """The file of tiers cannot be used."""

    reason = "TIERS_REFUSED"


class _Described(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    title: str = Field(min_length=1)
    memory_bytes: int = Field(ge=0)
    bf16_tflops: float | None = Field(default=None, gt=0)
    source: str = Field(min_length=1)


class _File(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    tiers: dict[TierName, _Described] = Field(min_length=1)


def default_file() -> Path:
    """Return the file that came with this installation."""
    return next((place for place in PLACES if place.is_file()), PLACES[-1])


def read(file: Path) -> list[Tier]:
    """Return the tiers in the order of the file.

    Raises:
        TiersRefused: no such file, not YAML, or with a field that is wrong.
    """
    try:
        described = _File.model_validate(yaml.safe_load(file.read_text(encoding="utf-8")))
    except (OSError, yaml.YAMLError, ValidationError) as problem:
        raise TiersRefused(f"the tiers in {file} cannot be used: {problem}", file=file) from None
    return [
        Tier(tier=name, title=one.title, memory_bytes=one.memory_bytes)
        for name, one in described.tiers.items()
    ]
