"""The W3C trace context of what is being done, carried through calls, outbox rows and events."""

import secrets
from collections.abc import Iterator
from contextlib import contextmanager

from opentelemetry import trace
from opentelemetry.trace import NonRecordingSpan, SpanContext, SpanKind, TraceFlags
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

_PROPAGATOR = TraceContextTextMapPropagator()
_TRACER = trace.get_tracer("lehr")


def current_traceparent() -> str | None:
    """Return the trace context to hand on, or None outside of any traced piece of work."""
    carrier: dict[str, str] = {}
    _PROPAGATOR.inject(carrier)
    return carrier.get("traceparent")


@contextmanager
def traced(name: str, *, kind: SpanKind, traceparent: str | None = None) -> Iterator[None]:
    """Do a piece of work in a span; without an exporter only the context is carried.

    With ``traceparent`` the work continues that trace. Work that continues none begins one, so that
    its events and calls can be told apart later even where nobody collects spans.
    """
    context = None
    if traceparent is not None:
        context = _PROPAGATOR.extract({"traceparent": traceparent})
    if not trace.get_current_span(context).get_span_context().is_valid:
        context = trace.set_span_in_context(NonRecordingSpan(_new_root()))
    with _TRACER.start_as_current_span(name, context=context, kind=kind):
        yield


def export(service: str, endpoint: str) -> None:
    """Send the spans of this process to an OTLP collector over HTTP."""
    # Imported late: the SDK costs memory that most installations have no use for.
    from lehr.rpc import export as exporting  # noqa: PLC0415

    exporting.start(service, endpoint)


def _new_root() -> SpanContext:
    return SpanContext(
        trace_id=secrets.randbits(128) or 1,
        span_id=secrets.randbits(64) or 1,
        is_remote=True,
        trace_flags=TraceFlags(TraceFlags.SAMPLED),
    )
