"""Rows of plans: frozen as JSON, read back as they were."""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import datetime
from typing import Any

from lehr.money import Money
from lehr.postgres import Connection
from lehr.training.spec import JobSpec
from services.scheduler.domain.errors import PlanNotFound
from services.scheduler.domain.estimate import Estimate
from services.scheduler.domain.job import Inputs
from services.scheduler.domain.plan import DataFacts, Offer, Plan
from services.scheduler.storage.sql import SQL


async def save(conn: Connection, plan: Plan) -> None:
    """Keep a plan until it expires; made again, it lives longer."""
    await conn.execute(
        SQL["save_plan"],
        plan.tenant,
        plan.project,
        plan.plan_digest,
        json.dumps(_body(plan), allow_nan=False),
        plan.create_time,
        plan.expire_time,
    )


async def get(conn: Connection, tenant: str, project: str, plan_digest: str) -> Plan:
    """Return a plan, expired or not; raise PlanNotFound."""
    row = await conn.fetchrow(SQL["plan_of"], tenant, project, plan_digest)
    if row is None:
        raise PlanNotFound(plan_digest)
    body: dict[str, Any] = json.loads(row["body"])
    found = body["estimate"]
    return Plan(
        plan_digest=plan_digest,
        tenant=tenant,
        project=project,
        spec=JobSpec.model_validate(body["spec"]),
        inputs=Inputs(**body["inputs"]),
        data=DataFacts(**body["data"]),
        total_steps=body["total_steps"],
        offers=tuple(Offer(**one | {"price": Money(**one["price"])}) for one in body["offers"]),
        estimate=Estimate(
            **found
            | {"cost_low": Money(**found["cost_low"]), "cost_high": Money(**found["cost_high"])}
        ),
        destination=body["destination"],
        not_done=tuple(body["not_done"]),
        warnings=tuple(body["warnings"]),
        create_time=row["create_time"],
        expire_time=row["expire_time"],
    )


async def forget(conn: Connection, *, before: datetime) -> None:
    """Drop plans that expired before an instant."""
    await conn.execute(SQL["forget_plans"], before)


def _body(plan: Plan) -> dict[str, Any]:
    return {
        "spec": plan.spec.model_dump(mode="json"),
        "inputs": asdict(plan.inputs),
        "data": asdict(plan.data),
        "total_steps": plan.total_steps,
        "offers": [asdict(one) for one in plan.offers],
        "estimate": asdict(plan.estimate),
        "destination": plan.destination,
        "not_done": plan.not_done,
        "warnings": plan.warnings,
    }
