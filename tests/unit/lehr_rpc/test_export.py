"""Spans in OTLP's JSON form."""

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind

from lehr.rpc.export import as_otlp


def recorded() -> tuple[ReadableSpan, ...]:
    memory = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(memory))
    tracer = provider.get_tracer("test")
    with (
        tracer.start_as_current_span("outer", kind=SpanKind.SERVER),
        tracer.start_as_current_span("inner", attributes={"job_id": "job_1"}),
    ):
        pass
    return memory.get_finished_spans()


def test_a_span_keeps_its_ids_kind_and_times() -> None:
    [inner, outer] = as_otlp("billing", recorded())["resourceSpans"][0]["scopeSpans"][0]["spans"]

    assert (outer["name"], outer["kind"], "parentSpanId" in outer) == ("outer", 2, False)
    assert inner["parentSpanId"] == outer["spanId"]
    assert inner["traceId"] == outer["traceId"]
    assert (len(outer["traceId"]), len(outer["spanId"])) == (32, 16)
    assert int(outer["startTimeUnixNano"]) <= int(inner["startTimeUnixNano"])


def test_attributes_travel_and_the_service_is_named() -> None:
    request = as_otlp("billing", recorded())["resourceSpans"][0]
    [inner, _] = request["scopeSpans"][0]["spans"]

    assert inner["attributes"] == [{"key": "job_id", "value": {"stringValue": "job_1"}}]
    assert request["resource"]["attributes"] == [
        {"key": "service.name", "value": {"stringValue": "billing"}}
    ]
