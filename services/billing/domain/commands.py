"""What billing is asked to do."""

from collections.abc import Mapping
from dataclasses import dataclass

from services.billing.domain.holds import Terms


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceHold:
    """Lock prices and set money aside."""

    tenant: str
    project: str
    job_id: str
    ordinal: int
    terms: Terms


@dataclass(frozen=True, slots=True, kw_only=True)
class TopUp:
    """Book money paid in."""

    tenant: str
    micros: int
    request_id: str
    principal: str
    """Who says that it was paid."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishRates:
    """Change prices for what is launched from now on."""

    prices: Mapping[str, int]
    """Micros of one GPU for one hour, by tier; other tiers keep theirs."""
    principal: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """The event that something was heard by, for the inbox."""

    consumer: str
    event_id: str
