"""The services behind the gateway, called in the name of a key."""

from collections.abc import Callable, Mapping
from typing import Any

import grpc
import grpc.aio

from lehr.errors import Unavailable
from lehr.ids import event_uuid
from lehr.rpc.auth import TOKEN_KEY, ActingFor, Identity
from lehr.rpc.client import CHANNEL_OPTIONS
from lehr.rpc.context import REQUEST_ID_KEY, TRACEPARENT_KEY
from lehr.rpc.translate import DETAILS_KEY
from services.gateway.domain.keys import ApiKey

_PASSED_ON = (REQUEST_ID_KEY, TRACEPARENT_KEY)

Metadata = tuple[tuple[str, str], ...]


class ServiceAway(Unavailable):
    """The service behind the gateway does not answer."""

    reason = "SERVICE_AWAY"

    def __init__(self, service: str) -> None:
        super().__init__(f"the {service} does not answer; try again in a moment", service=service)


class Upstream:
    """Channels to the services, and what each call to one says of who makes it."""

    def __init__(self, identity: Identity, address_of: Callable[[str], str]) -> None:
        self._identity = identity
        self._address_of = address_of
        self._channels: dict[str, grpc.aio.Channel] = {}

    def channel(self, service: str) -> grpc.aio.Channel:
        """Return the channel to a service, always the same one."""
        if service not in self._channels:
            self._channels[service] = grpc.aio.insecure_channel(
                self._address_of(service), options=CHANNEL_OPTIONS
            )
        return self._channels[service]

    def metadata(self, key: ApiKey, given: Mapping[str, Any]) -> Metadata:
        """Return what a call carries; of ``given`` only request id and trace are passed on."""
        acting = ActingFor(
            principal=key.key_id, tenant=key.tenant, project=key.project, role=key.role
        )
        passed = {name: given[name] for name in _PASSED_ON if name in given}
        passed.setdefault(REQUEST_ID_KEY, f"req_{event_uuid().hex}")
        return ((TOKEN_KEY, self._identity.token(acting)), *passed.items())

    async def close(self) -> None:
        """Close the channels."""
        for channel in self._channels.values():
            await channel.close(None)


def details_of(error: grpc.aio.AioRpcError) -> tuple[tuple[str, Any], ...]:
    """Return the rich status of a failed call as trailing metadata; empty where there is none."""
    trailing: Any = error.trailing_metadata() or ()
    return tuple((name, value) for name, value in trailing if name == DETAILS_KEY)


def is_silence(error: grpc.aio.AioRpcError) -> bool:
    """Return whether no service said that: gRPC's own text then holds addresses of the inside."""
    return error.code() is grpc.StatusCode.UNAVAILABLE and not details_of(error)
