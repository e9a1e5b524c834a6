"""What the checkpoint store asks of others, written by hand."""

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from lehr.api.scheduler.v1 import job_pb2, scheduler_pb2
from lehr.api.scheduler.v1.scheduler_pb2_grpc import (
    SchedulerServiceServicer,
    add_SchedulerServiceServicer_to_server,
)
from lehr.errors import NotFound
from lehr.rpc.auth import Verifier, caller
from lehr.rpc.server import Server
from tests.support.one_service import TRUSTED

_STORE = frozenset({"checkpoint_store"})


@dataclass
class FakeScheduler(SchedulerServiceServicer):
    """A scheduler that knows jobs by tenant, project and id, and remembers what it was asked."""

    states: dict[tuple[str, str, str], job_pb2.JobState.ValueType] = field(default_factory=dict)
    changes: list[scheduler_pb2.JobChange] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)

    def put(self, job_id: str, state: str, *, tenant: str = "acme") -> None:
        """Let a job be in a state, and list the change."""
        number = job_pb2.JobState.Value(f"JOB_STATE_{state}")
        self.states[tenant, "default", job_id] = number
        change = scheduler_pb2.JobChange(job_id=job_id, tenant=tenant, state=number)
        self.changes.append(change)

    async def GetJob(
        self, request: scheduler_pb2.GetJobRequest, context: Any
    ) -> scheduler_pb2.GetJobResponse:
        self.asked.append(request.job_id)
        who = caller()
        state = self.states.get((who.tenant, who.project, request.job_id))
        if state is None:
            raise NotFound(f"there is no job {request.job_id}")
        return scheduler_pb2.GetJobResponse(job=job_pb2.Job(job_id=request.job_id, state=state))

    async def ListJobsChangedSince(
        self, request: scheduler_pb2.ListJobsChangedSinceRequest, context: Any
    ) -> scheduler_pb2.ListJobsChangedSinceResponse:
        begin = int(request.cursor or 0)
        return scheduler_pb2.ListJobsChangedSinceResponse(
            changes=self.changes[begin:], next_cursor=str(len(self.changes))
        )


@contextlib.contextmanager
def a_scheduler(port: int) -> Iterator[FakeScheduler]:
    """Serve a scheduler on a port, in a thread of its own, for as long as the block lasts."""
    # The methods that are not written answer UNIMPLEMENTED.
    fake = FakeScheduler()  # type: ignore[abstract]
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    async def start() -> Server:
        server = Server(Verifier(TRUSTED))
        server.add_servicer(
            add_SchedulerServiceServicer_to_server,
            fake,
            service_name="lehr.api.scheduler.v1.SchedulerService",
            policy={"GetJob": _STORE, "ListJobsChangedSince": _STORE},
        )
        await server.start(f"127.0.0.1:{port}")
        return server

    try:
        server = asyncio.run_coroutine_threadsafe(start(), loop).result()
        yield fake
        asyncio.run_coroutine_threadsafe(server.stop(grace=0), loop).result()
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
