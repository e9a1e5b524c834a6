"""Messages of the API to values of the domain and back."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from lehr.api.billing.v1 import billing_pb2 as pb
from lehr.api.common.v1 import common_pb2
from lehr.errors import FieldViolation, InvalidArgument
from lehr.ids import is_scope, parse_id
from services.billing.domain.commands import PlaceHold, PublishRates, TopUp
from services.billing.domain.holds import Terms
from services.billing.domain.ledger import Account
from services.billing.domain.rating import Line
from services.billing.handlers.costs import Cost
from services.billing.rates import PRICE_MAX, is_tier_name
from services.billing.storage.ledger import Booked
from services.billing.storage.proof import Proof

PAGE = 50
PAGE_MAX = 500
AMOUNT_MAX = 10**15
"""A thousand million units in micros: far from what a 64-bit balance holds."""
DURATION_MAX = timedelta(days=3650)
GPUS_MAX = 1024
ORDINAL_MAX = 1_000_000
NUMBER_MAX = 2**63 - 1


class _Wrong:
    """Collects what is wrong with a request, so that all of it is told at once."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._fields: list[FieldViolation] = []

    def unless(self, is_good: object, field: str, description: str) -> None:
        if not is_good:
            self._fields.append(FieldViolation(field=field, description=description))

    def check_money(
        self, message: common_pb2.Money, field: str, *, currency: str, least: int, most: int
    ) -> None:
        is_ours = message.currency_code == currency
        self.unless(is_ours, f"{field}.currency_code", f"must be {currency}")
        is_bounded = least <= message.micros <= most
        self.unless(is_bounded, f"{field}.micros", f"must be from {least} to {most}")

    def refuse(self) -> None:
        if self._fields:
            told = "; ".join(f"{one.field} {one.description}" for one in self._fields)
            raise InvalidArgument(f"{self._what}: {told}", fields=self._fields)


def place_hold(
    request: pb.PlaceHoldRequest, *, tenant: str, project: str, currency: str
) -> PlaceHold:
    """Read a request to hold money.

    Raises:
        InvalidArgument: with every wrong field.
    """
    wrong = _Wrong("no money can be held")
    wrong.unless(1 <= request.ordinal <= ORDINAL_MAX, "ordinal", "must be 1 or more")
    wrong.unless(1 <= request.gpu_count <= GPUS_MAX, "gpu_count", f"must be from 1 to {GPUS_MAX}")
    wrong.unless(request.tiers, "tiers", "must name at least one tier")
    wrong.unless(len(set(request.tiers)) == len(request.tiers), "tiers", "must name each once")
    wrong.check_money(request.max_cost, "max_cost", currency=currency, least=1, most=AMOUNT_MAX)
    limit = _duration(request.max_duration) if request.HasField("max_duration") else None
    wrong.unless(
        limit is None or timedelta() < limit <= DURATION_MAX,
        "max_duration",
        "must be above nothing and at most ten years",
    )
    wrong.refuse()
    return PlaceHold(
        tenant=tenant,
        project=project,
        job_id=parse_id(request.job_id, "job"),
        ordinal=request.ordinal,
        terms=Terms(
            currency=currency,
            max_cost_micros=request.max_cost.micros,
            max_duration=limit,
            gpu_count=request.gpu_count,
            tiers=tuple(request.tiers),
        ),
    )


def top_up(request: pb.TopUpRequest, *, principal: str, currency: str) -> TopUp:
    """Read a payment; raise InvalidArgument with every wrong field."""
    wrong = _Wrong("nothing can be booked")
    told = "must be 1 to 63 lower-case letters, digits, dashes and underscores, no mark first"
    wrong.unless(is_scope(request.tenant), "tenant", told)
    wrong.unless(1 <= len(request.request_id) <= 255, "request_id", "must have 1 to 255 characters")
    wrong.unless(request.request_id.isprintable(), "request_id", "must be printable")
    wrong.check_money(request.amount, "amount", currency=currency, least=1, most=AMOUNT_MAX)
    wrong.refuse()
    return TopUp(
        tenant=request.tenant,
        micros=request.amount.micros,
        request_id=request.request_id,
        principal=principal,
    )


def publish(request: pb.PublishRatesRequest, *, principal: str, currency: str) -> PublishRates:
    """Read new prices; raise InvalidArgument with every wrong field."""
    wrong = _Wrong("the prices cannot be published")
    wrong.unless(request.rates, "rates", "must name at least one tier")
    tiers = [one.tier for one in request.rates]
    wrong.unless(len(set(tiers)) == len(tiers), "rates", "must name each tier once")
    for index, one in enumerate(request.rates):
        told = "must be 1 to 63 lower-case letters, digits and dashes, no dash first or last"
        wrong.unless(is_tier_name(one.tier), f"rates[{index}].tier", told)
        field = f"rates[{index}].price_per_gpu_hour"
        wrong.check_money(one.price_per_gpu_hour, field, currency=currency, least=0, most=PRICE_MAX)
    wrong.refuse()
    found = {one.tier: one.price_per_gpu_hour.micros for one in request.rates}
    return PublishRates(prices=found, principal=principal)


def page(request: common_pb2.Page) -> tuple[int, int]:
    """Return before which number a page of the ledger begins, and its size."""
    token = request.page_token
    is_good = not token or (token.isascii() and token.isdigit() and len(token) <= 18)
    wrong = _Wrong("the ledger cannot be listed")
    wrong.unless(is_good, "page.page_token", "must be next_page_token of an answer, or empty")
    wrong.refuse()
    return int(token or NUMBER_MAX), min(request.page_size or PAGE, PAGE_MAX)


def money(micros: int, currency: str) -> common_pb2.Money:
    """Return an amount."""
    return common_pb2.Money(currency_code=currency, micros=micros)


def rates(prices: Mapping[str, int], currency: str) -> Sequence[pb.Rate]:
    """Return prices, by the name of the tier."""
    return [
        pb.Rate(tier=tier, price_per_gpu_hour=money(micros, currency))
        for tier, micros in sorted(prices.items())
    ]


def funding(funded: Mapping[str, timedelta], deadline: timedelta | None) -> pb.GetFundingResponse:
    """Return how long a job may compute."""
    message = pb.GetFundingResponse()
    for tier, length in funded.items():
        message.funding.add(tier=tier).funded_duration.FromTimedelta(length)
    if deadline is not None:
        message.deadline_duration.FromTimedelta(deadline)
    return message


def balance(found: Mapping[Account, int], currency: str) -> pb.GetBalanceResponse:
    """Return what a tenant has."""
    available, held = found[Account.CREDIT], found[Account.HELD]
    return pb.GetBalanceResponse(
        credit=money(available + held, currency),
        held=money(held, currency),
        available=money(available, currency),
    )


def cost(found: Cost) -> pb.Cost:
    """Return what a job has cost."""
    return pb.Cost(
        job_id=found.job.job_id,
        total=money(found.bill.total_micros, found.currency),
        billed_seconds=found.bill.billed_seconds,
        lines=[_line(line, found.currency) for line in found.bill.lines],
        is_provisional=found.is_provisional,
        credited_seconds=found.bill.credited.total_seconds(),
        max_cost=money(found.max_cost_micros, found.currency),
        as_of_time=_timestamp(found.as_of_time),
    )


def booking(found: Booked, currency: str) -> pb.LedgerTransaction:
    """Return a booking."""
    return pb.LedgerTransaction(
        transaction_id=found.transaction_id,
        kind=found.kind,
        job_id=found.job_id,
        cause=found.cause,
        entries=[
            pb.LedgerEntry(account=account, side=side, amount=money(micros, currency))
            for account, side, micros in found.entries
        ],
        create_time=_timestamp(found.create_time),
    )


def proof(found: Proof, currency: str) -> pb.ReconcileResponse:
    """Return the proof."""
    return pb.ReconcileResponse(
        differences=found.differences,
        job_count=found.job_count,
        lease_count=found.lease_count,
        billed_seconds=found.billed_seconds,
        charged=money(found.charged_micros, currency),
    )


def _line(line: Line, currency: str) -> pb.CostLine:
    return pb.CostLine(
        tier=line.key.tier,
        gpu_count=line.key.gpu_count,
        price_per_gpu_hour=money(line.micro_per_hour, currency),
        billed_seconds=line.billed_seconds,
        amount=money(line.amount_micros, currency),
        hold_ordinal=line.key.hold_ordinal,
    )


def _duration(message: Duration) -> timedelta:
    try:
        return timedelta(seconds=message.seconds, microseconds=message.nanos // 1000)
    except OverflowError:
        return timedelta.max


def _timestamp(instant: datetime) -> Timestamp:
    message = Timestamp()
    message.FromDatetime(instant)
    return message
