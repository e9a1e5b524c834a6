"""The process: its settings, its first prices, and what it shows of itself."""

import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from lehr.api.billing.v1 import billing_pb2 as pb
from lehr.stack.ports import LOOPBACK
from tests.integration.billing.story import Story, euros
from tests.support.one_service import KEYS
from tests.support.stack import DatabaseForTests

GOOD = {
    "BILLING_DATABASE_URL": "postgresql://billing:secret@127.0.0.1/lehr",
    "BILLING_IDENTITY_KEY": KEYS["billing"][0],
    "BILLING_STARTING_CREDIT": "12.50",
}


@pytest.mark.parametrize(
    ("changed", "status", "told"),
    [
        ({}, 0, "settings are good"),
        ({"BILLING_STARTING_CREDIT": "-1", "BILLING_CURRENCY": "euro"}, 2, "2 settings are wrong"),
        ({"BILLING_STARTING_CREDIT": "0.0000001"}, 2, "BILLING_STARTING_CREDIT"),
    ],
)
def test_settings_are_checked(changed: dict[str, str], status: int, told: str) -> None:
    checked = _run(GOOD | changed, "--check")

    assert checked.returncode == status
    assert told in checked.stdout + checked.stderr
    assert "secret" not in checked.stdout + checked.stderr


def test_prices_in_another_currency_are_refused(tmp_path: Path) -> None:
    rates = tmp_path / "rates.yaml"
    rates.write_text('currency: USD\nper_gpu_hour: {cpu: "1"}', encoding="utf-8")

    refused = _run(GOOD | {"BILLING_RATES_FILE": str(rates)})

    assert refused.returncode == 1
    assert "are in USD and BILLING_CURRENCY is EUR" in refused.stderr


async def test_a_restart_publishes_nothing_new(story: Story, database: DatabaseForTests) -> None:
    before = await story.ask(story.user.Quote, pb.QuoteRequest())
    story.service.control.stop()
    story.service.control.start()
    await story.until_back()

    after = await story.ask(story.user.Quote, pb.QuoteRequest())

    assert after == before
    assert after.rate_version == "1"
    assert [one.tier for one in after.rates] == ["base", "fast", "slow", "three", "video"]
    assert after.rates[0].price_per_gpu_hour == euros("3.60")


async def test_charged_seconds_and_differences_are_measured(story: Story) -> None:
    await story.hold("10")
    await story.tell(story.closed(0, 100))
    await story.until_cost("0.10")

    async with httpx.AsyncClient() as http:
        page = await http.get(f"http://{LOOPBACK}:{story.service.metrics_port}/metrics")

    assert 'lehr_charged_seconds_total{tier="base"} 100.0' in page.text
    assert "lehr_reconcile_differences" in page.text


def _run(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "services.billing", *arguments],
        env=environment | {"PYTHONPATH": ":".join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
