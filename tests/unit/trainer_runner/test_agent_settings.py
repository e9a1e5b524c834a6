"""What may be set, and what is refused before anything starts."""

from __future__ import annotations

from datetime import timedelta

import pytest

from lehr.settings import SettingsRefused
from services.trainer_runner.settings import Settings
from tests.support.one_service import KEYS


@pytest.fixture(autouse=True)
def _identity(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINER_RUNNER_IDENTITY_KEY", KEYS["trainer_runner"][0])


def test_durations_are_seconds_or_iso(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINER_RUNNER_SYNC_INTERVAL", "0.5")
    monkeypatch.setenv("TRAINER_RUNNER_STOP_GRACE", "PT3M")

    settings = Settings.load()

    assert settings.timing.sync_interval == 0.5
    assert settings.stop_grace == timedelta(minutes=3)


@pytest.mark.parametrize(
    ("name", "value"), [("PRETEND_GPUS", "h100-80gb:1"), ("WALL_CLOCK_OFFSET", "90")]
)
def test_test_hooks_are_refused_without_leave(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(f"TRAINER_RUNNER_{name}", value)

    with pytest.raises(SettingsRefused, match=f"TRAINER_RUNNER_{name}: needs LEHR_TEST_HOOKS"):
        Settings.load()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("CPU_SLOTS", "-1"),
        ("SYNC_INTERVAL", "0"),
        ("NODE_NAME", "Bad Name"),
        ("SPOOL_BYTES", "1"),
        ("SANDBOX", "full"),
        ("PRETEND_GPUS", "nonsense"),
    ],
)
def test_nonsense_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv("LEHR_TEST_HOOKS", "true")
    monkeypatch.setenv(f"TRAINER_RUNNER_{name}", value)

    with pytest.raises(SettingsRefused, match=f"TRAINER_RUNNER_{name}"):
        Settings.load()
