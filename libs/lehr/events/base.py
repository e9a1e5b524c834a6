"""The base of every event model: frozen, strict when written, lenient when read."""

import math
from abc import abstractmethod
from typing import Annotated, Any, ClassVar, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    ValidationInfo,
    model_validator,
)

NON_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}

#: Validation context that says "this was written by somebody else, perhaps by newer code".
READING = {"reading": True}


def number_to_json(value: float) -> float | str:
    """Spell a non-finite number as strict JSON can carry it: "NaN", "Infinity" or "-Infinity"."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return value


def number_from_json(value: Any) -> Any:
    """Read what :func:`number_to_json` wrote; any other string is left for pydantic to refuse."""
    if isinstance(value, str):
        return NON_FINITE.get(value, value)
    return value


Number = Annotated[
    float,
    Field(strict=True, allow_inf_nan=True),
    BeforeValidator(number_from_json),
    PlainSerializer(number_to_json, return_type=float | str, when_used="json"),
]
"""A float that may be NaN or infinite, such as a loss; a plain float in a fact may not."""


class Fact(BaseModel):
    """A frozen value inside an event.

    Unknown fields are ignored when an event is read, because an older consumer must survive a newer
    producer; they are refused when one is written, because there they are a spelling mistake.
    """

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _refuse_unknown_fields_when_written(cls, values: Any, info: ValidationInfo) -> Any:
        if isinstance(values, dict) and not (info.context or {}).get("reading"):
            names = set(cls.model_fields)
            names |= {field.alias for field in cls.model_fields.values() if field.alias}
            if unknown := sorted(set(values) - names):
                raise ValueError(f"{cls.__name__} has no field {', '.join(unknown)}")
        return values


class Event(Fact):
    """Something that happened, in the words of the service that did it.

    A subclass sets NOUN, PAST and, from the second version on, VERSION, and says which aggregate it
    is about. The type of the event is ``lehr.<NOUN>.<PAST>.v<VERSION>``.
    """

    NOUN: ClassVar[str]
    PAST: ClassVar[str]
    VERSION: ClassVar[int] = 1

    tenant: str
    """The tenant whose fact this is; "" for a fact about the platform itself, such as a node."""

    @property
    @abstractmethod
    def subject_id(self) -> str:
        """Id of the aggregate; facts about one aggregate are published in order."""

    @classmethod
    def type_name(cls) -> str:
        """Return the CloudEvents type, for example ``lehr.job.queued.v1``."""
        return f"lehr.{cls.NOUN}.{cls.PAST}.v{cls.VERSION}"

    @classmethod
    def read(cls, value: Any) -> Self:
        """Validate data that somebody else wrote: unknown fields are ignored.

        Raises:
            pydantic.ValidationError: the data does not fit.
        """
        return cls.model_validate(value, context=READING)
