"""Plan a job: ask everybody, refuse what cannot be, freeze the rest."""

from __future__ import annotations

import asyncio

from lehr.errors import FieldViolation
from lehr.training.spec import JobSpec
from services.scheduler.domain import admission
from services.scheduler.domain.commands import Owner
from services.scheduler.domain.errors import PlanExpired
from services.scheduler.domain.placement import Tier
from services.scheduler.domain.plan import Offer, Plan, Resolved, make_plan, resolve_spec
from services.scheduler.ports import Ports
from services.scheduler.storage import plans
from services.scheduler.storage.sql import now as now_of


async def plan_job(spec: JobSpec, owner: Owner, *, ports: Ports) -> Plan:
    """Return the plan of a spec and keep it; nothing is spent.

    Raises:
        JobRefused: the job can never run as it is asked for.
    """
    admission.check_spec(spec, script_allowed=ports.rules.script_allowed)
    tiers = await ports.peers.tiers()
    # Before the rows are counted, which is slow, and before the price of what does not exist.
    admission.check_capacity(spec, tiers)
    resolved, offers = await asyncio.gather(
        ports.peers.resolve(spec), _offers(spec, tiers, ports=ports)
    )
    admission.check_rows(spec, resolved)
    return await _keep(spec, owner, resolved=resolved, offers=offers, tiers=tiers, ports=ports)


async def plan_of(plan_digest: str, owner: Owner, *, ports: Ports) -> Plan:
    """Return a plan that can be launched.

    Raises:
        PlanNotFound, PlanExpired: it cannot.
    """
    async with ports.db.connection() as conn:
        plan = await plans.get(conn, owner.tenant, owner.project, plan_digest)
        now = await now_of(conn)
    if plan.expire_time <= now:
        raise PlanExpired(plan_digest, plan.expire_time.isoformat())
    return plan


async def _offers(spec: JobSpec, tiers: dict[str, Tier], *, ports: Ports) -> list[Offer]:
    prices = await ports.peers.prices(spec.tiers)
    told = "has no price; an operator must publish one, or use another tier"
    admission.refuse(
        [
            FieldViolation(field="tier", description=f"{tier} {told}")
            for tier in spec.tiers
            if tier not in prices
        ]
    )
    return [
        Offer(
            tier=tier,
            price=prices[tier],
            memory_bytes=tiers[tier].memory_bytes,
            free_count=tiers[tier].free_count,
        )
        for tier in spec.tiers
    ]


async def _keep(
    spec: JobSpec,
    owner: Owner,
    *,
    resolved: Resolved,
    offers: list[Offer],
    tiers: dict[str, Tier],
    ports: Ports,
) -> Plan:
    async with ports.db.transaction() as conn:
        now = await now_of(conn)
        plan = make_plan(
            resolve_spec(spec, resolved.data),
            resolved,
            owner=(owner.tenant, owner.project),
            offers=offers,
            warnings=admission.warnings_of(spec, resolved, tiers),
            times=(now, now + ports.rules.plan_kept),
        )
        await plans.save(conn, plan)
    return plan
