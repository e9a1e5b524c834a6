"""Published price lists."""

from collections.abc import Mapping
from dataclasses import dataclass

from lehr.postgres import Connection
from services.billing.storage.sql import SQL


@dataclass(frozen=True, slots=True, kw_only=True)
class RateCard:
    """A published price list; never changed."""

    rate_version: int
    currency: str
    prices: Mapping[str, int]
    """Micros of one GPU for one hour, by tier."""


async def lock(conn: Connection) -> None:
    """Let nobody else publish until the end of the transaction."""
    await conn.execute(SQL["lock_rates"])


async def share(conn: Connection) -> None:
    """Let nobody publish between reading the prices and locking them."""
    await conn.execute(SQL["share_rates"])


async def in_force(conn: Connection) -> RateCard | None:
    """Return the newest list; None before the first."""
    rows = await conn.fetch(SQL["rates_in_force"])
    if not rows:
        return None
    return RateCard(
        rate_version=rows[0]["rate_version"],
        currency=rows[0]["currency"],
        prices={row["tier"]: row["micro_per_hour"] for row in rows},
    )


async def publish(conn: Connection, card: RateCard, *, published_by: str) -> None:
    """Store a list; it is in force from the commit on."""
    await conn.execute(SQL["add_rate_version"], card.rate_version, card.currency, published_by)
    await conn.execute(
        SQL["add_rates"], card.rate_version, list(card.prices), list(card.prices.values())
    )
