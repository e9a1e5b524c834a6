"""Processes of a pool: in order, bounded, and gone when the work is, however it ends."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from lehr import faults
from services.catalog.examination.pool import Pool, ReaderDied
from tests.support.datasets import chat, examined, image, jsonl, zipped


def doubled(context: int, item: int) -> Iterator[int]:
    """Yield as many results as the context says; small items take longest."""
    time.sleep(0.05 / (item + 1))
    for at in range(context):
        yield 100 * item + at


def first_is_slow(_: Any, item: int) -> Iterator[int]:
    """Keep the first result waiting while others are quick."""
    time.sleep(0 if item else 1)
    yield item


def crash(_: Any, item: int) -> Iterator[int]:
    """Die of the item 3, as a faulty parser does."""
    if item == 3:
        os.kill(os.getpid(), signal.SIGSEGV)
    yield item


def heavy(_: Any, item: int) -> Iterator[int]:
    """Need more memory than is allowed."""
    yield len(bytearray(item))


def bulky(_: Any, item: int) -> Iterator[bytes]:
    """Yield more than a socket holds, many times."""
    for _ in range(item):
        yield bytes(2**20)


def slow(_: Any, item: int) -> Iterator[int]:
    """Take a minute."""
    time.sleep(60)
    yield item


def environment(_: Any) -> dict[str, str]:
    """Return what a process of the pool knows."""
    return dict(os.environ)


def refuse(_: Any) -> None:
    """Raise what a function may raise."""
    raise ValueError("no")


def children() -> list[psutil.Process]:
    """Return the live processes that this one started."""
    return psutil.Process().children(recursive=True)


@pytest.fixture
def new_pool() -> Iterator[Callable[..., Pool]]:
    """Return what makes a pool; afterwards no process may be left."""
    before = {child.pid for child in children()}

    def make(processes: int = 2, heartbeat: Callable[[], None] = lambda: None) -> Pool:
        return Pool(processes, heartbeat=heartbeat)

    yield make
    assert {child.pid for child in children()} <= before


def test_results_come_in_the_order_of_the_items(new_pool: Callable[..., Pool]) -> None:
    with new_pool(3) as pool:
        pool.context = 2
        found = list(pool.each(doubled, range(20)))

    assert found == [(item, 100 * item + at) for item in range(20) for at in (0, 1)]


def test_items_are_taken_only_a_little_ahead(new_pool: Callable[..., Pool]) -> None:
    taken: list[int] = []

    def items() -> Iterator[int]:
        for item in range(100):
            taken.append(item)
            yield item

    with new_pool(2) as pool:
        next(pool.each(first_is_slow, items()))

    assert len(taken) <= 10


def test_large_results_of_several_processes_do_not_block(new_pool: Callable[..., Pool]) -> None:
    with new_pool(3) as pool:
        found = [(item, len(result)) for item, result in pool.each(bulky, [8, 8, 8, 8])]

    assert found == [(8, 2**20)] * 32


def test_the_item_that_a_process_died_of_is_known(new_pool: Callable[..., Pool]) -> None:
    found: list[int] = []

    with new_pool(2) as pool, pytest.raises(ReaderDied) as death:
        found += [result for _, result in pool.each(crash, range(10))]

    assert death.value.item == 3
    assert set(found) <= {0, 1, 2}


def test_a_call_that_fails_leaves_the_pool_as_it_was(new_pool: Callable[..., Pool]) -> None:
    with new_pool(1) as pool:
        with pytest.raises(ValueError, match="no"):
            pool.call(refuse, None)
        with pytest.raises(ReaderDied):
            list(pool.each(crash, [3]))
        assert pool.call(len, "abc") == 3


def test_a_process_that_wants_too_much_memory_is_refused_it(new_pool: Callable[..., Pool]) -> None:
    with new_pool(1) as pool:
        with pytest.raises(MemoryError):
            list(pool.each(heavy, [3 * 2**30]))
        assert list(pool.each(heavy, [2**20])) == [(2**20, 2**20)]


def test_a_process_of_the_pool_knows_no_secrets(
    new_pool: Callable[..., Pool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CATALOG_DATABASE_URL", "secret")

    with new_pool(1) as pool:
        found = pool.call(environment, None)

    assert not {name for name in found if name.startswith("CATALOG_")}


def test_what_a_heartbeat_raises_ends_work_that_takes_long(new_pool: Callable[..., Pool]) -> None:
    def stop() -> None:
        raise TimeoutError

    began = time.monotonic()
    with new_pool(2, stop) as pool, pytest.raises(TimeoutError):
        list(pool.each(slow, [1, 2, 3]))

    assert time.monotonic() - began < 50


ROWS = jsonl([chat(f"q{at}", "a" * 300) for at in range(6000)])


def test_an_examination_leaves_no_process(tmp_path: Path) -> None:
    before = len(children())

    one = examined(tmp_path, {"a.jsonl": ROWS}, processes=2)

    assert one.found.row_count == 6000
    assert len(children()) == before


def test_an_examination_that_is_stopped_leaves_no_process(tmp_path: Path) -> None:
    before = len(children())

    def stop(_: int, row_count: int) -> None:
        if row_count:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        examined(tmp_path, {"a.jsonl": ROWS}, processes=2, progress=stop)

    assert len(children()) == before
    assert not list(tmp_path.glob("out-*/.*"))


def test_little_text_needs_no_process_and_images_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Pool, "_started", lambda _: pytest.fail("a process was started"))

    one = examined(tmp_path, {"a.jsonl": ROWS[:100_000].rpartition(b"\n")[0]})

    assert one.found.is_accepted
    with pytest.raises(pytest.fail.Exception, match="started"):
        examined(tmp_path, {"a.zip": zipped({"a.jsonl": b"", "a.png": image()})})


def test_progress_tells_bytes_and_rows_and_ends_with_all(tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []

    examined(tmp_path, {"a.jsonl": ROWS, "b.jsonl": ROWS}, progress=lambda *it: told.append(it))

    assert told == sorted(told)
    assert told[-1] == (2 * len(ROWS), 12_000)


@pytest.fixture
def kill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[int | None], None]:
    """Have so many processes of a pool killed, None for every one."""
    file = tmp_path / "faults.json"
    monkeypatch.setenv("LEHR_FAULTS_FILE", str(file))
    monkeypatch.setenv("LEHR_TEST_HOOKS", "true")

    def arm(times: int | None) -> None:
        faults.arm(file, "catalog.pool.item", action="kill", times=times)

    return arm


def test_a_reader_that_dies_once_is_tried_again(
    tmp_path: Path, kill: Callable[[int | None], None]
) -> None:
    kill(1)

    one = examined(tmp_path, {"a.jsonl": ROWS}, processes=2)

    assert (one.found.row_count, one.problems) == (6000, {})


def test_a_reader_that_always_dies_refuses_the_dataset_in_words(
    tmp_path: Path, kill: Callable[[int | None], None]
) -> None:
    kill(None)

    one = examined(tmp_path, {"a.jsonl": ROWS}, processes=2)

    assert not one.found.is_accepted
    assert one.only.reason == "READER_DIED"
    assert one.only.lines == (1,)
    assert "rows 1 to" in one.only.description
