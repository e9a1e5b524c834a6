"""GPUs, money, events and keys."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from datetime import datetime
from typing import Any

from lehr.api.billing.v1 import billing_pb2, billing_pb2_grpc
from lehr.api.common.v1.common_pb2 import Money as MoneyMessage
from lehr.api.common.v1.common_pb2 import Page
from lehr.api.gateway.v1 import gateway_pb2, gateway_pb2_grpc
from lehr.api.gpu_allocator.v1 import gpu_allocator_pb2, gpu_allocator_pb2_grpc
from lehr.client.connection import Connection
from lehr.ids import event_uuid
from lehr.money import Money


class Gpus:
    """What there is to run on."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._stub = gpu_allocator_pb2_grpc.GpuAllocatorServiceStub(connection.channel)

    async def tiers(self) -> Sequence[gpu_allocator_pb2.Tier]:
        """Return the kinds of GPU with what exists and what is free."""
        request = gpu_allocator_pb2.ListTiersRequest()
        return (await self._connection.call(self._stub.ListTiers, request)).tiers

    async def nodes(self) -> Sequence[gpu_allocator_pb2.Node]:
        """Return nodes with their GPUs."""
        request = gpu_allocator_pb2.ListNodesRequest()
        return (await self._connection.call(self._stub.ListNodes, request)).nodes

    async def check_held(self) -> gpu_allocator_pb2.CheckHeldResponse:
        """Compare what leases hold with what nodes say runs."""
        request = gpu_allocator_pb2.CheckHeldRequest()
        return await self._connection.call(self._stub.CheckHeld, request)

    async def release(
        self, gpu_id: str, *, reason: str, request_id: str | None = None
    ) -> gpu_allocator_pb2.Gpu:
        """Take a GPU out of quarantine; operators only.

        ``reason`` says how the caller knows that its old process is dead, and is kept with their
        name. It can be granted once its node says that it is clear.

        Raises:
            FailedPrecondition: GPU_NOT_QUARANTINED.
        """
        request = gpu_allocator_pb2.ReleaseGpuRequest(
            gpu_id=gpu_id, reason=reason, request_id=request_id or event_uuid().hex
        )
        return (await self._connection.call(self._stub.ReleaseGpu, request)).gpu


class Billing:
    """Prices, credit and the ledger."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._stub = billing_pb2_grpc.BillingServiceStub(connection.channel)

    async def quote(self, tiers: Sequence[str] = ()) -> billing_pb2.QuoteResponse:
        """Return the prices in force."""
        request = billing_pb2.QuoteRequest(tiers=tiers)
        return await self._connection.call(self._stub.Quote, request)

    async def balance(self) -> billing_pb2.GetBalanceResponse:
        """Return the tenant's credit."""
        request = billing_pb2.GetBalanceRequest()
        return await self._connection.call(self._stub.GetBalance, request)

    async def top_up(self, tenant: str, amount: Money, *, request_id: str | None = None) -> Any:
        """Add credit; operators only."""
        request = billing_pb2.TopUpRequest(
            tenant=tenant, amount=_message(amount), request_id=request_id or event_uuid().hex
        )
        return await self._connection.call(self._stub.TopUp, request)

    async def publish_rates(self, prices: dict[str, Money]) -> str:
        """Publish prices for launches from now on and return their version; operators only."""
        rates = [
            billing_pb2.Rate(tier=tier, price_per_gpu_hour=_message(price))
            for tier, price in prices.items()
        ]
        request = billing_pb2.PublishRatesRequest(rates=rates)
        return (await self._connection.call(self._stub.PublishRates, request)).rate_version

    async def ledger(
        self, *, job_id: str = "", page_size: int = 50, page_token: str = ""
    ) -> billing_pb2.ListLedgerResponse:
        """Return a page of the ledger, newest first."""
        request = billing_pb2.ListLedgerRequest(
            page=Page(page_size=page_size, page_token=page_token), job_id=job_id
        )
        return await self._connection.call(self._stub.ListLedger, request)

    async def reconcile(self) -> billing_pb2.ReconcileResponse:
        """Prove that the ledger equals the leases, or say where it does not."""
        request = billing_pb2.ReconcileRequest()
        return await self._connection.call(self._stub.Reconcile, request)


class Events:
    """The tenant's CloudEvents."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._stub = gateway_pb2_grpc.GatewayServiceStub(connection.channel)

    async def tail(
        self, *, types: Sequence[str] = (), job_id: str = "", since: datetime | None = None
    ) -> AsyncIterator[dict[str, Any]]:
        """Yield events as they happen, or from a time on."""
        request = gateway_pb2.WatchEventsRequest(types=types, job_id=job_id)
        if since is not None:
            request.from_time.FromDatetime(since)
        async for answer in self._connection.stream(self._stub.WatchEvents, request):
            yield json.loads(answer.event_json)


class Keys:
    """API keys."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._stub = gateway_pb2_grpc.GatewayServiceStub(connection.channel)

    async def whoami(self) -> gateway_pb2.WhoAmIResponse:
        """Return what this key stands for."""
        return await self._connection.call(self._stub.WhoAmI, gateway_pb2.WhoAmIRequest())

    async def create(
        self, name: str, *, tenant: str = "", project: str = "", role: str = ""
    ) -> gateway_pb2.CreateApiKeyResponse:
        """Make a key; its secret is in this answer only."""
        request = gateway_pb2.CreateApiKeyRequest(
            name=name, tenant=tenant, project=project, role=role
        )
        return await self._connection.call(self._stub.CreateApiKey, request)

    async def list(self) -> Sequence[gateway_pb2.ApiKey]:
        """Return the tenant's keys."""
        request = gateway_pb2.ListApiKeysRequest()
        return (await self._connection.call(self._stub.ListApiKeys, request)).keys

    async def revoke(self, key_id: str) -> gateway_pb2.ApiKey:
        """End a key at once."""
        request = gateway_pb2.RevokeApiKeyRequest(key_id=key_id)
        return (await self._connection.call(self._stub.RevokeApiKey, request)).key


def _message(amount: Money) -> MoneyMessage:
    return MoneyMessage(currency_code=amount.currency, micros=amount.micros)
