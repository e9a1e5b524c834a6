"""The client without asyncio: iterators that close, several threads, an end that is one."""

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from lehr.client import Client
from lehr.client.sync import ClientClosed
from lehr.errors import InvalidArgument, NotFound
from lehr.stack.ports import LOOPBACK
from tests.integration.catalog.test_datasets import chat, write
from tests.support.doors import FIRST_KEY
from tests.support.one_service import OneService


def plain(gateway: OneService) -> Client:
    """Return a client of the first key."""
    return Client(f"{LOOPBACK}:{gateway.port}", FIRST_KEY)


def threads() -> list[str]:
    """Return the threads of clients that live."""
    return [one.name for one in threading.enumerate() if one.name == "lehr-client"]


def test_answers_and_errors_are_those_of_the_other_client(
    gateway: OneService, tmp_path: Path
) -> None:
    told: list[int] = []
    with plain(gateway) as client:
        answer = client.datasets.upload(
            write(tmp_path, chat("q", "a")), name="plain", progress=lambda _, n: told.append(n)
        )
        with pytest.raises(NotFound, match="no dataset"):
            client.datasets.inspect("absent")
        with pytest.raises(InvalidArgument):
            client.datasets.inspect("Not A Name")
        with pytest.raises(AttributeError):
            client.datasets.nothing()
        with pytest.raises(TypeError):
            client.datasets.inspect()

    assert sum(told) == answer.dataset.size_bytes


def test_an_iterator_that_is_left_early_is_closed(gateway: OneService, tmp_path: Path) -> None:
    since = datetime.now(UTC) - timedelta(minutes=5)
    with plain(gateway) as client:
        client.datasets.upload(write(tmp_path, chat("early", "a")), name="early")
        events = client.events.tail(since=since)
        first = next(events)
        events.close()

        assert first["specversion"] == "1.0"
        assert next(events, "over") == "over"
        assert client.keys.whoami().role == "operator"


def test_iterators_of_several_threads_go_their_own_way(gateway: OneService, tmp_path: Path) -> None:
    since = datetime.now(UTC) - timedelta(minutes=5)
    with plain(gateway) as client:
        client.datasets.upload(write(tmp_path, chat("threads", "a")), name="threads")

        def first(_: int) -> Any:
            events = client.events.tail(since=since, types=["lehr.dataset."])
            found = next(events)
            events.close()
            return found["id"], client.keys.whoami().principal

        with ThreadPoolExecutor(8) as pool:
            found = set(pool.map(first, range(16)))

    assert len(found) == 1


def test_closing_ends_the_waiting_of_other_threads(gateway: OneService) -> None:
    client = plain(gateway)
    begun = threading.Event()

    def wait() -> Any:
        events = client.events.tail(types=["lehr.nothing."])
        begun.set()
        return next(events)

    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(wait)
        begun.wait(10)
        client.close()

        with pytest.raises(ClientClosed):
            waiting.result(timeout=20)

    assert threads() == []


def test_an_iterator_that_outlives_its_client_ends_quietly(gateway: OneService) -> None:
    with plain(gateway) as client:
        events = client.events.tail(since=datetime.now(UTC) - timedelta(minutes=5))
        next(events)

    events.close()

    assert next(events, "over") == "over"


def test_a_closed_client_says_so_and_may_be_closed_again(gateway: OneService) -> None:
    client = plain(gateway)
    client.close()
    client.close()

    with pytest.raises(ClientClosed, match="is closed"):
        client.keys.whoami()
    with pytest.raises(ClientClosed):
        next(client.events.tail())


def test_a_client_that_could_not_be_made_leaves_no_thread(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("LEHR_API_ADDRESS", "LEHR_API_KEY"):
        monkeypatch.delenv(name, raising=False)

    with pytest.raises(Exception, match="no stack runs here"):
        Client(state_dir=tmp_path)

    assert threads() == []
