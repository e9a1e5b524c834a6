"""The money of one job, told in seconds from its first hold."""

import asyncio
import contextlib
import itertools
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import nats
from nats.aio.client import Client

from lehr.api.billing.v1 import billing_pb2 as pb
from lehr.api.billing.v1.billing_pb2_grpc import BillingServiceStub
from lehr.api.common.v1.common_pb2 import Money, Page
from lehr.errors import Unavailable
from lehr.events import codec, subjects
from lehr.events.envelope import Envelope
from lehr.events.job import JobFinished
from lehr.events.lease import LeaseClosed, LeaseEvent, LeasePhaseChanged, LeaseSnapshot
from lehr.ids import event_uuid, new_id
from lehr.money import Money as Amount
from lehr.postgres import Database
from lehr.rpc.auth import Identity, acting_for
from lehr.rpc.client import channel, raises_platform_errors
from services.billing.domain.lease import Lease, LeasePhase
from tests.support.fakes_billing import FakeAllocator, FakeScheduler
from tests.support.one_service import KEYS, OneService
from tests.support.servers import NatsForTests

PATIENCE_SECONDS = 45.0

_numbers = itertools.count(1)


def micros(amount: str) -> int:
    """Return a decimal amount in micros."""
    return Amount.parse(amount, currency="EUR").micros


def euros(amount: str) -> Money:
    """Return a decimal amount as the API carries it."""
    return Money(currency_code="EUR", micros=micros(amount))


async def until(true: Callable[[], Awaitable[Any]]) -> Any:
    """Wait until ``true`` answers with something; return it."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        # What is waited for happens in another process.
        while not (answer := await true()):
            await asyncio.sleep(0.03)
    return answer


@dataclass(kw_only=True)
class Story:
    """One job of one tenant."""

    service: OneService
    allocator: FakeAllocator
    scheduler: FakeScheduler
    admin: Database
    bus: Client
    user: BillingServiceStub
    launcher: BillingServiceStub
    tenant: str
    job_id: str = field(default_factory=lambda: new_id("job"))
    t0: datetime = field(default_factory=lambda: datetime.now(UTC))
    epochs: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    @classmethod
    @contextlib.asynccontextmanager
    async def begin(
        cls,
        service: OneService,
        *,
        allocator: FakeAllocator,
        scheduler: FakeScheduler,
        admin: Database,
        nats: NatsForTests,
    ) -> AsyncIterator["Story"]:
        """Connect everybody."""
        address = f"127.0.0.1:{service.port}"
        bus = await _connected(nats)
        async with (
            channel(address, Identity("gateway", KEYS["gateway"][0])) as user,
            channel(address, Identity("scheduler", KEYS["scheduler"][0])) as launcher,
        ):
            yield cls(
                service=service,
                allocator=allocator,
                scheduler=scheduler,
                admin=admin,
                bus=bus,
                user=BillingServiceStub(user),
                launcher=BillingServiceStub(launcher),
                tenant=f"tenant-{next(_numbers)}",
            )
        await bus.close()

    def at(self, seconds: float) -> datetime:
        """Return an instant of the story."""
        return self.t0 + timedelta(seconds=seconds)

    async def ask(
        self, method: Any, request: Any, *, role: str = "member", tenant: str | None = None
    ) -> Any:
        """Call on behalf of the tenant, with errors of ours."""
        whose = self.tenant if tenant is None else tenant
        with acting_for(whose, principal="ana", role=role), raises_platform_errors():
            return await method(request)

    async def hold(
        self,
        max_cost: str = "100",
        *,
        ordinal: int = 1,
        job_id: str | None = None,
        tiers: Sequence[str] = ("base",),
        max_duration: float | None = None,
    ) -> pb.PlaceHoldResponse:
        """Place a hold on the tier base; the story's clock begins with it."""
        request = pb.PlaceHoldRequest(
            job_id=job_id or self.job_id,
            ordinal=ordinal,
            max_cost=euros(max_cost),
            tiers=tiers,
            gpu_count=1,
        )
        if max_duration is not None:
            request.max_duration.FromTimedelta(timedelta(seconds=max_duration))
        placed: pb.PlaceHoldResponse = await self.ask(self.launcher.PlaceHold, request)
        self.t0 = await self.now()
        return placed

    async def now(self) -> datetime:
        """Return billing's clock."""
        async with self.admin.connection() as conn:
            time: datetime = await conn.fetchval("SELECT clock.now()")
        return time

    def lease(self, running: float | None = 0, end: float | None = None, **fields: Any) -> Lease:
        """A lease of the job, granted at the story's beginning; instants are seconds."""
        times = {
            "running_time": running,
            "end_time": end,
            "grant_time": fields.pop("granted", 0),
            **{
                f"{name}_time": fields.pop(name)
                for name in ("alive", "stop", "committed")
                if name in fields
            },
        }
        if "funded" in fields:
            times["funded_until"] = fields.pop("funded")
        known = {name: None if time is None else self.at(time) for name, time in times.items()}
        values: dict[str, Any] = {
            "lease_id": new_id("lease"),
            "tenant": self.tenant,
            "project": "default",
            "job_id": self.job_id,
            "attempt": 1,
            "epoch": next(self.epochs),
            "tier": "base",
            "gpu_count": 1,
            "version": 2,
            "phase": LeasePhase.RUNNING,
        }
        return Lease(**{**values, **known, **fields})

    def closed(
        self, running: float | None, end: float | None, reason: str = "COMPLETED", **fields: Any
    ) -> Lease:
        """A lease that is over."""
        values = {"phase": LeasePhase.CLOSED, "close_reason": reason, "version": 9} | fields
        return self.lease(running, end, **values)

    async def tell(self, lease: Lease, *, times: int = 1, event_id: str | None = None) -> str:
        """Publish what a lease is; several times is one event delivered again and again."""
        event_id = event_id or str(event_uuid())
        model: type[LeaseEvent] = LeasePhaseChanged if lease.is_open else LeaseClosed
        event = model(tenant=lease.tenant, lease=_snapshot(lease))
        for _ in range(times):
            await self._publish(event, event_id=event_id, sequence=lease.version)
        return event_id

    async def tell_finished(self, *, version: int = 5, after: float | None = None) -> None:
        """Publish that the job rests; by billing's clock, unless said how far into the story."""
        time = await self.now() if after is None else self.at(after)
        event = JobFinished(
            tenant=self.tenant,
            job_id=self.job_id,
            project="default",
            name="a job",
            run_ordinal=1,
            state="STOPPED",
            end_reason="USER_STOPPED",
            message="",
            finish_time=time,
        )
        await self._publish(event, event_id=str(event_uuid()), sequence=version)

    async def publish(self, subject: str, body: bytes) -> None:
        """Publish anything."""
        await self.bus.jetstream().publish(subject, body)

    async def _publish(
        self, event: LeaseEvent | JobFinished, *, event_id: str, sequence: int
    ) -> None:
        envelope = Envelope(
            event_id=event_id,
            source="/services/story",
            type=event.type_name(),
            subject_id=event.subject_id,
            tenant=event.tenant,
            sequence=sequence,
            time=datetime.now(UTC),
            traceparent=None,
            data=event,
        )
        # No Nats-Msg-Id: the broker's window must not be what makes a repetition harmless.
        await self.publish(subjects.build(event), codec.encode(envelope))

    async def told(self, count: int) -> None:
        """Wait until everything published about this tenant was taken in or parked."""

        async def is_told() -> bool:
            info = await self.bus.jetstream().consumer_info("LEASES", "billing-lease")
            other = await self.bus.jetstream().consumer_info("JOBS", "billing-job")
            waiting = (info.num_pending or 0) + (info.num_ack_pending or 0)
            return waiting + (other.num_pending or 0) + (other.num_ack_pending or 0) <= count

        await until(is_told)

    async def taken_in(self, *event_ids: str) -> int:
        """Return how many of these events billing remembers."""
        async with self.admin.connection() as conn:
            count: int = await conn.fetchval(
                "SELECT count(*) FROM billing.inbox"
                " WHERE consumer = 'billing-lease' AND event_id = ANY ($1::uuid[])",
                event_ids,
            )
        return count

    async def cost(self) -> pb.Cost:
        """Return what the job has cost."""
        request = pb.GetCostRequest(job_id=self.job_id)
        found: pb.GetCostResponse = await self.ask(self.user.GetCost, request)
        return found.cost

    async def until_cost(self, amount: str, *, seconds: int | None = None) -> pb.Cost:
        """Wait until that much is booked for the job; return its cost."""

        async def is_booked() -> bool:
            return await self.booked() == micros(amount)

        await until(is_booked)
        found = await self.cost()
        assert found.total.micros == micros(amount)
        assert seconds in {None, found.billed_seconds}
        return found

    async def booked(self) -> int:
        """Return what the ledger has as charged for the job, in micros."""
        return sum(
            {"charge": 1, "refund": -1}[one.kind] * one.entries[0].amount.micros
            for one in await self.ledger()
            if one.kind in {"charge", "refund"}
        )

    async def ledger(self, *, size: int = 500) -> list[pb.LedgerTransaction]:
        """Return the job's bookings, newest first."""
        request = pb.ListLedgerRequest(job_id=self.job_id, page=Page(page_size=size))
        found = await self.ask(self.user.ListLedger, request)
        return list(found.transactions)

    async def kinds(self) -> list[str]:
        """Return the kinds of the job's bookings, oldest first."""
        return [one.kind for one in reversed(await self.ledger())]

    async def until_settled(self) -> pb.Cost:
        """Wait until nothing is held for the job and nothing can change."""

        async def is_settled() -> pb.Cost | None:
            found = await self.cost()
            return None if found.is_provisional else found

        settled: pb.Cost = await until(is_settled)
        return settled

    async def balance(self) -> pb.GetBalanceResponse:
        """Return the tenant's credit."""
        found: pb.GetBalanceResponse = await self.ask(self.user.GetBalance, pb.GetBalanceRequest())
        return found

    async def until_back(self) -> None:
        """Wait until billing answers again."""

        async def answers() -> bool:
            try:
                await self.balance()
            except Unavailable:
                return False
            return True

        await until(answers)

    async def held(self) -> int:
        """Return what is held for the tenant, in micros."""
        return int((await self.balance()).held.micros)

    async def funding(self) -> pb.GetFundingResponse:
        """Return how long the job may compute."""
        request = pb.GetFundingRequest(job_id=self.job_id)
        found: pb.GetFundingResponse = await self.ask(self.launcher.GetFunding, request)
        return found

    async def settle(self) -> pb.Cost:
        """Ask for the last charge."""
        request = pb.SettleRequest(job_id=self.job_id)
        found: pb.SettleResponse = await self.ask(self.launcher.Settle, request)
        return found.cost

    async def reconcile(self) -> pb.ReconcileResponse:
        """Compare the tenant's leases with its ledger."""
        found: pb.ReconcileResponse = await self.ask(self.user.Reconcile, pb.ReconcileRequest())
        return found

    async def said(self, count: int) -> list[dict[str, Any]]:
        """Return what billing said of the job, once there is that much; else nothing."""
        stream = self.bus.jetstream()
        last = (await stream.stream_info("BILL")).state.last_seq
        bodies = [
            json.loads((await stream.get_msg("BILL", number)).data or b"{}")
            for number in range(1, last + 1)
        ]
        found = [body for body in bodies if body["subject"] == self.job_id]
        return found if len(found) >= count else []

    def later(self, lease: Lease, **changes: Any) -> Lease:
        """Return a newer version of a lease; times are seconds."""
        times = {
            name: self.at(value) if isinstance(value, int | float) else value
            for name, value in changes.items()
            if name.endswith(("_time", "_until"))
        }
        return replace(lease, **{"version": lease.version + 1} | changes | times)


async def _connected(server: NatsForTests) -> Client:
    return await nats.connect(server.url, user=server.user, password=server.password)


def _snapshot(lease: Lease) -> LeaseSnapshot:
    return LeaseSnapshot(
        lease_id=lease.lease_id,
        job_id=lease.job_id,
        project=lease.project,
        run_id="run_1",
        attempt=lease.attempt,
        epoch=lease.epoch,
        node_id="node_1",
        tier=lease.tier,
        gpu_count=lease.gpu_count,
        phase=lease.phase,
        close_reason=lease.close_reason,
        grant_time=lease.grant_time,
        running_time=lease.running_time,
        end_time=lease.end_time,
        alive_time=lease.alive_time,
        stop_time=lease.stop_time,
        funded_until=lease.funded_until,
        committed_time=lease.committed_time,
    )
