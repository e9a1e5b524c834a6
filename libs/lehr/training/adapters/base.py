"""What an adapter is, as far as everything but the trainer is concerned. No torch here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import AfterValidator, Field

from lehr.training.section import Section

TARGET_MODULES_MAX = 64

Rank = Annotated[int, Field(ge=1, le=4096)]
"""Width of the small matrices that stand for an update."""


class AdapterSpec(Section):
    """How many of the model's parameters are trained, and through what.

    Subclasses fix ``type`` to their adapter; their fields keep the names of peft.
    """

    type: str


def _few_printable_names(value: str | tuple[str, ...]) -> str | tuple[str, ...]:
    names = (value,) if isinstance(value, str) else value
    if len(names) > TARGET_MODULES_MAX:
        raise ValueError(f"names {len(names)} layers; name at most {TARGET_MODULES_MAX}")
    if not all(0 < len(name) <= 200 and name.isprintable() for name in names):
        raise ValueError("holds a name that is empty, not printable or has over 200 characters")
    return value


Modules = Annotated[tuple[str, ...], AfterValidator(_few_printable_names)]
"""Names of parts of a model, or the ends of such names."""

Targets = Annotated[str | tuple[str, ...], AfterValidator(_few_printable_names)]
"""Names of layers, ``all-linear``, or a pattern of names."""


class TargetedSpec(AdapterSpec):
    """An adapter that is put on some of the model's layers."""

    target_modules: Targets = "all-linear"
    """Names of the layers that get an update, or ``all-linear``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapter:
    """What is trained of the base model."""

    adapter_id: str
    title: str
    source: str
    spec: type[AdapterSpec] = AdapterSpec
    trains_base_weights: bool = False
    """Whether it changes weights of the base model, so that a whole model comes out."""
    mergeable: bool = True
    """Whether what was learnt can be added to the base model's weights without loss."""
    learns_prompt: bool = False
    """Whether it learns what stands before each row, in place of changing layers."""
    trains_head: bool = True
    """Whether a head that the base model does not have can be trained and saved with it."""
