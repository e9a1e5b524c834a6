"""What every part of a spec is made of: frozen, and strict about its fields."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator

Fraction = Annotated[float, Field(ge=0.0, lt=1.0, allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0.0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0.0, allow_inf_nan=False)]
Reference = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,62}(@[0-9a-f]{12,64})?$")]
"""The catalog name of a model or a dataset, with ``@revision`` to pin it."""


class Section(BaseModel):
    """A part of a spec: frozen, and an unknown field is a mistake."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @field_validator("*", mode="before")
    @classmethod
    def _no_truth_for_a_number(cls, value: object, info: ValidationInfo) -> object:
        # A bare `yes` in YAML is true, which Python would take for 1.
        field = cls.model_fields[str(info.field_name)]
        if isinstance(value, bool) and not _takes_truth(field.annotation):
            raise ValueError("is not yes or no; write the value, in quotes if it is text")
        return value


def _takes_truth(annotation: object) -> bool:
    """Whether yes or no is a value of a field, alone or beside others."""
    return annotation is bool or any(one is bool or one is True for one in get_args(annotation))


def type_of(value: Any) -> str | None:
    """Return the ``type`` of a section or of its plain values: which one of several it is."""
    told = value.get("type") if isinstance(value, Mapping) else getattr(value, "type", None)
    return told if isinstance(told, str) else None
