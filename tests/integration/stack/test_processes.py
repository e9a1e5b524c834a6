"""Processes are told from their successors, and none outlives its parent."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from lehr.stack.processes import ProcessMark, memory_bytes

PARENT = """
import sys
from pathlib import Path
from lehr.stack.processes import spawn
from tests.integration.stack.children import a_part
folder = Path(sys.argv[1])
child = spawn(a_part(folder), folder / "child.log")
print(child.pid, flush=True)
child.wait()
"""


def test_a_mark_is_of_one_process_only() -> None:
    child = subprocess.Popen(["sleep", "600"])
    mark = ProcessMark.of(child.pid)
    assert mark is not None

    alive = mark.is_alive()
    of_former_boot = replace(mark, start=f"another-boot:{mark.start}").is_alive()
    of_other_program = replace(mark, command=("sleep", "601")).is_alive()
    child.kill()
    child.wait()

    assert (alive, of_former_boot, of_other_program) == (True, False, False)
    assert not mark.is_alive()


def test_of_two_processes_each_has_a_start_of_its_own() -> None:
    first = subprocess.Popen(["sleep", "600"])
    # The kernel counts hundredths of a second.
    time.sleep(0.05)
    second = subprocess.Popen(["sleep", "600"])

    marks = ProcessMark.of(first.pid), ProcessMark.of(second.pid)

    assert marks[0] is not None
    assert marks[1] is not None
    assert marks[0].command == marks[1].command
    assert marks[0].start != marks[1].start
    for process in (first, second):
        process.kill()
        process.wait()


def test_a_dead_process_that_nobody_collected_is_not_alive() -> None:
    child = subprocess.Popen(["sleep", "600"])
    mark = ProcessMark.of(child.pid)
    assert mark is not None

    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)

    assert not mark.is_alive()
    child.wait()


def test_a_signal_never_reaches_a_later_process_of_the_same_number() -> None:
    child = subprocess.Popen(["sleep", "600"])
    mark = ProcessMark.of(child.pid)
    assert mark is not None

    replace(mark, start="another-boot:1").kill()

    assert child.poll() is None
    child.kill()
    child.wait()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells children of a death")
def test_a_part_dies_with_whoever_started_it(tmp_path: Path) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    child = psutil.Process(int(parent.stdout.readline()))

    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()

    gone, _ = psutil.wait_procs([child], timeout=10)
    assert gone


def test_memory_is_that_of_the_whole_family() -> None:
    child = subprocess.Popen(["sleep", "600"])

    alone, together = memory_bytes(os.getpid(), family=False), memory_bytes(os.getpid())

    child.kill()
    child.wait()
    assert 0 < alone < together
