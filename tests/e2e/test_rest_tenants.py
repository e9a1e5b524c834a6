"""Every route of HTTP, for two tenants and two projects: what belongs to one is not there."""

from unittest.mock import NonCallableMock

import httpx
import pytest
from fastapi.routing import iter_route_contexts

from services.gateway.rest.app import application
from tests.e2e.world import World
from tests.support.doors import a_rest_client

PARTS = "/files/{file}/parts/{number}"
CONTENT = "/files/{file}/content"

#: Routes that name a thing, and what the name in them is of.
NAMED = {
    ("GET", "/v1/lehr/datasets/{dataset}"): "dataset",
    ("DELETE", "/v1/lehr/datasets/{dataset_id}"): "dataset",
    ("POST", "/v1/lehr/datasets/{dataset_id}/commit"): "dataset",
    ("PUT", f"/v1/lehr/datasets/{{dataset_id}}{PARTS}"): "dataset",
    ("GET", "/v1/lehr/datasets/{dataset}/content"): "dataset",
    ("GET", f"/v1/lehr/datasets/{{dataset}}{CONTENT}"): "dataset",
    ("GET", "/v1/lehr/models/{model}"): "model",
    ("DELETE", "/v1/lehr/models/{model_id}"): "model",
    ("POST", "/v1/lehr/models/{model_id}/commit"): "model",
    ("PUT", f"/v1/lehr/models/{{model_id}}{PARTS}"): "model",
    ("GET", f"/v1/lehr/models/{{model}}{CONTENT}"): "model",
}

#: Routes that answer with a list of the caller's own.
LISTS = {("GET", "/v1/lehr/datasets"), ("GET", "/v1/lehr/models")}

#: Routes that make something for the caller.
MAKE = {("POST", "/v1/lehr/datasets"), ("POST", "/v1/lehr/models")}

#: Routes that need no key.
OPEN = {("GET", "/health"), ("GET", "/openapi.json")}

UNKNOWN = {"dataset": "ds_" + "0" * 26, "model": "model_" + "0" * 26}

STRANGERS = [("stranger", "", "admin"), ("default", "elsewhere", "member")]


def routes() -> set[tuple[str, str]]:
    """Return method and address of every route."""
    app = application(NonCallableMock(), NonCallableMock(), idle_seconds=1)
    return {
        (method, str(route.path))
        for route in iter_route_contexts(app.routes)
        for method in (route.methods or {"*"}) - {"HEAD"}
    }


def test_every_route_has_its_place_in_the_matrix() -> None:
    assert routes() == set(NAMED) | LISTS | MAKE | OPEN


@pytest.fixture
async def things(world: World) -> dict[str, str]:
    """Ids of what the first tenant has."""
    return {
        "dataset": (await world.client.datasets.list())[0].dataset_id,
        "model": (await world.client.models.list())[0].model_id,
    }


@pytest.mark.parametrize(("tenant", "project", "role"), STRANGERS)
@pytest.mark.parametrize("route", sorted(NAMED))
async def test_a_foreign_id_is_answered_by_http_like_an_unknown_one(
    world: World,
    things: dict[str, str],
    route: tuple[str, str],
    tenant: str,
    project: str,
    role: str,
) -> None:
    noun = NAMED[route]

    async with world.of_tenant(tenant, project=project, role=role) as other:
        secret = other.client.jobs._connection.endpoint.api_key
        async with a_rest_client(rest_of(world), secret) as http:
            foreign = await asked(http, route, things[noun])
            unknown = await asked(http, route, UNKNOWN[noun])

    assert foreign.text.replace(things[noun], UNKNOWN[noun]) == unknown.text
    assert foreign.status_code == unknown.status_code == (200 if route[0] == "DELETE" else 404)


@pytest.mark.parametrize(("tenant", "project", "role"), STRANGERS)
async def test_lists_by_http_hold_nothing_of_another(
    world: World, things: dict[str, str], tenant: str, project: str, role: str
) -> None:
    async with world.of_tenant(tenant, project=project, role=role) as other:
        secret = other.client.jobs._connection.endpoint.api_key
        async with a_rest_client(rest_of(world), secret) as http:
            pages = [(await http.get(path)).json() for _, path in sorted(LISTS)]

    assert [page["data"] for page in pages] == [[], []]


async def test_what_strangers_asked_for_is_still_there(
    world: World, things: dict[str, str]
) -> None:
    async with a_rest_client(rest_of(world), world.stack.api_key) as http:
        for noun, thing in things.items():
            answer = await http.get(f"/v1/lehr/{noun}s/{thing}")
            assert answer.json()["state"] == "READY"


def rest_of(world: World) -> str:
    """Return the address of HTTP."""
    found = world.stack.status().rest
    assert found is not None
    return found


async def asked(http: httpx.AsyncClient, route: tuple[str, str], thing: str) -> httpx.Response:
    """Ask a route for a thing."""
    method, path = route
    for name in ("dataset", "dataset_id", "model", "model_id"):
        path = path.replace(f"{{{name}}}", thing)
    return await http.request(method, path.format(file="train.jsonl", number=0), content=b"x")
