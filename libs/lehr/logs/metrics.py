"""Every metric of the platform, by name, with kind, unit and meaning; labels never hold ids."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    generate_latest,
)

Kind = Literal["counter", "gauge", "histogram"]

MetricName = Literal[
    "rpc_handled",
    "rpc_handling_seconds",
    "rpc_in_flight",
    "events_published",
    "outbox_waiting",
    "outbox_oldest_seconds",
    "events_handled",
    "event_handling_seconds",
    "dead_letters",
    "loop_rounds",
    "loop_round_seconds",
    "database_failures",
    "object_bytes",
    "jobs",
    "jobs_finished",
    "queue_seconds",
    "leases",
    "gpus",
    "nodes",
    "node_sync_seconds",
    "checkpoints_committed",
    "checkpoint_commit_seconds",
    "points_ingested",
    "log_lines_ingested",
    "charged_seconds",
    "reconcile_differences",
    "agent_spool_bytes",
    "http_handled",
    "http_handling_seconds",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """What a metric measures."""

    kind: Kind
    meaning: str
    """A sentence with the unit, unless the name ends in one."""
    labels: tuple[str, ...] = ()
    """Names of labels; each has few values, known in advance."""


def _counter(meaning: str, *labels: str) -> Metric:
    return Metric(kind="counter", meaning=meaning, labels=labels)


def _gauge(meaning: str, *labels: str) -> Metric:
    return Metric(kind="gauge", meaning=meaning, labels=labels)


def _histogram(meaning: str, *labels: str) -> Metric:
    return Metric(kind="histogram", meaning=meaning, labels=labels)


METRICS: Mapping[MetricName, Metric] = {
    "rpc_handled": _counter("Calls answered, by gRPC code.", "method", "code"),
    "rpc_handling_seconds": _histogram("From a call's arrival to its answer.", "method"),
    "rpc_in_flight": _gauge("Calls being answered now."),
    "events_published": _counter("Events acknowledged by JetStream.", "type"),
    "outbox_waiting": _gauge("Events committed and not yet published."),
    "outbox_oldest_seconds": _gauge("Age of the oldest event that waits."),
    "events_handled": _counter("Deliveries by outcome: done, again, dead.", "consumer", "outcome"),
    "event_handling_seconds": _histogram("From a delivery to its outcome.", "consumer"),
    "dead_letters": _counter("Events given up, by consumer.", "consumer"),
    "loop_rounds": _counter("Rounds of a loop by outcome: done, failed.", "loop", "outcome"),
    "loop_round_seconds": _histogram("Length of one round.", "loop"),
    "database_failures": _counter("Transactions that failed, by reason.", "reason"),
    "object_bytes": _counter("Bytes moved to or from the object store.", "direction"),
    "jobs": _gauge("Jobs now, by state.", "state"),
    "jobs_finished": _counter("Jobs ended, by end reason.", "reason"),
    "queue_seconds": _histogram("From a job's creation to its first lease.", "tier"),
    "leases": _gauge("Leases now, by phase.", "phase"),
    "gpus": _gauge("GPUs now, by tier and whether they are held.", "tier", "use"),
    "nodes": _gauge("Nodes now, by state.", "state"),
    "node_sync_seconds": _histogram("Length of one SyncNode."),
    "checkpoints_committed": _counter("Checkpoints committed, by kind.", "kind"),
    "checkpoint_commit_seconds": _histogram("Length of one Commit, hashing included."),
    "points_ingested": _counter("Metric points stored."),
    "log_lines_ingested": _counter("Job log lines stored."),
    "charged_seconds": _counter("GPU seconds charged.", "tier"),
    "reconcile_differences": _gauge("Differences between ledger and leases; must be 0."),
    "agent_spool_bytes": _gauge("Reports on disk that are not acknowledged yet."),
    "http_handled": _counter("HTTP requests answered, by status.", "route", "status"),
    "http_handling_seconds": _histogram("From an HTTP request to its answer.", "route"),
}

PREFIX = "lehr_"

# From a local call to a commit of gigabytes.
_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 120, 600)


class Metrics:
    """The metrics of one process; those never touched are not shown."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry(auto_describe=True)
        self._made: dict[MetricName, Counter | Gauge | Histogram] = {}

    def add(self, name: MetricName, amount: float = 1, **labels: str) -> None:
        """Add to a counter, or to a gauge, where the amount may be negative."""
        metric = self._labelled(name, labels)
        if isinstance(metric, Histogram):
            raise TypeError(f"{name} is a histogram: observe it")
        metric.inc(amount)

    def put(self, name: MetricName, value: float, **labels: str) -> None:
        """Set a gauge."""
        metric = self._labelled(name, labels)
        if not isinstance(metric, Gauge):
            raise TypeError(f"{name} is not a gauge")
        metric.set(value)

    def observe(self, name: MetricName, seconds: float, **labels: str) -> None:
        """Record one length of time."""
        metric = self._labelled(name, labels)
        if not isinstance(metric, Histogram):
            raise TypeError(f"{name} is not a histogram")
        metric.observe(seconds)

    def render(self) -> tuple[bytes, str]:
        """Return the page for Prometheus and its content type."""
        return generate_latest(self.registry), CONTENT_TYPE_LATEST

    def _labelled(self, name: MetricName, labels: Mapping[str, str]) -> Counter | Gauge | Histogram:
        metric = self._made.get(name)
        if metric is None:
            metric = self._made[name] = self._make(name)
        return metric.labels(**labels) if labels else metric

    def _make(self, name: MetricName) -> Counter | Gauge | Histogram:
        what = METRICS[name]
        full = PREFIX + name
        match what.kind:
            case "counter":
                return Counter(full, what.meaning, what.labels, registry=self.registry)
            case "gauge":
                return Gauge(full, what.meaning, what.labels, registry=self.registry)
            case "histogram":
                return Histogram(
                    full, what.meaning, what.labels, registry=self.registry, buckets=_BUCKETS
                )


_metrics = Metrics()
add = _metrics.add
put = _metrics.put
observe = _metrics.observe
render = _metrics.render
