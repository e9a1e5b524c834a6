"""gRPC in: proto to command, handler, proto."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import grpc.aio

from lehr.api.billing.v1 import billing_pb2 as pb
from lehr.api.billing.v1.billing_pb2_grpc import BillingServiceServicer
from lehr.ids import parse_id
from lehr.postgres import Database
from lehr.rpc.auth import caller, tenant_of_caller
from services.billing import proto
from services.billing.domain.errors import OperatorOnly
from services.billing.handlers import accounts, costs, holding, prices, reconciling, settling
from services.billing.handlers.accounts import Opening
from services.billing.ports import Leases

SERVICE = "lehr.api.billing.v1.BillingService"

_SCHEDULER = frozenset({"scheduler"})
#: Which services may call what; everything else is for the gateway alone.
POLICY: Mapping[str, frozenset[str]] = {
    "Quote": frozenset({"gateway", "scheduler"}),
    "PlaceHold": _SCHEDULER,
    "GetFunding": _SCHEDULER,
    "Settle": _SCHEDULER,
}

Context = grpc.aio.ServicerContext[Any, Any]


class Servicer(BillingServiceServicer):
    """Billing's methods."""

    def __init__(
        self, *, db: Database, leases: Leases, opening: Opening, reconcile_pause: timedelta
    ) -> None:
        self._db = db
        self._leases = leases
        self._opening = opening
        self._currency = opening.currency
        self._reconcile_pause = reconcile_pause

    async def Quote(self, request: pb.QuoteRequest, context: Context) -> pb.QuoteResponse:
        card = await prices.quote(request.tiers, db=self._db)
        return pb.QuoteResponse(
            rates=proto.rates(card.prices, card.currency), rate_version=str(card.rate_version)
        )

    async def PlaceHold(
        self, request: pb.PlaceHoldRequest, context: Context
    ) -> pb.PlaceHoldResponse:
        cmd = proto.place_hold(
            request,
            tenant=tenant_of_caller(),
            project=caller().project,
            currency=self._currency,
        )
        hold, job = await holding.place_hold(
            cmd, db=self._db, leases=self._leases, opening=self._opening
        )
        return pb.PlaceHoldResponse(
            rates=proto.rates(hold.prices, hold.terms.currency),
            held=proto.money(job.held_micros, self._currency),
        )

    async def GetFunding(
        self, request: pb.GetFundingRequest, context: Context
    ) -> pb.GetFundingResponse:
        job_id = parse_id(request.job_id, "job")
        funded, deadline = await holding.get_funding(
            tenant_of_caller(), job_id, db=self._db, leases=self._leases
        )
        return proto.funding(funded, deadline)

    async def Settle(self, request: pb.SettleRequest, context: Context) -> pb.SettleResponse:
        job_id = parse_id(request.job_id, "job")
        await settling.settle_now(tenant_of_caller(), job_id, db=self._db, leases=self._leases)
        return pb.SettleResponse(cost=await self._cost(job_id, project=None))

    async def GetCost(self, request: pb.GetCostRequest, context: Context) -> pb.GetCostResponse:
        job_id = parse_id(request.job_id, "job")
        return pb.GetCostResponse(cost=await self._cost(job_id, project=caller().project))

    async def GetBalance(
        self, request: pb.GetBalanceRequest, context: Context
    ) -> pb.GetBalanceResponse:
        found = await accounts.balance(tenant_of_caller(), db=self._db, opening=self._opening)
        return proto.balance(found, self._currency)

    async def TopUp(self, request: pb.TopUpRequest, context: Context) -> pb.TopUpResponse:
        _check_operator("top up an account")
        cmd = proto.top_up(request, principal=caller().principal, currency=self._currency)
        credit = await accounts.add_credit(cmd, db=self._db, opening=self._opening)
        return pb.TopUpResponse(credit=proto.money(credit, self._currency))

    async def ListLedger(
        self, request: pb.ListLedgerRequest, context: Context
    ) -> pb.ListLedgerResponse:
        before, size = proto.page(request.page)
        job_id = parse_id(request.job_id, "job") if request.job_id else ""
        # One more than asked for tells whether there is a next page.
        found = await accounts.bookings(
            tenant_of_caller(),
            project=caller().only_project,
            job_id=job_id,
            before=before,
            limit=size + 1,
            db=self._db,
        )
        shown = found[:size]
        return pb.ListLedgerResponse(
            transactions=[proto.booking(one, self._currency) for one in shown],
            next_page_token=str(shown[-1].ledger_number) if len(found) > size else "",
        )

    async def PublishRates(
        self, request: pb.PublishRatesRequest, context: Context
    ) -> pb.PublishRatesResponse:
        _check_operator("publish prices")
        cmd = proto.publish(request, principal=caller().principal, currency=self._currency)
        card = await prices.publish(cmd, db=self._db)
        return pb.PublishRatesResponse(rate_version=str(card.rate_version))

    async def Reconcile(
        self, request: pb.ReconcileRequest, context: Context
    ) -> pb.ReconcileResponse:
        proof = await reconciling.reconcile(
            tenant_of_caller(), db=self._db, leases=self._leases, pause=self._reconcile_pause
        )
        return proto.proof(proof, self._currency)

    async def _cost(self, job_id: str, *, project: str | None) -> pb.Cost:
        found = await costs.cost_of(
            tenant_of_caller(),
            project,
            job_id,
            currency=self._currency,
            db=self._db,
            leases=self._leases,
        )
        return proto.cost(found)


def _check_operator(doing: str) -> None:
    if caller().role != "operator":
        raise OperatorOnly(doing)
