"""Calls over a real loopback connection: identity, policy, deadline, errors, trace."""

import asyncio
import logging
from datetime import timedelta
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from lehr.errors import (
    FieldViolation,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    PlatformError,
    ResourceExhausted,
    Unauthenticated,
    Unavailable,
)
from lehr.rpc import auth, context, tracing
from lehr.rpc.auth import acting_for
from lehr.rpc.client import raises_platform_errors, stream_of
from tests.integration.lehr_rpc.words import KEYS, SERVICE, Serve, WordsStub, words


async def echo(request: str, _context: Any) -> str:
    return request


async def whoami(_request: str, _context: Any) -> str:
    found = auth.caller()
    return f"{found.service} {found.principal} {found.tenant} {found.project} {found.role}"


async def test_the_caller_and_whom_it_acts_for_are_known_inside(serve: Serve) -> None:
    served = await serve(whoami)

    with acting_for("acme", "vision", principal="ana", role="member"):
        told = await served.gateway.Say("")

    assert told == "gateway ana acme vision member"


async def test_a_service_that_acts_for_nobody_is_itself(serve: Serve) -> None:
    served = await serve(whoami)

    assert await served.gateway.Say("") == "gateway gateway  default service"


async def test_all_four_kinds_of_method_are_served(serve: Serve) -> None:
    served = await serve(echo)

    assert await served.gateway.Say("one") == "one"
    assert [word async for word in served.gateway.Count("3")] == ["0", "1", "2"]
    assert await served.gateway.Join(words("a", "b")) == "a b"
    assert [word async for word in served.gateway.Echo(words("c", "d"))] == ["c", "d"]


async def test_a_call_without_a_token_is_refused(serve: Serve) -> None:
    served = await serve(echo)

    async with grpc.aio.insecure_channel(f"127.0.0.1:{served.port}") as plain:
        with pytest.raises(Unauthenticated, match="carries no"), raises_platform_errors():
            await WordsStub(plain).Say("x", timeout=5)


async def test_a_token_of_a_stranger_is_refused(serve: Serve) -> None:
    served = await serve(echo)

    with pytest.raises(Unauthenticated, match="not trusted here"), raises_platform_errors():
        await served.stranger.Say("x")


async def test_a_service_that_the_policy_does_not_name_is_refused(serve: Serve) -> None:
    served = await serve(echo)

    with pytest.raises(PermissionDenied) as refused, raises_platform_errors():
        await served.billing.Say("x")

    assert refused.value.reason == "CALLER_FORBIDDEN"
    assert refused.value.facts == {"service": "billing", "method": "Say"}


@pytest.mark.parametrize("name", ["Count", "Echo"])
async def test_streams_are_guarded_like_calls(serve: Serve, name: str) -> None:
    served = await serve(echo)
    request = {"Count": "3", "Echo": words("a")}[name]

    with pytest.raises(Unauthenticated):
        await anext(stream_of(getattr(served.stranger, name)(request)))


async def test_a_call_without_a_deadline_is_refused(serve: Serve) -> None:
    served = await serve(echo)
    token = auth.Identity("gateway", KEYS["gateway"][0]).token(auth.outgoing())

    async with grpc.aio.insecure_channel(f"127.0.0.1:{served.port}") as plain:
        with pytest.raises(InvalidArgument) as refused, raises_platform_errors():
            await WordsStub(plain).Say("x", metadata=((auth.TOKEN_KEY, token),))

    assert refused.value.reason == "DEADLINE_REQUIRED"


async def test_a_stream_needs_no_deadline(serve: Serve) -> None:
    served = await serve(echo)

    assert len([word async for word in served.gateway.Count("2")]) == 2


async def test_a_call_within_a_call_gets_less_time_than_is_left(serve: Serve) -> None:
    async def left(_request: str, called: Any) -> str:
        return str(called.time_remaining())

    inner = await serve(left)

    async def ask_on(request: str, _context: Any) -> str:
        told: str = await inner.gateway.Say(request)
        return told

    outer = await serve(ask_on)

    assert 1.0 < float(await outer.gateway.Say("x", timeout=5.0)) < 4.8


async def test_tenant_request_and_trace_are_carried_on_to_the_next_service(serve: Serve) -> None:
    seen: list[tuple[str, str | None, str | None]] = []

    async def note(_request: str, _context: Any) -> str:
        seen.append((auth.tenant_of_caller(), context.request_id(), tracing.current_traceparent()))
        return ""

    inner = await serve(note)

    async def note_and_ask_on(request: str, called: Any) -> str:
        await note(request, called)
        told: str = await inner.gateway.Say(request)
        return told

    outer = await serve(note_and_ask_on)
    with acting_for("acme"):
        await outer.gateway.Say("x")

    first, second = seen
    assert first == second
    assert first[0] == "acme"
    assert None not in first


async def test_an_error_arrives_with_reason_facts_fields_and_delay(serve: Serve) -> None:
    async def refuse(request: str, _context: Any) -> str:
        if request == "fields":
            raise InvalidArgument(
                "wrong", fields=[FieldViolation(field="r", description="too small")], r=0
            )
        raise ResourceExhausted("budget is spent", reason="BUDGET_SPENT", budget="5.00")

    served = await serve(refuse)

    with pytest.raises(ResourceExhausted) as spent, raises_platform_errors():
        await served.gateway.Say("x")
    with pytest.raises(InvalidArgument) as wrong, raises_platform_errors():
        await served.gateway.Say("fields")

    assert (spent.value.reason, spent.value.facts) == ("BUDGET_SPENT", {"budget": "5.00"})
    assert wrong.value.fields == [FieldViolation(field="r", description="too small")]


async def test_an_error_in_the_middle_of_a_stream_arrives_after_what_was_sent(
    serve: Serve,
) -> None:
    async def fail(_request: str, _context: Any) -> str:
        raise NotFound("the job is gone", job_id="job_1")

    served = await serve(fail)
    got: list[str] = []

    async def watch() -> None:
        async for word in stream_of(served.gateway.Count("2")):
            got.append(word)

    with pytest.raises(NotFound, match="the job is gone"):
        await watch()

    assert got == ["0", "1"]


@pytest.mark.parametrize("error", [KeyError("hunter2"), PlatformError("hunter2")])
async def test_the_text_of_our_own_mistake_stays_here(
    serve: Serve, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    async def break_down(_request: str, _context: Any) -> str:
        raise error

    served = await serve(break_down)
    with caplog.at_level(logging.ERROR), pytest.raises(grpc.aio.AioRpcError) as failed:
        await served.gateway.Say("x")

    assert failed.value.code() is grpc.StatusCode.INTERNAL
    assert failed.value.details() == "internal error"
    assert "hunter2" not in str(failed.value.trailing_metadata())


async def test_what_another_service_refuses_reaches_the_one_who_asked(serve: Serve) -> None:
    async def refuse(_request: str, _context: Any) -> str:
        raise ResourceExhausted("budget is spent", reason="BUDGET_SPENT")

    inner = await serve(refuse)

    async def ask_on(request: str, _context: Any) -> str:
        told: str = await inner.gateway.Say(request)
        return told

    outer = await serve(ask_on)

    with pytest.raises(ResourceExhausted) as refused, raises_platform_errors():
        await outer.gateway.Say("x")
    assert refused.value.reason == "BUDGET_SPENT"


async def test_a_call_that_another_service_forbids_us_is_our_fault_and_not_the_user_s(
    serve: Serve,
) -> None:
    inner = await serve(echo)

    async def ask_on(request: str, _context: Any) -> str:
        told: str = await inner.billing.Say(request)
        return told

    outer = await serve(ask_on)

    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await outer.gateway.Say("x")
    assert failed.value.code() is grpc.StatusCode.INTERNAL


async def test_an_unavailable_service_is_asked_again(serve: Serve) -> None:
    calls: list[str] = []

    async def third_time_lucky(request: str, _context: Any) -> str:
        calls.append(request)
        if len(calls) < 3:
            raise Unavailable("not yet", retry_in=timedelta(milliseconds=10))
        return "now"

    served = await serve(third_time_lucky)

    assert await served.gateway.Say("x") == "now"
    assert len(calls) == 3


async def test_anybody_may_ask_for_health_and_for_the_list_of_services(serve: Serve) -> None:
    served = await serve(echo)

    async with grpc.aio.insecure_channel(f"127.0.0.1:{served.port}") as plain:
        health = health_pb2_grpc.HealthStub(plain)
        answer = await health.Check(health_pb2.HealthCheckRequest(service=SERVICE))

    assert answer.status == health_pb2.HealthCheckResponse.SERVING


async def test_stopping_ends_watches_at_once_and_lets_calls_finish(serve: Serve) -> None:
    async def slow(request: str, _context: Any) -> str:
        await asyncio.sleep(3600 if request == "1" else 0.5)
        return "done"

    served = await serve(slow)
    watch = served.gateway.Count("1")
    assert await watch.read() == "0"
    call = asyncio.ensure_future(served.gateway.Say("x"))
    await asyncio.sleep(0.2)

    async with asyncio.timeout(4):
        await served.server.stop(grace=5)

    assert await call == "done"
    with pytest.raises(Unavailable, match="is stopping"):
        await anext(stream_of(watch))


async def test_a_client_that_leaves_ends_the_servicer_s_stream(serve: Serve) -> None:
    async def wait(_request: str, _context: Any) -> str:
        await asyncio.sleep(3600)
        return ""

    served = await serve(wait)
    watch = served.gateway.Count("1")
    assert await watch.read() == "0"

    watch.cancel()

    async with asyncio.timeout(30):
        while not served.servicer.ended:
            await asyncio.sleep(0.01)


async def test_a_policy_for_a_method_that_does_not_exist_is_a_mistake(serve: Serve) -> None:
    served = await serve(echo)

    with pytest.raises(ValueError, match="names Shout"):
        served.server.add_servicer(
            lambda *_: None, served.servicer, service_name="x", policy={"Shout": frozenset()}
        )


async def test_a_refusal_reaches_a_caller_that_is_still_sending(serve: Serve) -> None:
    served = await serve(echo)

    async def refuse(requests: Any, _context: Any) -> str:
        async for _ in requests:
            raise NotFound("there is no such thing")
        return ""

    served.servicer.join = refuse
    for _ in range(150):
        with pytest.raises(NotFound, match="no such thing"), raises_platform_errors():
            await served.gateway.Join(words(*["x" * 2**18] * 64), timeout=30)
