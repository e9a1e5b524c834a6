"""Requests by HTTP: who gets in, what is refused by name, and what every refusal looks like."""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from lehr.client import AsyncClient
from tests.integration.catalog.test_datasets import chat, write
from tests.integration.gateway.uploading import (
    DATASETS,
    MODELS,
    address_of,
    begun,
    refusal,
    sent,
    settled,
)
from tests.support.doors import FIRST_KEY, a_rest_client
from tests.support.one_service import OneService

FILE = {"name": "train.jsonl", "size_bytes": 10, "sha256": "0" * 64}
GOOD: dict[str, Any] = {"name": "good", "files": [FILE]}

#: Ends of addresses below a dataset, with the method that they take.
BELOW = (
    ("GET", ""),
    ("DELETE", ""),
    ("POST", "/commit"),
    ("GET", "/content"),
    ("GET", "/files/train.jsonl/content"),
    ("PUT", "/files/train.jsonl/parts/0"),
)


@pytest.mark.parametrize(
    "header",
    [None, "", "Bearer", "Basic eA==", "Bearer lehr_sk_wrong", "Bearer " + "x" * 4000],
)
async def test_without_a_key_that_works_nobody_gets_in(
    gateway: OneService, header: str | None
) -> None:
    headers = {} if header is None else {"authorization": header}
    async with httpx.AsyncClient(base_url=gateway.rest, headers=headers, trust_env=False) as http:
        for path in (DATASETS, "/nothing", f"{MODELS}/x/commit"):
            answer = await http.get(path)

            error = refusal(answer, 401)
            assert (error["code"], error["reason"]) == ("invalid_api_key", "API_KEY_REFUSED")
            assert answer.headers["www-authenticate"] == "Bearer"
            assert FIRST_KEY not in answer.text


async def test_health_and_the_description_need_no_key(gateway: OneService) -> None:
    async with httpx.AsyncClient(base_url=gateway.rest, trust_env=False) as http:
        health, document = await http.get("/health"), await http.get("/openapi.json")

    assert health.json() == {"status": "ok"}
    described = document.json()["paths"][DATASETS]["post"]
    assert described["security"] == [{"HTTPBearer": []}]
    assert set(described["responses"]) == {"200", "default"}


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({**GOOD, "colour": "red"}, "colour"),
        ({**GOOD, "project": "elsewhere"}, "project"),
        ({**GOOD, "files": [{**FILE, "url": "http://127.0.0.1"}]}, "files.0.url"),
        ({**GOOD, "files": [{**FILE, "size_bytes": "10"}]}, "files.0.size_bytes"),
        ({**GOOD, "files": [{**FILE, "size_bytes": 2**63}]}, "files.0.size_bytes"),
        ({**GOOD, "files": [{**FILE, "size_bytes": -1}]}, "files.0.size_bytes"),
        ({**GOOD, "files": [{**FILE, "name": 7}]}, "files.0.name"),
        ({**GOOD, "files": "train.jsonl"}, "files"),
        ({**GOOD, "columns": ["prompt"]}, "columns"),
        ({**GOOD, "acknowledge_license": "yes"}, "acknowledge_license"),
        ({"name": "good"}, "files"),
        ([GOOD], "body"),
        (None, "body"),
    ],
)
async def test_a_wrong_field_is_refused_by_its_name(
    rest: httpx.AsyncClient, body: Any, param: str
) -> None:
    error = refusal(await rest.post(DATASETS, json=body), 400)

    assert (error["reason"], error["type"]) == ("REQUEST_REFUSED", "invalid_request_error")
    assert error["param"] == param
    assert error["message"].startswith(f"{param}: ")
    assert error["fields"][0]["field"] == param


@pytest.mark.parametrize("body", [b"{", b"", b"\xff\xfe", b"[" * 100_000, b'{"name": "\\ud800"'])
async def test_a_body_that_is_no_json_is_refused(rest: httpx.AsyncClient, body: bytes) -> None:
    headers = {"content-type": "application/json"}

    error = refusal(await rest.post(DATASETS, content=body, headers=headers), 400)

    assert error["reason"] == "REQUEST_REFUSED"


@pytest.mark.parametrize(
    "text", ["\ud800", "\0", "a\0b", "../../etc/passwd", "x" * 100_000, "\u202e", "'; DROP --", "%"]
)
@pytest.mark.parametrize("field", ["name", "license", "origin", "file", "column", "key"])
async def test_hostile_text_is_refused_or_kept_and_breaks_nothing(
    rest: httpx.AsyncClient, field: str, text: str
) -> None:
    body = {
        "file": {**GOOD, "files": [{**FILE, "name": text}]},
        "column": {**GOOD, "columns": {"prompt": text, "completion": "b"}},
        "key": {**GOOD, "columns": {text: "a"}},
    }.get(field, {**GOOD, field: text})

    # As httpx would not send half a surrogate pair: escaped.
    answer = await rest.post(
        DATASETS, content=json.dumps(body), headers={"content-type": "application/json"}
    )

    assert answer.status_code == 200 or refusal(answer, 400)["fields"]


@pytest.mark.parametrize(
    "name",
    ["..%2F..%2Fetc%2Fpasswd", "%00", "a%00b", "%ff%fe", "x" * 5000, "%F0%9F%92%A9", "'%20OR%201"],
)
async def test_hostile_names_in_addresses_are_refused_in_words(
    rest: httpx.AsyncClient, tmp_path: Path, name: str
) -> None:
    path = write(tmp_path, chat("hostile", "a"))
    upload = await begun(rest, "hostile", path)

    for method, end in BELOW:
        answer = await rest.request(method, f"{DATASETS}/{name}{end}")
        assert answer.status_code in (400, 404), f"{method} {end}: {answer.text}"
        assert refusal(answer, answer.status_code)["message"]
    part = await rest.put(f"{DATASETS}/{upload['id']}/files/{name}/parts/0", content=b"x")
    assert part.status_code in (400, 404)
    assert refusal(part, part.status_code)["message"]


@pytest.mark.parametrize("number", ["-1", "x", "1.5", str(2**32), "9" * 400, "%00"])
async def test_a_number_of_a_part_is_a_number(rest: httpx.AsyncClient, number: str) -> None:
    address = f"{DATASETS}/ds_{'0' * 26}/files/train.jsonl/parts/{number}"

    assert refusal(await rest.put(address, content=b"x"), 400)["param"] == "number"


@pytest.mark.parametrize(
    ("query", "param"),
    [("limt=5", "limt"), ("limit=0", "limit"), ("limit=501", "limit"), ("after=%00", None)],
)
async def test_a_wrong_query_is_refused(
    rest: httpx.AsyncClient, query: str, param: str | None
) -> None:
    assert refusal(await rest.get(f"{DATASETS}?{query}"), 400)["param"] == param


async def test_addresses_and_methods_that_there_are_not_are_told(rest: httpx.AsyncClient) -> None:
    address = await rest.get("/v1/lehr/nothing")
    slash = await rest.get(f"{DATASETS}/")
    method = await rest.patch(DATASETS)

    assert refusal(address, 404)["reason"] == "ROUTE_UNKNOWN"
    assert refusal(slash, 404)["reason"] == "ROUTE_UNKNOWN"
    assert refusal(method, 405)["reason"] == "METHOD_UNKNOWN"
    assert set(method.headers["allow"].split(", ")) <= {"GET", "POST"}


async def test_a_body_that_is_read_as_a_whole_has_a_limit(rest: httpx.AsyncClient) -> None:
    answer = await rest.post(
        DATASETS, content=b" " * (2**20 + 1), headers={"content-type": "application/json"}
    )

    assert refusal(answer, 413)["facts"] == {"bytes_max": str(2**20)}


async def test_many_wrong_fields_are_told_and_how_many_more_there_are(
    rest: httpx.AsyncClient,
) -> None:
    many = {f"field-{number}-{'x' * 500}": 1 for number in range(200)}

    answer = await rest.post(DATASETS, json={**GOOD, **many})

    error = refusal(answer, 400)
    assert len(error["fields"]) == 21
    assert error["fields"][-1]["description"] == "... and 180 more"
    assert len(answer.content) < 20_000


async def test_a_requests_id_is_the_callers_or_ours(rest: httpx.AsyncClient) -> None:
    mine = await rest.get(DATASETS, headers={"x-request-id": "req-of-mine"})
    long = await rest.get(DATASETS, headers={"x-request-id": "x" * 129})
    ours = await rest.get(DATASETS, headers={"x-request-id": "two words"})

    assert mine.headers["x-request-id"] == "req-of-mine"
    assert ours.headers["x-request-id"].startswith("req_")
    assert long.headers["x-request-id"].startswith("req_")


async def test_what_belongs_to_another_tenant_or_project_is_answered_like_what_is_not_there(
    gateway: OneService, rest: httpx.AsyncClient, client: AsyncClient, tmp_path: Path
) -> None:
    path = write(tmp_path, chat("foreign", "a"))
    upload = await begun(rest, "foreign", path)
    unknown = "ds_" + "0" * 26
    for given in ({"tenant": "acme"}, {"project": "elsewhere"}):
        made = await client.keys.create("stranger", **given)
        async with a_rest_client(gateway.rest, made.secret) as stranger:
            for method, end in BELOW:
                answers = [
                    await stranger.request(method, f"{DATASETS}/{entry}{end}", content=b"x")
                    for entry in (upload["id"], unknown)
                ]

                told = [one.text.replace(upload["id"], unknown) for one in answers]
                assert told[0] == told[1]
                assert answers[0].status_code == (200 if method == "DELETE" else 404)
            by_name = await stranger.get(f"{DATASETS}/foreign")
            assert refusal(by_name, 404)["reason"] == "DATASET_NOT_FOUND"
            assert (await stranger.get(DATASETS)).json()["data"] == []

    await sent(rest, await begun(rest, "foreign", path), path)
    assert (await settled(rest, upload["id"]))["state"] == "READY"


async def test_the_project_is_that_of_the_key(
    gateway: OneService, client: AsyncClient, tmp_path: Path
) -> None:
    made = await client.keys.create("of b", project="b")
    path = write(tmp_path, chat("mine", "a"))

    async with a_rest_client(gateway.rest, made.secret) as rest:
        upload = await begun(rest, "in-b", path)
        address = address_of(upload, path.name, 0)
        assert (await rest.put(address, content=path.read_bytes())).status_code == 200
        assert (await settled(rest, upload["id"]))["name"] == "in-b"

    assert address.startswith(DATASETS)
    assert "in-b" not in [one.name for one in await client.datasets.list()]
