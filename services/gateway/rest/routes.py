"""What every route has in common: a key, and a body of strict JSON."""

from collections.abc import Callable, Coroutine
from typing import Any

import orjson
from fastapi import APIRouter, Request, Response
from fastapi.routing import APIRoute

from services.gateway.rest.auth import NEEDS_KEY


def routes(prefix: str, *, tag: str) -> APIRouter:
    """Return where routes of one kind are put."""
    return APIRouter(prefix=prefix, tags=[tag], dependencies=[NEEDS_KEY], route_class=_Route)


class _Request(Request):
    async def json(self) -> Any:
        # Not the standard library's: it takes half surrogate pairs, which no message can carry,
        # numbers that are none, and any depth.
        return orjson.loads(await self.body())


class _Route(APIRoute):
    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def strictly(request: Request) -> Response:
            return await handle(_Request(request.scope, request.receive))

        return strictly
