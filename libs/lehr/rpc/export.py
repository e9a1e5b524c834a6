"""Spans to a collector: OTLP over HTTP in its JSON form; imported only where traces are wanted."""

import json
from collections.abc import Sequence
from typing import Any, cast

import urllib3
from opentelemetry import trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import SpanContext, SpanKind

EXPORT_SECONDS = 5.0

# OpenTelemetry protocol 1.x, trace.proto: Span.SpanKind counts from 1, the API from 0.
_KIND_OFFSET = 1


class JsonExporter(SpanExporter):
    """Posts batches of spans to ``<endpoint>/v1/traces``; what is not taken is dropped."""

    def __init__(self, service: str, endpoint: str) -> None:
        self._service = service
        self._url = f"{endpoint.rstrip('/')}/v1/traces"
        self._http = urllib3.PoolManager(num_pools=1, timeout=EXPORT_SECONDS, retries=False)

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Send one batch; runs in the processor's thread."""
        body = json.dumps(as_otlp(self._service, spans)).encode()
        try:
            answer = self._http.request(
                "POST", self._url, body=body, headers={"content-type": "application/json"}
            )
        except urllib3.exceptions.HTTPError:
            return SpanExportResult.FAILURE
        return SpanExportResult.SUCCESS if answer.status < 300 else SpanExportResult.FAILURE

    def shutdown(self) -> None:
        """Close the connection."""
        self._http.clear()


def start(service: str, endpoint: str) -> None:
    """Record spans from now on and send them to ``endpoint``."""
    provider = TracerProvider(resource=Resource.create({"service.name": service}))
    provider.add_span_processor(BatchSpanProcessor(JsonExporter(service, endpoint)))
    trace.set_tracer_provider(provider)


def as_otlp(service: str, spans: Sequence[ReadableSpan]) -> dict[str, Any]:
    """Return an ExportTraceServiceRequest in OTLP's JSON mapping."""
    return {
        "resourceSpans": [
            {
                "resource": {"attributes": [_attribute("service.name", service)]},
                "scopeSpans": [
                    {"scope": {"name": "lehr"}, "spans": [_span(span) for span in spans]}
                ],
            }
        ]
    }


def _span(span: ReadableSpan) -> dict[str, Any]:
    # An ended span always has one.
    own = cast(SpanContext, span.get_span_context())
    told: dict[str, Any] = {
        "traceId": f"{own.trace_id:032x}",
        "spanId": f"{own.span_id:016x}",
        "name": span.name,
        "kind": list(SpanKind).index(span.kind) + _KIND_OFFSET,
        # 64-bit integers are strings in protobuf's JSON.
        "startTimeUnixNano": str(span.start_time or 0),
        "endTimeUnixNano": str(span.end_time or 0),
        "attributes": [_attribute(key, value) for key, value in (span.attributes or {}).items()],
        "status": {"code": span.status.status_code.value},
    }
    if span.parent is not None:
        told["parentSpanId"] = f"{span.parent.span_id:016x}"
    return told


def _attribute(key: str, value: object) -> dict[str, Any]:
    return {"key": key, "value": {"stringValue": str(value)}}
