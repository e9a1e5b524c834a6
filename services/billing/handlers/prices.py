"""Publish prices, and say which are in force."""

from collections.abc import Mapping, Sequence

from lehr.logs import get_logger
from lehr.postgres import Connection, Database
from services.billing.domain.commands import PublishRates
from services.billing.domain.errors import RatesRefused, TierUnpriced
from services.billing.storage import rates
from services.billing.storage.rates import RateCard


async def publish_first(prices: Mapping[str, int], *, currency: str, db: Database) -> RateCard:
    """Publish the prices of the installation's file if none were ever published.

    Raises:
        RatesRefused: what is in force has another currency.
    """
    async with db.transaction() as conn:
        await rates.lock(conn)
        card = await rates.in_force(conn)
        if card is None:
            card = RateCard(rate_version=1, currency=currency, prices=prices)
            await rates.publish(conn, card, published_by="the file of rates")
            get_logger().info("rates_published", rate_version=card.rate_version)
    if card.currency != currency:
        raise RatesRefused(
            f"prices are published in {card.currency} and BILLING_CURRENCY is {currency}; "
            "an installation keeps its first currency",
            published=card.currency,
            wanted=currency,
        )
    return card


async def publish(cmd: PublishRates, *, db: Database) -> RateCard:
    """Change prices for what is launched from now on; the same prices again change nothing."""
    async with db.transaction() as conn:
        await rates.lock(conn)
        before = await in_force(conn)
        prices = {**before.prices, **cmd.prices}
        if prices == before.prices:
            return before
        after = RateCard(
            rate_version=before.rate_version + 1, currency=before.currency, prices=prices
        )
        await rates.publish(conn, after, published_by=cmd.principal)
    get_logger().info("rates_published", rate_version=after.rate_version)
    return after


async def quote(tiers: Sequence[str], *, db: Database) -> RateCard:
    """Return the prices in force of these tiers, or of all; a tier without a price is left out."""
    async with db.connection() as conn:
        card = await in_force(conn)
    wanted = set(tiers) or set(card.prices)
    prices = {tier: price for tier, price in card.prices.items() if tier in wanted}
    return RateCard(rate_version=card.rate_version, currency=card.currency, prices=prices)


async def in_force(conn: Connection) -> RateCard:
    """Return the newest list; there is one from the first start on."""
    card = await rates.in_force(conn)
    if card is None:
        raise RatesRefused("no prices are published")
    return card


def check_priced(tiers: Sequence[str], card: RateCard) -> None:
    """Refuse tiers without a price.

    Raises:
        TierUnpriced: with all of them.
    """
    if unpriced := [tier for tier in tiers if tier not in card.prices]:
        raise TierUnpriced(unpriced, list(card.prices))
