"""Double-entry bookings: each balances, and its id follows from what it books."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from lehr.ids import derived_id
from services.billing.domain.rating import Bill, Line, LineKey


class Account(StrEnum):
    """Where money can be; each tenant has one of each."""

    CASH = "cash"
    """Paid in from outside; the only one that may be below zero."""
    CREDIT = "credit"
    """Prepaid and free to be spent."""
    HELD = "held"
    """Set aside for jobs."""
    REVENUE = "revenue"
    """Charged."""


class Kind(StrEnum):
    """Why money moves; a kind always moves it between the same two accounts."""

    TOP_UP = "top_up"
    HOLD = "hold"
    CHARGE = "charge"
    REFUND = "refund"
    """A charge taken back: to the hold while there is one, else to the credit."""
    RELEASE = "release"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One side of a booking."""

    account: Account
    side: str
    """debit or credit."""
    micros: int

    @property
    def change(self) -> int:
        """What it does to the balance: credits raise it, debits lower it."""
        return self.micros if self.side == "credit" else -self.micros


@dataclass(frozen=True, slots=True, kw_only=True)
class Transaction:
    """One booking. Raises ValueError unless debits equal credits and all are above zero."""

    transaction_id: str
    tenant: str
    kind: Kind
    job_id: str = ""
    line: LineKey | None = None
    """What was charged or refunded."""
    cause: str
    entries: tuple[Entry, ...]

    def __post_init__(self) -> None:
        if not self.entries or sum(entry.change for entry in self.entries) != 0:
            raise ValueError(f"{self.kind} {self.transaction_id} does not balance")
        if min(entry.micros for entry in self.entries) <= 0:
            raise ValueError(f"{self.kind} {self.transaction_id} books nothing or less")


@dataclass(frozen=True, slots=True, kw_only=True)
class Posted:
    """What the ledger has of one line."""

    amount_micros: int = 0
    billed_seconds: int = 0
    revision: int = 0
    """Bookings of the line so far."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Posting:
    """What must be booked so that the ledger has what is so."""

    key: LineKey
    before: Posted
    after: Posted
    micro_per_hour: int

    @property
    def micros(self) -> int:
        """The difference; below zero for a refund."""
        return self.after.amount_micros - self.before.amount_micros


def postings(bill: Bill, posted: Mapping[LineKey, Posted]) -> list[Posting]:
    """Return the differences between a bill and the ledger, refunds first; none when they agree."""
    lines: dict[LineKey, Line] = {line.key: line for line in bill.lines}
    found = [
        _posting(key, lines.get(key), posted.get(key, Posted()))
        for key in sorted(lines.keys() | posted.keys())
    ]
    return sorted((one for one in found if one is not None), key=lambda one: one.micros)


def top_up(tenant: str, micros: int, *, request_id: str, cause: str) -> Transaction:
    """Book money paid in; a payment id is booked once."""
    return Transaction(
        transaction_id=derived_id("tx", tenant, f"top_up:{request_id}"),
        tenant=tenant,
        kind=Kind.TOP_UP,
        cause=cause,
        entries=_move(Account.CASH, Account.CREDIT, micros),
    )


def hold(tenant: str, job_id: str, micros: int, *, ordinal: int, opening: int) -> Transaction:
    """Set money aside; ``opening`` counts how often money was set aside for the job."""
    return Transaction(
        transaction_id=derived_id("tx", tenant, f"{job_id}:hold:{opening}"),
        tenant=tenant,
        kind=Kind.HOLD,
        job_id=job_id,
        cause=f"authorisation {ordinal} of the job",
        entries=_move(Account.CREDIT, Account.HELD, micros),
    )


def release(tenant: str, job_id: str, micros: int, *, opening: int, cause: str) -> Transaction:
    """Give back what was set aside and not charged; once an opening."""
    return Transaction(
        transaction_id=derived_id("tx", tenant, f"{job_id}:release:{opening}"),
        tenant=tenant,
        kind=Kind.RELEASE,
        job_id=job_id,
        cause=cause,
        entries=_move(Account.HELD, Account.CREDIT, micros),
    )


def charge(tenant: str, job_id: str, posting: Posting, *, is_held: bool) -> Transaction:
    """Book the difference of a line: a charge, or a refund where it is below zero.

    ``is_held`` says whether money is set aside for the job; a refund flows back there.
    """
    key, after = posting.key, posting.after
    name = f"{job_id}:line:{key.hold_ordinal}:{key.tier}:{key.gpu_count}:{after.revision}"
    is_charge = posting.micros > 0
    seconds = f"{after.billed_seconds} s on {key.gpu_count} x {key.tier}"
    back = Account.HELD if is_held else Account.CREDIT
    return Transaction(
        transaction_id=derived_id("tx", tenant, name),
        tenant=tenant,
        kind=Kind.CHARGE if is_charge else Kind.REFUND,
        job_id=job_id,
        line=key,
        cause=f"{seconds} in all" if is_charge else f"less was owed than charged: {seconds} in all",
        entries=(
            _move(Account.HELD, Account.REVENUE, posting.micros)
            if is_charge
            else _move(Account.REVENUE, back, -posting.micros)
        ),
    )


def balances(transactions: Sequence[Transaction]) -> dict[Account, int]:
    """Return what bookings sum up to, account by account."""
    sums = dict.fromkeys(Account, 0)
    for transaction in transactions:
        for entry in transaction.entries:
            sums[entry.account] += entry.change
    return sums


def _posting(key: LineKey, line: Line | None, before: Posted) -> Posting | None:
    amount, seconds = (line.amount_micros, line.billed_seconds) if line else (0, 0)
    if (amount, seconds) == (before.amount_micros, before.billed_seconds):
        return None
    after = Posted(amount_micros=amount, billed_seconds=seconds, revision=before.revision + 1)
    return Posting(
        key=key,
        before=before,
        after=after,
        micro_per_hour=line.micro_per_hour if line else 0,
    )


def _move(debit: Account, credit: Account, micros: int) -> tuple[Entry, ...]:
    return (
        Entry(account=debit, side="debit", micros=micros),
        Entry(account=credit, side="credit", micros=micros),
    )
