"""Runs billing: the only place that reads settings and builds things."""

import sys
from functools import partial

from lehr.api.billing.v1.billing_pb2_grpc import add_BillingServiceServicer_to_server
from lehr.money import Money
from lehr.process import Process, run
from services.billing import rates
from services.billing.clients import AllocatorClient, SchedulerClient
from services.billing.domain.errors import RatesRefused
from services.billing.handlers import prices, reconciling, sweeping
from services.billing.handlers.accounts import Opening
from services.billing.servicer import POLICY, SERVICE, Servicer
from services.billing.settings import Settings
from services.billing.subscribers import subscribers


async def main(settings: Settings) -> None:
    """Serve until asked to end."""
    file = settings.rates_file or rates.default_file()
    first = rates.read(file)
    if first.currency != settings.currency:
        raise RatesRefused(
            f"the prices in {file} are in {first.currency} and BILLING_CURRENCY is "
            f"{settings.currency}; make them the same",
            file=file,
        )
    credit = Money.parse(settings.starting_credit, currency=settings.currency)
    process = Process("billing", settings)
    async with process:
        db = process.db
        await prices.publish_first(first.prices, currency=first.currency, db=db)
        leases = AllocatorClient(process.channel("gpu_allocator"))
        jobs = SchedulerClient(process.channel("scheduler"))
        servicer = Servicer(
            db=db,
            leases=leases,
            opening=Opening(currency=settings.currency, credit_micros=credit.micros),
            reconcile_pause=settings.reconcile_pause,
        )
        process.add_servicer(
            add_BillingServiceServicer_to_server, servicer, service_name=SERVICE, policy=POLICY
        )
        process.add_router(subscribers(db, leases))
        process.add_loop(
            "charge",
            partial(sweeping.charge_running, db=db, leases=leases),
            every=settings.charge_interval,
        )
        process.add_loop(
            "sweep",
            partial(
                sweeping.sweep,
                db=db,
                leases=leases,
                jobs=jobs,
                give_up_after=settings.hold_timeout,
            ),
            every=settings.sweep_interval,
        )
        process.add_loop(
            "reconcile",
            partial(
                reconciling.reconcile_all, db=db, leases=leases, pause=settings.reconcile_pause
            ),
            every=settings.reconcile_interval,
        )
        await process.serve()


if __name__ == "__main__":
    sys.exit(run(Settings, main))
