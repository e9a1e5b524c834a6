"""Times the examination of a generated file of chats, and ``datasets.map`` with a like check.

python -m tests.bench.validate [megabytes] [--alone]

Each side reads the same file with one and with two processes: all of JSON, and whether each turn
has a role and text. The examination also recognises layouts, finds copies and writes canonical
rows; ``--alone`` leaves the other side out.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

LETTERS = "etaoinshrdlu"

EXAMINE = """
import sys, tempfile
from pathlib import Path
from services.catalog.examination import examine
from services.catalog.formats.source import SourceFile
path, processes = Path(sys.argv[1]), int(sys.argv[2])
with tempfile.TemporaryDirectory(dir=path.parent) as folder:
    found = examine(
        [SourceFile(name=path.name, path=path)],
        out_dir=Path(folder), processes=processes, progress=lambda done, rows: None,
    )
assert found.is_accepted, found.problems
print(found.row_count)
"""

MAP = """
import sys, tempfile
from datasets import disable_progress_bars, load_dataset
disable_progress_bars()
def check(row):
    for turn in row["messages"]:
        if turn["role"] not in ("system", "user", "assistant", "tool"):
            raise ValueError(turn["role"])
        if not isinstance(turn["content"], str):
            raise ValueError(turn["content"])
    return {"turns": len(row["messages"])}
path, processes = sys.argv[1], int(sys.argv[2])
with tempfile.TemporaryDirectory(dir=path.rpartition("/")[0]) as folder:
    rows = load_dataset("json", data_files=path, split="train", cache_dir=folder)
    rows = rows.map(check, num_proc=processes if processes > 1 else None)
    print(len(rows))
"""


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One run over the file."""

    seconds: float
    cpu_seconds: float
    row_count: int
    peak_bytes: int
    """Most that any one of its processes held."""


def write_chats(path: Path, size_bytes: int, *, seed: int = 0) -> None:
    """Write chats of two to six turns, some hundred bytes each, until the file is that large."""
    chooser = random.Random(seed)  # noqa: S311
    # Drawn once: making text word by word would take longer than reading it.
    words = ["".join(chooser.choices(LETTERS, k=chooser.randint(1, 9))) for _ in range(2000)]
    texts = [" ".join(chooser.choices(words, k=chooser.randint(20, 160))) for _ in range(5000)]
    written = 0
    with path.open("wb") as file:
        while written < size_bytes:
            turns = [
                {"role": role, "content": f"{chooser.randrange(10**9)} {chooser.choice(texts)}"}
                for _ in range(chooser.randint(1, 3))
                for role in ("user", "assistant")
            ]
            written += file.write(json.dumps({"messages": turns}).encode() + b"\n")


def measure(code: str, path: Path, processes: int) -> Measured:
    """Run Python code on a file in a process of its own, watched with all its children."""
    began = time.monotonic()
    popen = subprocess.Popen(
        [sys.executable, "-c", code, str(path), str(processes)], stdout=subprocess.PIPE, text=True
    )
    peaks, stop = dict[int, int](), threading.Event()
    watcher = threading.Thread(target=_watch, args=(popen.pid, peaks, stop))
    before = psutil.Process().cpu_times()
    watcher.start()
    told, _ = popen.communicate()
    seconds = time.monotonic() - began
    stop.set()
    watcher.join()
    if popen.returncode:
        raise SystemExit(f"a side ended with {popen.returncode}")
    used = psutil.Process().cpu_times()
    children = used.children_user + used.children_system
    return Measured(
        seconds=seconds,
        cpu_seconds=children - before.children_user - before.children_system,
        row_count=int(told.split()[-1]),
        peak_bytes=max(peaks.values()),
    )


def _watch(pid: int, peaks: dict[int, int], stop: threading.Event) -> None:
    while not stop.wait(0.05):
        for process in _family(pid):
            try:
                held = process.memory_info().rss
            except psutil.NoSuchProcess:
                continue
            peaks[process.pid] = max(held, peaks.get(process.pid, 0))


def _family(pid: int) -> Iterator[psutil.Process]:
    try:
        top = psutil.Process(pid)
        yield top
        yield from top.children(recursive=True)
    except psutil.NoSuchProcess:
        return


def main(megabytes: int, *, alone: bool) -> int:
    """Print rows and megabytes a second, peak memory of a process, and the ratio of both sides."""
    with tempfile.TemporaryDirectory(prefix="lehr-bench-") as folder:
        path = Path(folder) / "chats.jsonl"
        write_chats(path, megabytes * 10**6)
        size = path.stat().st_size / 10**6
        for processes in (1, 2):
            sides = {"examination": EXAMINE} | ({} if alone else {"datasets.map": MAP})
            found = {name: measure(code, path, processes) for name, code in sides.items()}
            for name, one in found.items():
                print(
                    f"{name:12} {processes} process(es): {one.row_count / one.seconds:8.0f} rows/s"
                    f" {size / one.seconds:6.1f} MB/s {one.cpu_seconds:6.1f} CPU s,"
                    f" peak {one.peak_bytes / 2**20:.0f} MiB a process",
                    flush=True,
                )
            if not alone:
                ours, theirs = found["examination"], found["datasets.map"]
                print(
                    f"ratio: {theirs.seconds / ours.seconds:.2f} times as fast,"
                    f" {theirs.cpu_seconds / ours.cpu_seconds:.2f} times as fast by CPU time",
                    flush=True,
                )
    return 0


if __name__ == "__main__":
    arguments = [word for word in sys.argv[1:] if word != "--alone"]
    raise SystemExit(main(int(arguments[0]) if arguments else 200, alone="--alone" in sys.argv))
