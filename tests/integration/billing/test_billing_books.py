"""Prices, payments, the ledger, and who may touch and see what."""

import asyncio

import asyncpg
import pytest

from lehr.api.billing.v1 import billing_pb2 as pb
from lehr.api.common.v1.common_pb2 import Money, Page
from lehr.errors import (
    AlreadyExists,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    PermissionDenied,
)
from lehr.ids import new_id
from tests.integration.billing.story import Story, euros, micros
from tests.support.stack import DatabaseForTests


async def test_new_prices_hold_for_launches_and_resumes_from_now_on(story: Story) -> None:
    await story.hold(tiers=["three"])
    rates = [pb.Rate(tier="three", price_per_gpu_hour=euros("4.20"))]
    version = await story.ask(
        story.user.PublishRates, pb.PublishRatesRequest(rates=rates), role="operator"
    )
    again = await story.ask(
        story.user.PublishRates, pb.PublishRatesRequest(rates=rates), role="operator"
    )
    story.allocator.put(story.closed(0, 1800, "USER_STOPPED", tier="three"))
    await story.until_cost("1.50")

    await story.hold(ordinal=2, tiers=["three"])
    story.allocator.put(story.closed(3000, 4800, tier="three"))

    cost = await story.until_cost("3.60", seconds=3600)
    assert [line.price_per_gpu_hour for line in cost.lines] == [euros("3.00"), euros("4.20")]
    assert again == version
    quote = await story.ask(story.launcher.Quote, pb.QuoteRequest(tiers=["three", "nothing"]))
    assert [(one.tier, one.price_per_gpu_hour) for one in quote.rates] == [("three", euros("4.20"))]
    assert list((await story.reconcile()).differences) == []


async def test_a_price_that_falls_later_changes_no_bill_of_before(story: Story) -> None:
    async def publish(price: str) -> None:
        rates = [pb.Rate(tier="falling", price_per_gpu_hour=euros(price))]
        request = pb.PublishRatesRequest(rates=rates)
        await story.ask(story.user.PublishRates, request, role="operator")

    await publish("3.00")
    await story.hold(tiers=["falling"])
    story.allocator.put(story.closed(0, 1800, "USER_STOPPED", tier="falling"))
    before = await story.until_cost("1.50", seconds=1800)

    await publish("1.00")

    after = await story.until_cost("1.50", seconds=1800)
    assert (after.total, list(after.lines)) == (before.total, list(before.lines))
    assert [(one.tier, one.gpu_count, one.price_per_gpu_hour) for one in after.lines] == [
        ("falling", 1, euros("3.00"))
    ]
    assert list((await story.reconcile()).differences) == []


async def test_a_resume_on_a_backup_has_a_line_of_its_own(story: Story) -> None:
    await story.hold(tiers=["slow", "fast"])
    await story.tell(story.closed(0, 10_800, "USER_STOPPED", tier="slow"))
    await story.until_cost("2.88")
    await story.hold(ordinal=2, tiers=["slow", "fast"])

    await story.tell(story.closed(20_000, 30_800, tier="fast"))

    cost = await story.until_cost("14.40", seconds=21_600)
    assert [line.amount for line in cost.lines] == [euros("2.88"), euros("11.52")]


async def test_a_payment_is_booked_once(story: Story) -> None:
    payment = pb.TopUpRequest(tenant=story.tenant, amount=euros("50"), request_id="bank-1")

    told = await asyncio.gather(
        *(story.ask(story.user.TopUp, payment, role="operator", tenant="boss") for _ in range(5))
    )

    assert {one.credit.micros for one in told} == {micros("1050")}
    other = pb.TopUpRequest(tenant=story.tenant, amount=euros("51"), request_id="bank-1")
    with pytest.raises(AlreadyExists, match="another amount"):
        await story.ask(story.user.TopUp, other, role="operator")


@pytest.mark.parametrize("tenant", ["*.> x", "", "Acme", "a\0b", "a" * 64, "a.b"])
async def test_a_payment_is_for_a_tenant_that_can_be(story: Story, tenant: str) -> None:
    payment = pb.TopUpRequest(tenant=tenant, amount=euros("50"), request_id="bank-3")

    with pytest.raises(InvalidArgument) as refused:
        await story.ask(story.user.TopUp, payment, role="operator")

    assert [one.field for one in refused.value.fields] == ["tenant"]


@pytest.mark.parametrize("tier", ["x" * 100_000, "", "H100", "a.b", "*", "a\nb", "-h"])
async def test_a_price_is_of_a_tier_that_can_be(story: Story, tier: str) -> None:
    rates = [pb.Rate(tier=tier, price_per_gpu_hour=euros("1"))]

    with pytest.raises(InvalidArgument) as refused:
        await story.ask(
            story.user.PublishRates, pb.PublishRatesRequest(rates=rates), role="operator"
        )

    assert [one.field for one in refused.value.fields] == ["rates[0].tier"]
    assert len(refused.value.message) < 1000


async def test_only_operators_touch_credit_and_prices(story: Story) -> None:
    payment = pb.TopUpRequest(tenant=story.tenant, amount=euros("50"), request_id="bank-2")
    rates = pb.PublishRatesRequest(rates=[pb.Rate(tier="base", price_per_gpu_hour=euros("0"))])

    with pytest.raises(PermissionDenied) as no_payment:
        await story.ask(story.user.TopUp, payment)
    with pytest.raises(PermissionDenied) as no_rates:
        await story.ask(story.user.PublishRates, rates)

    assert {no_payment.value.reason, no_rates.value.reason} == {"OPERATOR_ONLY"}
    assert (await story.balance()).credit == euros("1000")


async def test_only_the_scheduler_holds_and_settles(story: Story) -> None:
    request = pb.SettleRequest(job_id=story.job_id)

    with pytest.raises(PermissionDenied, match="may not call Settle"):
        await story.ask(story.user.Settle, request)


async def test_wrong_fields_are_told_together(story: Story) -> None:
    request = pb.PlaceHoldRequest(
        job_id=story.job_id, max_cost=Money(currency_code="USD", micros=0), tiers=["base", "base"]
    )

    with pytest.raises(InvalidArgument) as refused:
        await story.ask(story.launcher.PlaceHold, request)

    assert {one.field for one in refused.value.fields} == {
        "ordinal",
        "gpu_count",
        "tiers",
        "max_cost.currency_code",
        "max_cost.micros",
    }


async def test_a_tier_without_a_price_cannot_be_held_for(story: Story) -> None:
    with pytest.raises(FailedPrecondition) as refused:
        await story.hold(tiers=["base", "nothing"])

    assert refused.value.reason == "TIER_UNPRICED"
    assert (await story.balance()).held == euros("0")


async def test_a_foreign_job_is_an_unknown_one(story: Story) -> None:
    await story.hold()
    request = pb.GetCostRequest(job_id=story.job_id)

    with pytest.raises(NotFound) as foreign:
        await story.ask(story.user.GetCost, request, tenant="stranger")
    with pytest.raises(NotFound) as funding:
        await story.ask(
            story.launcher.GetFunding, pb.GetFundingRequest(job_id=story.job_id), tenant="stranger"
        )
    with pytest.raises(NotFound) as settle:
        await story.ask(
            story.launcher.Settle, pb.SettleRequest(job_id=story.job_id), tenant="stranger"
        )

    told = {str(one.value) for one in (foreign, funding, settle)}
    assert told == {f"there is no job {story.job_id}"}
    ledger = pb.ListLedgerRequest(job_id=story.job_id)
    found = await story.ask(story.user.ListLedger, ledger, tenant="stranger")
    assert list(found.transactions) == []
    assert await story.held() == micros("100")


async def test_the_ledger_is_paged_newest_first(story: Story) -> None:
    await story.hold("10")
    await story.tell(story.closed(0, 100))
    await story.tell_finished()
    await story.until_settled()
    other_job = new_id("job")
    await story.hold("5", job_id=other_job)

    kinds, token = [], ""
    for _ in range(3):
        request = pb.ListLedgerRequest(page=Page(page_size=2, page_token=token))
        page = await story.ask(story.user.ListLedger, request)
        kinds.append([one.kind for one in page.transactions])
        token = page.next_page_token

    assert kinds == [["hold", "release"], ["charge", "hold"], ["top_up"]]
    assert token == ""
    entries = (await story.ledger())[1].entries
    assert [(one.account, one.side, one.amount) for one in entries] == [
        ("held", "debit", euros("0.10")),
        ("revenue", "credit", euros("0.10")),
    ]


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE ledger_entries SET micros = 1",
        "DELETE FROM ledger_entries",
        "UPDATE ledger_transactions SET cause = ''",
        "DELETE FROM ledger_transactions",
        "TRUNCATE ledger_entries",
        "UPDATE rates SET micro_per_hour = 1",
        "DELETE FROM rate_versions",
    ],
)
async def test_nobody_changes_what_was_booked_or_published(
    story: Story, database: DatabaseForTests, statement: str
) -> None:
    await story.hold()

    service_role = await asyncpg.connect(database.url("billing"))
    with pytest.raises(asyncpg.InsufficientPrivilegeError, match="permission denied"):
        await service_role.execute(statement)
    await service_role.close()
    administrator = await asyncpg.connect(
        database.admin_url, server_settings={"search_path": "billing"}
    )
    with pytest.raises(asyncpg.InsufficientPrivilegeError, match="only ever added to"):
        await administrator.execute(statement)
    await administrator.close()


async def test_the_database_refuses_a_booking_that_does_not_balance(
    story: Story, database: DatabaseForTests
) -> None:
    await story.hold()
    role = await asyncpg.connect(database.url("billing"))

    begun = role.transaction()
    await begun.start()
    await role.execute(
        "INSERT INTO ledger_transactions (transaction_id, tenant, kind, job_id, cause)"
        " VALUES ('tx_forged', $1, 'top_up', '', '')",
        story.tenant,
    )
    await role.execute(
        "INSERT INTO ledger_entries VALUES ('tx_forged', $1, 'credit', 'credit', 5)", story.tenant
    )
    with pytest.raises(asyncpg.CheckViolationError, match="does not balance"):
        await begun.commit()
    with pytest.raises(asyncpg.CheckViolationError):
        await role.execute(
            "UPDATE accounts SET balance_micros = -1 WHERE tenant = $1 AND account = 'credit'",
            story.tenant,
        )
    await role.close()
