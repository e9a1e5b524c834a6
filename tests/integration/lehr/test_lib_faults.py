"""Fault points break real processes, as often as a test asked for."""

import asyncio
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from lehr import faults
from lehr.errors import Unavailable

DROP, MARK = "relay.drop", "relay.before_mark"


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "faults.json"
    monkeypatch.setenv("LEHR_TEST_HOOKS", "true")
    monkeypatch.setenv("LEHR_FAULTS_FILE", str(path))
    monkeypatch.delenv("LEHR_MODE", raising=False)
    return path


def _hits(name: str, count: int) -> list[bool]:
    """Hit a point several times; say which hits broke."""
    broken = []
    for _ in range(count):
        try:
            faults.hit_sync(name)
        except Unavailable:
            broken.append(True)
        else:
            broken.append(False)
    return broken


async def test_an_unarmed_point_does_nothing(file: Path) -> None:
    await faults.hit(DROP)
    faults.arm(file, MARK, action="error")

    await faults.hit(DROP)


async def test_without_test_hooks_an_armed_point_does_nothing(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults.arm(file, DROP, action="error")
    monkeypatch.delenv("LEHR_TEST_HOOKS")

    await faults.hit(DROP)


async def test_an_error_says_that_it_was_planned(file: Path) -> None:
    faults.arm(file, DROP, action="error")

    with pytest.raises(Unavailable) as caught:
        await faults.hit(DROP)

    assert (caught.value.reason, caught.value.facts) == ("FAULT_INJECTED", {"fault": DROP})


def test_hits_are_skipped_and_then_broken_as_often_as_asked(file: Path) -> None:
    faults.arm(file, DROP, action="error", skip=1, times=2)

    assert _hits(DROP, 5) == [False, True, True, False, False]
    assert faults.fired(file, DROP) == 2


def test_arming_again_counts_from_zero_and_leaves_other_points(file: Path) -> None:
    faults.arm(file, MARK, action="error")
    faults.arm(file, DROP, action="error")
    first = _hits(MARK, 1) + _hits(DROP, 2)
    faults.arm(file, DROP, action="error")

    assert first == [True, True, False]
    assert _hits(DROP, 2) == [True, False]
    assert _hits(MARK, 1) == [False]


def test_an_endless_fault_ends_when_it_is_disarmed(file: Path) -> None:
    faults.arm(file, DROP, action="error", times=None)
    armed = _hits(DROP, 3)
    faults.disarm(file, DROP)

    assert armed == [True, True, True]
    assert _hits(DROP, 1) == [False]


def test_a_file_written_by_hand_is_enough(file: Path) -> None:
    file.write_text('{"relay.drop": {"action": "error"}}', encoding="utf-8")

    assert _hits(DROP, 2) == [True, False]


def test_a_name_that_is_no_fault_point_is_refused(file: Path) -> None:
    with pytest.raises(ValueError, match="no fault points"):
        faults.arm(file, "relay.nothing", action="error")
    file.write_text('{"relay.nothing": {"action": "error"}}', encoding="utf-8")
    with pytest.raises(ValueError, match="no fault points"):
        faults.hit_sync(DROP)


async def test_a_hanging_point_goes_on_when_it_is_disarmed(file: Path) -> None:
    faults.arm(file, DROP, action="hang")
    task = asyncio.create_task(faults.hit(DROP))
    done, _ = await asyncio.wait([task], timeout=0.2)

    faults.disarm(file)

    assert done == set()
    await asyncio.wait_for(task, 10)


async def test_a_delay_takes_its_time_and_no_more(file: Path) -> None:
    faults.arm(file, DROP, action="delay", seconds=0.2)
    loop = asyncio.get_running_loop()
    start = loop.time()

    await faults.hit(DROP)

    assert loop.time() - start >= 0.2


def test_a_killed_process_is_not_killed_again_after_its_restart(file: Path) -> None:
    faults.arm(file, MARK, action="kill")
    code = f"from lehr import faults; faults.name_process('p'); faults.hit_sync({MARK!r})"

    ends = [subprocess.run([sys.executable, "-c", code], check=False).returncode for _ in range(2)]

    assert ends == [-signal.SIGKILL, 0]
    assert faults.fired(file, MARK) == 1


def test_each_process_name_counts_for_itself(file: Path) -> None:
    faults.arm(file, DROP, action="error")
    code = (
        "import sys; from lehr import faults; faults.name_process(sys.argv[1]);"
        f"faults.hit_sync({DROP!r})"
    )

    ends = [
        subprocess.run(
            [sys.executable, "-c", code, name], check=False, stderr=subprocess.DEVNULL
        ).returncode
        for name in ("a", "b", "a")
    ]

    assert ends == [1, 1, 0]
    assert faults.fired(file, DROP) == 2
