"""Settings are read once, and all mistakes are told together."""

import json
from collections.abc import Mapping

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from pydantic_settings import SettingsConfigDict

from lehr.settings import ServiceSettings, SettingsRefused, faults_file

KEY = Ed25519PrivateKey.generate()
PRIVATE = KEY.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
PUBLIC = KEY.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()

GOOD = {
    "SCHEDULER_DATABASE_URL": "postgresql://scheduler:pw@127.0.0.1:5432/lehr",
    "SCHEDULER_IDENTITY_KEY": PRIVATE,
}


class SchedulerSettings(ServiceSettings):
    """Settings as a service writes them."""

    model_config = SettingsConfigDict(env_prefix="SCHEDULER_")

    attempts: int = 5
    tiers: tuple[str, ...] = ("cpu",)


class RunnerSettings(ServiceSettings):
    """A service without a database that signs URLs."""

    model_config = SettingsConfigDict(env_prefix="RUNNER_")
    needs_database = False
    needs_objects = True


class Environment:
    """Sets variables, with none of ours left over from outside."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._patch = patch

    def set(self, variables: Mapping[str, str]) -> None:
        for name, value in variables.items():
            self._patch.setenv(name, value)


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> Environment:
    for name in ("LEHR_MODE", "LEHR_TEST_HOOKS", "LEHR_FAULTS_FILE", "LEHR_LOG_FORMAT"):
        monkeypatch.delenv(name, raising=False)
    return Environment(monkeypatch)


def _wrong(refused: SettingsRefused) -> list[str]:
    return [violation.field for violation in refused.fields]


def test_a_laptop_needs_a_database_and_a_key_and_nothing_else(environment: Environment) -> None:
    environment.set(GOOD)

    settings = SchedulerSettings.load()

    assert settings.listen == "127.0.0.1:0"
    assert settings.platform.mode == "development"
    assert not settings.platform.test_hooks


def test_platform_settings_come_from_their_own_prefix(environment: Environment) -> None:
    environment.set(GOOD)
    environment.set({"LEHR_ADDRESSES": '{"billing": "127.0.0.1:7001"}'})
    environment.set({"LEHR_TRUSTED_KEYS": json.dumps({"gateway": PUBLIC})})

    platform = SchedulerSettings.load().platform

    assert platform.addresses == {"billing": "127.0.0.1:7001"}
    assert platform.trusted_keys == {"gateway": PUBLIC}


def test_all_mistakes_are_told_at_once_by_variable(environment: Environment) -> None:
    environment.set(
        {
            "SCHEDULER_IDENTITY_KEY": "canary",
            "SCHEDULER_LISTEN": "everywhere",
            "SCHEDULER_ATTEMPTS": "many",
            "LEHR_NATS_URL": "http://127.0.0.1",
            "LEHR_ADDRESSES": "{",
            "LEHR_TRUSTED_KEYS": '{"gateway": "canary"}',
            "LEHR_LOG_FORMAT": "xml",
        }
    )

    with pytest.raises(SettingsRefused) as caught:
        SchedulerSettings.load()

    assert sorted(_wrong(caught.value)) == [
        "LEHR_ADDRESSES",
        "LEHR_LOG_FORMAT",
        "LEHR_NATS_URL",
        "LEHR_TRUSTED_KEYS",
        "SCHEDULER_ATTEMPTS",
        "SCHEDULER_DATABASE_URL",
        "SCHEDULER_IDENTITY_KEY",
        "SCHEDULER_LISTEN",
    ]
    assert "canary" not in str(caught.value)


def test_test_hooks_are_refused_in_production(environment: Environment) -> None:
    environment.set(GOOD | {"LEHR_MODE": "production", "LEHR_TEST_HOOKS": "true"})

    with pytest.raises(SettingsRefused, match="LEHR_TEST_HOOKS: must be off"):
        SchedulerSettings.load()


def test_a_faults_file_needs_test_hooks(environment: Environment) -> None:
    environment.set(GOOD | {"LEHR_FAULTS_FILE": "/faults.json"})

    with pytest.raises(SettingsRefused, match="LEHR_FAULTS_FILE: needs LEHR_TEST_HOOKS"):
        SchedulerSettings.load()


def test_a_list_that_is_not_json_is_refused(environment: Environment) -> None:
    environment.set(GOOD | {"SCHEDULER_TIERS": "cpu,gpu"})

    with pytest.raises(SettingsRefused, match="tiers"):
        SchedulerSettings.load()


def test_a_key_of_another_kind_is_refused(environment: Environment) -> None:
    environment.set(GOOD | {"SCHEDULER_IDENTITY_KEY": PUBLIC})

    with pytest.raises(SettingsRefused, match="must be an Ed25519 private key"):
        SchedulerSettings.load()


def test_a_key_may_be_written_in_one_line(environment: Environment) -> None:
    environment.set(GOOD | {"SCHEDULER_IDENTITY_KEY": PRIVATE.replace("\n", "\\n")})

    assert SchedulerSettings.load().identity_key.get_secret_value() == PRIVATE


def test_a_service_without_a_database_needs_none_but_its_object_keys(
    environment: Environment,
) -> None:
    environment.set({"RUNNER_IDENTITY_KEY": PRIVATE})

    with pytest.raises(SettingsRefused) as caught:
        RunnerSettings.load()

    assert len(caught.value.fields) == 1
    assert "LEHR_S3_ACCESS_KEY" in str(caught.value)


def test_secrets_are_not_shown(environment: Environment) -> None:
    environment.set(GOOD | {"LEHR_NATS_PASSWORD": "canary"})

    shown = repr(SchedulerSettings.load())

    assert "canary" not in shown
    assert "scheduler:pw" not in shown
    assert "PRIVATE KEY" not in shown


def test_settings_do_not_change(environment: Environment) -> None:
    environment.set(GOOD)
    settings = SchedulerSettings.load()

    with pytest.raises(ValueError, match="frozen"):
        settings.listen = "127.0.0.1:1"  # type: ignore[misc]  # the point of the test


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {"LEHR_TEST_HOOKS": "false"},
        {"LEHR_TEST_HOOKS": "true", "LEHR_MODE": "production"},
    ],
)
def test_faults_are_off_without_test_hooks_or_in_production(
    environment: Environment, variables: Mapping[str, str]
) -> None:
    environment.set({"LEHR_FAULTS_FILE": "/faults.json", **variables})

    assert faults_file() is None
