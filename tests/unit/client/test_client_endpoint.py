"""Where the SDK finds its gateway and key."""

from pathlib import Path

import pytest

from lehr.client import AsyncClient
from lehr.client.connection import Endpoint, NotConnected


@pytest.fixture(autouse=True)
def nothing_known(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No variables and no stack."""
    for name in ("LEHR_API_ADDRESS", "LEHR_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("LEHR_STATE_DIR", str(tmp_path))


def test_what_is_given_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEHR_API_ADDRESS", "other:1")
    monkeypatch.setenv("LEHR_API_KEY", "other")

    found = Endpoint.find(address="mine:1", api_key="key")

    assert found == Endpoint(address="mine:1", api_key="key")


def test_what_is_not_given_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEHR_API_ADDRESS", "other:1")
    monkeypatch.setenv("LEHR_API_KEY", "other")

    assert Endpoint.find(address="mine:1").api_key == "other"
    assert Endpoint.find(api_key="key").address == "other:1"


def test_without_anything_it_is_said_what_to_do() -> None:
    with pytest.raises(NotConnected, match="lehr up") as refusal:
        Endpoint.find()

    assert refusal.value.reason == "NOT_CONNECTED"


def test_the_key_of_a_local_stack_is_shown_to_no_other_gateway(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LEHR_API_ADDRESS", "elsewhere:1")

    with pytest.raises(NotConnected, match="key for elsewhere:1 is not known"):
        Endpoint.find()


def test_a_key_is_not_shown_by_accident() -> None:
    assert "lehr_sk" not in repr(Endpoint(address="a:1", api_key="lehr_sk_secret"))


async def test_a_client_takes_an_address_alone_seriously() -> None:
    with pytest.raises(NotConnected, match="mine:1"):
        AsyncClient("mine:1")
