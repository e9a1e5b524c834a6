"""gRPC in: the gateway's own methods."""

from collections.abc import AsyncIterator
from datetime import datetime
from functools import partial
from typing import Any

from google.protobuf.timestamp_pb2 import Timestamp

from lehr.api.gateway.v1 import gateway_pb2 as pb
from lehr.api.gateway.v1 import gateway_pb2_grpc
from lehr.errors import FieldViolation, InvalidArgument
from lehr.postgres import Database
from lehr.rpc.auth import caller, tenant_of_caller
from lehr.rpc.times import instant_of
from services.gateway import handlers
from services.gateway.domain.keys import ApiKey
from services.gateway.events import Tail
from services.gateway.projects import Projects

TYPES_MAX = 100
"""Beginnings of types that one reader may ask for."""


class Servicer(gateway_pb2_grpc.GatewayServiceServicer):
    """Translates and nothing else."""

    def __init__(self, db: Database, tail: Tail, projects: Projects) -> None:
        self._db = db
        self._tail = tail
        self._projects = projects

    async def WhoAmI(self, request: pb.WhoAmIRequest, context: Any) -> pb.WhoAmIResponse:
        who = caller()
        return pb.WhoAmIResponse(
            tenant=who.tenant, project=who.project, principal=who.principal, role=who.role
        )

    async def CreateApiKey(
        self, request: pb.CreateApiKeyRequest, context: Any
    ) -> pb.CreateApiKeyResponse:
        expire_time = None
        if request.HasField("expire_time"):
            expire_time = instant_of(request.expire_time, field="expire_time")
        key, secret = await handlers.create_key(
            self._db,
            caller=caller(),
            name=request.name,
            tenant=request.tenant,
            project=request.project,
            role=request.role,
            expire_time=expire_time,
        )
        return pb.CreateApiKeyResponse(key=_to_proto(key), secret=secret)

    async def ListApiKeys(
        self, request: pb.ListApiKeysRequest, context: Any
    ) -> pb.ListApiKeysResponse:
        found = await handlers.list_keys(self._db, caller=caller())
        return pb.ListApiKeysResponse(keys=[_to_proto(key) for key in found])

    async def RevokeApiKey(
        self, request: pb.RevokeApiKeyRequest, context: Any
    ) -> pb.RevokeApiKeyResponse:
        key = await handlers.revoke_key(self._db, caller=caller(), key_id=request.key_id)
        return pb.RevokeApiKeyResponse(key=_to_proto(key))

    async def WatchEvents(
        self, request: pb.WatchEventsRequest, context: Any
    ) -> AsyncIterator[pb.WatchEventsResponse]:
        if len(request.types) > TYPES_MAX:
            rule = f"must hold at most {TYPES_MAX}; leave it empty for all"
            wrong = FieldViolation(field="types", description=rule)
            raise InvalidArgument(f"types {rule}", fields=[wrong])
        from_time = None
        if request.HasField("from_time"):
            from_time = instant_of(request.from_time, field="from_time")
        events = self._tail.watch(
            tenant_of_caller(),
            types=tuple(request.types),
            job_id=request.job_id,
            from_time=from_time,
            shows=partial(self._projects.shows, who=caller()),
        )
        async for event in events:
            yield pb.WatchEventsResponse(event_json=event)


def _to_proto(key: ApiKey) -> pb.ApiKey:
    return pb.ApiKey(
        key_id=key.key_id,
        name=key.name,
        tenant=key.tenant,
        project=key.project,
        role=key.role,
        prefix=key.prefix,
        create_time=_timestamp(key.create_time),
        expire_time=_timestamp(key.expire_time),
        revoke_time=_timestamp(key.revoke_time),
    )


def _timestamp(value: datetime | None) -> Timestamp | None:
    if value is None:
        return None
    stamp = Timestamp()
    stamp.FromDatetime(value)
    return stamp
