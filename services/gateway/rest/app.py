"""The routes as one application."""

from typing import Literal

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.responses import Response

from services.gateway.admission import Admission
from services.gateway.rest import datasets, models
from services.gateway.rest.auth import Door
from services.gateway.rest.errors import ErrorAnswer, answer_to, refusal_of, refusal_of_fields
from services.gateway.upstream import Upstream


class Health(BaseModel):
    """The gateway answers."""

    status: Literal["ok"] = "ok"


def application(admission: Admission, upstream: Upstream, *, idle_seconds: float) -> FastAPI:
    """Return the application; ``idle_seconds`` is how long more of a body is waited for."""
    app = FastAPI(
        title="Lehr",
        version="v1",
        # Its pages load scripts from elsewhere; the document itself is served.
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        responses={"default": {"model": ErrorAnswer, "description": "Refused."}},
        # Spans are begun by the services; the trace is passed on to them.
        telemetry={"tracing": False, "metrics": False},
    )
    app.state.upstream = upstream
    app.add_middleware(Door, admission=admission, upstream=upstream, idle_seconds=idle_seconds)
    app.include_router(datasets.router)
    app.include_router(models.router)

    @app.get("/health", tags=["health"])
    async def health() -> Health:
        """Answer that the gateway is there; needs no key."""
        return Health()

    @app.exception_handler(RequestValidationError)
    async def wrong_fields(_: Request, error: RequestValidationError) -> Response:
        return answer_to(refusal_of_fields(error.errors()))

    @app.exception_handler(HTTPException)
    async def not_served(request: Request, error: HTTPException) -> Response:
        return answer_to(
            refusal_of(error, request.method, request.url.path), dict(error.headers or {})
        )

    return app
