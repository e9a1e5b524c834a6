"""Which events of a tenant a key may see: those of its project, told by who owns the thing."""

from collections.abc import Callable, Mapping
from typing import Any

import grpc.aio

from lehr.api.catalog.v1 import catalog_pb2 as catalog
from lehr.api.catalog.v1.catalog_pb2_grpc import CatalogServiceStub
from lehr.api.scheduler.v1 import scheduler_pb2 as scheduler
from lehr.api.scheduler.v1.scheduler_pb2_grpc import SchedulerServiceStub
from lehr.errors import InvalidArgument, NotFound
from lehr.rpc.auth import Caller, acting_for
from lehr.rpc.client import raises_platform_errors

CACHE_SIZE = 50_000


class Projects:
    """Knows of a thing whether a project has it; asks its owner once, for that never changes."""

    def __init__(self, channel: Callable[[str], grpc.aio.Channel]) -> None:
        """``channel`` gives the way to another service."""
        self._channel = channel
        self._known: dict[tuple[str, str, str], bool] = {}

    async def shows(self, event: Mapping[str, Any], who: Caller) -> bool:
        """Return whether an event is for this caller.

        An admin sees the whole tenant's; anybody else what says its project, or is about a job, a
        model or a dataset that its owner shows to the caller. What names none of these stays
        hidden.

        Raises:
            Unavailable: the owner does not answer.
        """
        if who.only_project is None:
            return True
        data = _object(event.get("data"))
        about = {**data, **_object(data.get("lease"))}
        if isinstance(about.get("project"), str):
            return bool(about["project"] == who.project)
        for field in ("job_id", "model_id", "dataset_id"):
            if isinstance(about.get(field), str):
                return await self._has(who, field, about[field])
        return False

    async def _has(self, who: Caller, field: str, thing_id: str) -> bool:
        key = (who.tenant, who.project, thing_id)
        if key not in self._known:
            answer = await self._ask(who, field, thing_id)
            if len(self._known) >= CACHE_SIZE:
                self._known.clear()
            self._known[key] = answer
        return self._known[key]

    async def _ask(self, who: Caller, field: str, thing_id: str) -> bool:
        acting = acting_for(who.tenant, who.project, principal=who.principal, role=who.role)
        try:
            with acting, raises_platform_errors():
                match field:
                    case "job_id":
                        jobs = SchedulerServiceStub(self._channel("scheduler"))
                        await jobs.GetJob(scheduler.GetJobRequest(job_id=thing_id))
                    case "model_id":
                        models = CatalogServiceStub(self._channel("catalog"))
                        await models.GetModel(catalog.GetModelRequest(model=thing_id))
                    case _:
                        datasets = CatalogServiceStub(self._channel("catalog"))
                        asked = catalog.InspectDatasetRequest(dataset=thing_id)
                        await datasets.InspectDataset(asked)
        except (NotFound, InvalidArgument):
            return False
        return True


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
