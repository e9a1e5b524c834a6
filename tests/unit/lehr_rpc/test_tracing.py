"""The trace context without a collector."""

from opentelemetry.trace import SpanKind

from lehr.rpc.tracing import current_traceparent, traced

GIVEN = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def test_a_given_trace_is_carried_on() -> None:
    with traced("work", kind=SpanKind.SERVER, traceparent=GIVEN):
        assert current_traceparent() == GIVEN


def test_work_without_a_trace_begins_one_that_its_parts_share() -> None:
    with traced("work", kind=SpanKind.SERVER):
        outer = current_traceparent()
        with traced("part", kind=SpanKind.INTERNAL):
            inner = current_traceparent()

    assert outer is not None
    assert inner == outer


def test_two_pieces_of_work_have_two_traces() -> None:
    with traced("one", kind=SpanKind.SERVER):
        one = current_traceparent()
    with traced("two", kind=SpanKind.SERVER):
        two = current_traceparent()

    assert one != two


def test_a_broken_traceparent_is_replaced() -> None:
    with traced("work", kind=SpanKind.SERVER, traceparent="nonsense"):
        assert current_traceparent() is not None


def test_outside_of_any_work_there_is_no_trace() -> None:
    assert current_traceparent() is None
