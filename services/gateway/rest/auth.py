"""The door: a request comes in by its key and goes out as an answer, whatever happens between."""

import asyncio
import re
from collections.abc import Mapping
from time import monotonic

from fastapi import Security
from fastapi.security import HTTPBearer
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lehr.errors import PlatformError
from lehr.ids import event_uuid
from lehr.logs import get_logger, metrics
from lehr.rpc.context import REQUEST_ID_KEY, TRACEPARENT_KEY
from services.gateway.admission import Admission
from services.gateway.rest.bodies import Body
from services.gateway.rest.errors import Stopping, answer_to
from services.gateway.upstream import Metadata, Upstream

OPEN_PATHS = frozenset({"/health", "/openapi.json"})
"""What anybody may ask."""

_PASSED_ON = {
    # As metadata of gRPC may hold it.
    REQUEST_ID_KEY: re.compile(r"[\x21-\x7e]{1,128}"),
    TRACEPARENT_KEY: re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}"),
}
_METADATA = "lehr.metadata"

#: For the OpenAPI document alone: whoever comes to a route was let in by the door.
NEEDS_KEY = Security(HTTPBearer(auto_error=False, description="An API key: lehr_sk_..."))


def metadata_of(scope: Scope) -> Metadata:
    """Return what calls to services carry for the request."""
    found: Metadata = scope[_METADATA]
    return found


class Door:
    """ASGI middleware around all routes; nothing that is raised inside goes further out."""

    def __init__(
        self, app: ASGIApp, *, admission: Admission, upstream: Upstream, idle_seconds: float
    ) -> None:
        """``idle_seconds`` is how long the next bytes of a body are waited for."""
        self._app = app
        self._admission = admission
        self._upstream = upstream
        self._idle_seconds = idle_seconds
        self._log = get_logger()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, given = monotonic(), _given(Headers(scope=scope))
        answer = _Answer(send, given[REQUEST_ID_KEY])
        body = Body(receive, idle_seconds=self._idle_seconds)
        body.enter(scope)
        try:
            await self._let_in(scope, body, answer, given)
        except ClientDisconnect:
            answer.status = 499
        except PlatformError as error:
            await self._refuse(scope, answer, error)
        except asyncio.CancelledError:
            # The server cancels what is in progress when it stops, and nobody waits for this task.
            await self._refuse(scope, answer, Stopping("this gateway is stopping; ask again"))
        except Exception as error:  # the edge: no text of ours may leak to a caller.
            self._log.error("request_failed", path=scope["path"], exc_info=error)
            await self._refuse(scope, answer, PlatformError("see the log"))
        finally:
            route = getattr(scope.get("route"), "path", "unknown")
            metrics.add("http_handled", route=route, status=str(answer.status))
            metrics.observe("http_handling_seconds", monotonic() - began, route=route)

    async def _let_in(
        self, scope: Scope, body: Body, answer: "_Answer", given: Mapping[str, str]
    ) -> None:
        if scope["path"] in OPEN_PATHS:
            await self._app(scope, body.receive, answer.send)
            return
        authorization = Headers(scope=scope).get("authorization")
        async with self._admission.one(authorization, is_stream=False) as key:
            scope[_METADATA] = self._upstream.metadata(key, given)
            await self._app(scope, body.receive, answer.send)

    async def _refuse(self, scope: Scope, answer: "_Answer", error: PlatformError) -> None:
        # Of an answer that has begun only the end can be withheld; the server then closes.
        if not answer.has_begun:
            await answer_to(error)(scope, _nothing, answer.send)


class _Answer:
    """What is sent to a caller, with the request's id on it."""

    def __init__(self, send: Send, request_id: str) -> None:
        self._send = send
        self._request_id = request_id
        self.has_begun = False
        self.status = 0

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.has_begun = True
            self.status = message["status"]
            MutableHeaders(scope=message)[REQUEST_ID_KEY] = self._request_id
        await self._send(message)


async def _nothing() -> Message:
    return {"type": "http.disconnect"}


def _given(headers: Headers) -> dict[str, str]:
    """Return what is passed on of a request's headers; an id of ours where it has none that can."""
    found = {
        name: headers[name]
        for name, form in _PASSED_ON.items()
        if form.fullmatch(headers.get(name, ""))
    }
    found.setdefault(REQUEST_ID_KEY, f"req_{event_uuid().hex}")
    return found
