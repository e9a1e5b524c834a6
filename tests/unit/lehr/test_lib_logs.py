"""Logs tell what happened and mask what nobody may read there."""

import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
import structlog

from lehr.logs import bind_context, configure, get_logger
from lehr.logs.redaction import MASK, redact, redact_text


@pytest.fixture(autouse=True)
def _logging_as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers, root.level = handlers, level
    structlog.reset_defaults()
    structlog.contextvars.clear_contextvars()


def _last(captured: pytest.CaptureFixture[str]) -> dict[str, Any]:
    entry: dict[str, Any] = json.loads(captured.readouterr().err.splitlines()[-1])
    return entry


def _redacted(key: str, value: object) -> object:
    return redact(None, "info", {key: value})[key]


def test_an_entry_names_its_service_level_and_time(capsys: pytest.CaptureFixture[str]) -> None:
    configure("scheduler")

    get_logger().info("run_started", step=3)

    entry = _last(capsys)
    assert (entry["service"], entry["level"], entry["event"]) == (
        "scheduler",
        "info",
        "run_started",
    )
    assert (entry["step"], entry["time"][-1]) == (3, "Z")


def test_bound_fields_are_on_every_entry_inside_the_block_only(
    capsys: pytest.CaptureFixture[str],
) -> None:
    configure("scheduler")

    with bind_context(job_id="job_1"):
        get_logger().info("inside")
        inside = _last(capsys)
    get_logger().info("outside")

    assert inside["job_id"] == "job_1"
    assert "job_id" not in _last(capsys)


def test_fields_bound_without_a_block_stay(capsys: pytest.CaptureFixture[str]) -> None:
    configure("scheduler")

    bind_context(job_id="job_1")
    get_logger().info("later")

    assert _last(capsys)["job_id"] == "job_1"


def test_a_library_speaks_the_same_way(capsys: pytest.CaptureFixture[str]) -> None:
    configure("scheduler")

    logging.getLogger("library").warning("lost %s", "postgresql://u:canary@h/d")

    entry = _last(capsys)
    assert (entry["service"], entry["level"]) == ("scheduler", "warning")
    assert "canary" not in str(entry)


def test_a_traceback_is_told_without_its_secrets(capsys: pytest.CaptureFixture[str]) -> None:
    configure("scheduler")

    try:
        raise ConnectionError("postgresql://u:canary@h/d")
    except ConnectionError:
        get_logger().exception("connect_failed")

    entry = _last(capsys)
    assert "ConnectionError" in entry["exception"]
    assert entry["exception"].count("canary") == 0


def test_a_terminal_gets_columns_with_the_same_masks(capsys: pytest.CaptureFixture[str]) -> None:
    configure("scheduler", "console")

    get_logger().info("run_started", password="canary", step=3)

    line = capsys.readouterr().err
    assert "run_started" in line
    assert "canary" not in line


@pytest.mark.parametrize(
    "key",
    [
        "authorization",
        "Authorization",
        "password",
        "nats_password",
        "token",
        "access_token",
        "api_key",
        "s3_secret_key",
        "identity-key",
        "x-lehr-context",
        "cookie",
        "presigned_url",
        "prompt",
        "completions",
        "messages",
        "sample_text",
    ],
)
def test_a_secret_is_masked_by_its_key(key: str) -> None:
    assert _redacted(key, "canary") == MASK
    assert _redacted("request", {"deep": [{key: "canary"}]}) == {"deep": [{key: MASK}]}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("tokens_per_second", 12.5),
        ("token_count", 7),
        ("key", "models/t1/a"),
        ("object_key", "models/t1/a"),
        ("messages", 3),
        ("job_id", "job_1"),
        ("password", None),
    ],
)
def test_what_is_no_secret_stays(key: str, value: object) -> None:
    assert _redacted(key, value) == value


@pytest.mark.parametrize(
    "text",
    [
        "postgresql://role:canary@127.0.0.1/lehr",
        "nats://user:canary@h:4222",
        "https://s3/lehr/a?X-Amz-Credential=canary&X-Amz-Signature=canary",
        "https://h/a?token=canary&x=1",
        "Authorization: Bearer canary-canary",
        "eyJjanary.canary.canary",
        "token hf_canarycanarycanarycanary refused",
        "-----BEGIN PRIVATE KEY-----\ncanary\n-----END PRIVATE KEY-----\n",
    ],
)
def test_a_secret_inside_a_text_is_masked_by_its_look(text: str) -> None:
    assert "canary" not in redact_text(text)


def test_a_url_keeps_what_is_no_secret() -> None:
    assert redact_text("https://s3/lehr/a?x=1&X-Amz-Signature=s") == (
        f"https://s3/lehr/a?x=1&X-Amz-Signature={MASK}"
    )


def test_a_body_is_told_by_its_length() -> None:
    assert _redacted("body", b"12345") == "[5 bytes]"
