"""Metrics are declared once, with kind and meaning, and labels never hold ids."""

from typing import get_args

import pytest

from lehr.logs.metrics import METRICS, MetricName, Metrics


def test_every_name_is_described() -> None:
    assert set(METRICS) == set(get_args(MetricName))


@pytest.mark.parametrize("name", get_args(MetricName))
def test_a_label_never_holds_an_id(name: MetricName) -> None:
    assert [label for label in METRICS[name].labels if label.endswith(("id", "tenant"))] == []


@pytest.mark.parametrize("name", get_args(MetricName))
def test_a_length_of_time_has_its_unit_in_the_name(name: MetricName) -> None:
    assert METRICS[name].kind != "histogram" or name.endswith("_seconds")


def test_what_was_measured_is_shown() -> None:
    metrics = Metrics()

    metrics.add("rpc_handled", method="GetJob", code="OK")
    metrics.add("rpc_handled", 2, method="GetJob", code="OK")
    metrics.put("jobs", 4, state="queued")
    metrics.observe("node_sync_seconds", 0.02)

    page = metrics.render()[0].decode()
    assert 'lehr_rpc_handled_total{code="OK",method="GetJob"} 3.0' in page
    assert 'lehr_jobs{state="queued"} 4.0' in page
    assert "lehr_node_sync_seconds_count 1.0" in page


def test_a_gauge_goes_up_and_down() -> None:
    metrics = Metrics()

    metrics.add("rpc_in_flight", 1)
    metrics.add("rpc_in_flight", -1)

    assert "lehr_rpc_in_flight 0.0" in metrics.render()[0].decode()


def test_a_metric_is_used_as_its_kind() -> None:
    with pytest.raises(TypeError, match="observe it"):
        Metrics().add("node_sync_seconds")
    with pytest.raises(TypeError, match="not a gauge"):
        Metrics().put("points_ingested", 1)
    with pytest.raises(TypeError, match="not a histogram"):
        Metrics().observe("points_ingested", 1)


def test_forgotten_labels_are_our_mistake() -> None:
    with pytest.raises(ValueError, match="label"):
        Metrics().add("rpc_handled")
