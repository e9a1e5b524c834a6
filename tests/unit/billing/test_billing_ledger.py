"""Bookings balance, have ids of their own, and follow the bill wherever it goes."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from services.billing.domain import ledger
from services.billing.domain.holds import Rest
from services.billing.domain.job import Job
from services.billing.domain.ledger import (
    Account,
    Entry,
    Kind,
    Posted,
    Transaction,
    balances,
    postings,
)
from services.billing.domain.rating import Bill, LineKey, rate
from tests.support.billing import a_hold, closed

KEY = LineKey(hold_ordinal=1, tier="h", gpu_count=1)


def test_what_does_not_balance_cannot_be_made() -> None:
    with pytest.raises(ValueError, match="does not balance"):
        Transaction(
            transaction_id="tx",
            tenant="acme",
            kind=Kind.HOLD,
            job_id="job_1",
            cause="",
            entries=(
                Entry(account=Account.CREDIT, side="debit", micros=2),
                Entry(account=Account.HELD, side="credit", micros=1),
            ),
        )


@pytest.mark.parametrize("micros", [0, -1])
def test_nothing_or_less_cannot_be_booked(micros: int) -> None:
    with pytest.raises(ValueError, match="books nothing or less"):
        ledger.top_up("acme", micros, request_id="p1", cause="")


def test_the_same_payment_has_the_same_id_and_another_tenants_has_not() -> None:
    first = ledger.top_up("acme", 5, request_id="p1", cause="a")

    assert ledger.top_up("acme", 9, request_id="p1", cause="b").transaction_id == (
        first.transaction_id
    )
    assert ledger.top_up("other", 5, request_id="p1", cause="a").transaction_id != (
        first.transaction_id
    )


def test_where_bill_and_ledger_agree_nothing_is_posted() -> None:
    bill = rate([closed(0, 100)], [a_hold()])

    assert (
        postings(bill, {KEY: Posted(amount_micros=100_000, billed_seconds=100, revision=3)}) == []
    )


def test_what_vanished_from_the_bill_is_refunded_whole() -> None:
    bill = rate([closed(0, 100, "NODE_LOST")], [a_hold()])

    found = postings(bill, {KEY: Posted(amount_micros=70_000, billed_seconds=70, revision=2)})

    assert [(one.micros, one.after) for one in found] == [(-70_000, Posted(revision=3))]


def test_refunds_come_before_charges() -> None:
    dear = LineKey(hold_ordinal=1, tier="b", gpu_count=1)
    bill = rate([closed(0, 100)], [a_hold()])

    found = postings(bill, {dear: Posted(amount_micros=1, billed_seconds=1, revision=1)})

    assert [one.micros for one in found] == [-1, 100_000]


def test_each_revision_of_a_line_has_an_id_of_its_own() -> None:
    bill = rate([closed(0, 100)], [a_hold()])
    up = postings(bill, {})[0]
    down = postings(Bill(lines=(), credited=bill.credited), {KEY: up.after})[0]
    up_again = postings(bill, {KEY: down.after})[0]

    ids = {
        ledger.charge("acme", "job_1", one, is_held=True).transaction_id
        for one in (up, down, up_again)
    }

    assert len(ids) == 3


@dataclass
class Books:
    """What the handlers do, without a database."""

    booked: dict[str, Transaction] = field(default_factory=dict)
    lines: dict[LineKey, Posted] = field(default_factory=dict)
    job: Job = field(
        default_factory=lambda: Job(
            tenant="acme",
            job_id="job_1",
            project="default",
            version=0,
            open_ordinal=None,
            opening_count=0,
            held_micros=0,
            rest=Rest(),
        )
    )

    def book(self, transaction: Transaction) -> None:
        assert transaction.transaction_id not in self.booked
        self.booked[transaction.transaction_id] = transaction

    @property
    def sums(self) -> dict[Account, int]:
        return balances(list(self.booked.values()))


class MoneyOfAJob(RuleBasedStateMachine):
    """Random top-ups, holds, charges, credits and releases of one job."""

    def __init__(self) -> None:
        super().__init__()
        self.books = Books()
        self.payments = 0
        self.ordinal = 0
        self.max_cost = 0

    @rule(micros=st.integers(1, 500_000))
    def pay(self, micros: int) -> None:
        self.payments += 1
        self.books.book(
            ledger.top_up("acme", micros, request_id=str(self.payments), cause="a payment")
        )

    @precondition(lambda self: self.books.job.open_ordinal is None)
    @rule(max_cost=st.integers(1, 400_000))
    def hold(self, max_cost: int) -> None:
        charged = sum(one.amount_micros for one in self.books.lines.values())
        needed = max_cost - charged
        if 0 < needed <= self.books.sums[Account.CREDIT]:
            self.ordinal += 1
            self.max_cost = max_cost
            self.books.job = self.books.job.opened(self.ordinal, needed)
            opening = self.books.job.opening_count
            self.books.book(
                ledger.hold("acme", "job_1", needed, ordinal=self.ordinal, opening=opening)
            )

    @precondition(lambda self: self.max_cost > 0)
    @rule(end=st.floats(0, 500), committed=st.floats(0, 500), is_lost=st.booleans())
    def tell(self, end: float, committed: float, is_lost: bool) -> None:
        reason = "NODE_LOST" if is_lost else "COMPLETED"
        lease = closed(0, round(end, 3), reason, committed=round(committed, 3))
        bill = rate([lease], [a_hold(max_cost=self.max_cost)])
        is_held = self.books.job.open_ordinal is not None
        for one in postings(bill, self.books.lines):
            if one.micros > 0 and not is_held:
                continue
            if one.micros:
                self.books.book(ledger.charge("acme", "job_1", one, is_held=is_held))
            self.books.lines[one.key] = one.after
            self.books.job = self.books.job.charged(one.micros)

    @precondition(lambda self: self.books.job.open_ordinal is not None)
    @rule()
    def settle(self) -> None:
        job = self.books.job
        if job.held_micros:
            self.books.book(
                ledger.release(
                    "acme", "job_1", job.held_micros, opening=job.opening_count, cause="not used"
                )
            )
        self.books.job = job.released()

    @invariant()
    def the_books_balance(self) -> None:
        assert sum(self.books.sums.values()) == 0

    @invariant()
    def nothing_is_below_zero_but_what_was_paid_in(self) -> None:
        sums = self.books.sums
        assert min(sums[Account.CREDIT], sums[Account.HELD], sums[Account.REVENUE]) >= 0

    @invariant()
    def what_is_held_is_the_jobs(self) -> None:
        assert self.books.sums[Account.HELD] == self.books.job.held_micros >= 0

    @invariant()
    def no_more_is_charged_than_authorised(self) -> None:
        charged = sum(one.amount_micros for one in self.books.lines.values())
        assert self.books.sums[Account.REVENUE] == charged <= self.max_cost


TestMoneyOfAJob = MoneyOfAJob.TestCase
TestMoneyOfAJob.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


@given(micros=st.integers(1, 2**40))
def test_every_booking_moves_money_from_one_account_to_another(micros: int) -> None:
    made = [
        ledger.top_up("acme", micros, request_id="p", cause=""),
        ledger.hold("acme", "job_1", micros, ordinal=1, opening=1),
        ledger.release("acme", "job_1", micros, opening=1, cause=""),
    ]

    sums = balances(made)

    assert sums == {
        Account.CASH: -micros,
        Account.CREDIT: micros,
        Account.HELD: 0,
        Account.REVENUE: 0,
    }
