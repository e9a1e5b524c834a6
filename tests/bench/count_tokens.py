"""Peak memory of each process while a large dataset is counted, split and cut.

python -m tests.bench.count_tokens [megabytes] [processes]

Megabytes are those of the rows as JSON lines. Prints the largest resident set of each process that
took part, and fails above 700 MB.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import zstandard

from lehr.demo.model import smollm2
from lehr.samples.canonical import to_line
from lehr.samples.prepare import prepare
from lehr.samples.rows import ChatRow
from lehr.samples.table import TokenTable
from lehr.training.spec import DataSpec
from services.catalog.tokens.counting import Reading, count

MEGABYTES, PROCESSES = 2000, 2
LIMIT_BYTES = 700e6
WORDS = (
    "the",
    "value",
    "of",
    "each",
    "item",
    "is",
    "read",
    "from",
    "its",
    "file",
    "returned",
    "None",
)
CACHE = Path(tempfile.gettempdir()) / "lehr-bench"


def main(megabytes: int, processes: int) -> int:
    """Write rows, have another process count them, and watch it and its children."""
    CACHE.mkdir(exist_ok=True)
    model = smollm2(CACHE)
    with tempfile.TemporaryDirectory(prefix="lehr-bench-") as name:
        rows = Path(name) / "rows.jsonl.zst"
        written = _write(rows, megabytes)
        command = [sys.executable, "-m", __spec__.name, "--count", str(model), str(rows)]
        began = time.monotonic()
        peaks = _watched(subprocess.Popen([*command, str(processes)]))
        seconds = time.monotonic() - began
    print(f"{written} rows, {megabytes} MB, in {seconds:.0f} s; peaks in MB:")
    print("  " + ", ".join(f"{peak / 1e6:.0f}" for peak in sorted(peaks, reverse=True)))
    return int(max(peaks) > LIMIT_BYTES)


def _counted(model: Path, rows: Path, processes: int) -> int:
    out = rows.with_name("table.safetensors")
    reading = Reading(model_dir=model, template=None, images=None)
    count(rows, reading, out, processes=processes)
    table = TokenTable.open(out)
    for max_length in (64, 256, None):
        data = DataSpec(max_length=max_length, validation_split=0.1)
        facts = prepare(table, data=data, context=None).facts
        print(json.dumps({"max_length": facts.max_length, "samples": facts.train.samples}))
        table.release()
    return 0


def _write(path: Path, megabytes: int) -> int:
    chance = random.Random(1)  # noqa: S311 - repeatable
    size = rows = 0
    with path.open("wb") as file, zstandard.ZstdCompressor().stream_writer(file) as packed:
        while size < megabytes * 1e6:
            asked, said = (" ".join(chance.choices(WORDS, k=words)) for words in (60, 400))
            turns = (
                {"role": "user", "content": f"{rows} {asked}"},
                {"role": "assistant", "content": said},
            )
            rows += 1
            line = to_line(ChatRow(messages=turns), line=rows, file=0)
            size += packed.write(line)
    return rows


def _watched(process: subprocess.Popen[bytes]) -> list[int]:
    """Return the largest resident set of a process and of each that it started."""
    peaks: dict[int, int] = {}
    watched = psutil.Process(process.pid)
    while process.poll() is None:
        try:
            for one in (watched, *watched.children(recursive=True)):
                peaks[one.pid] = max(peaks.get(one.pid, 0), one.memory_info().rss)
        except psutil.NoSuchProcess:
            pass
        time.sleep(0.1)
    if process.returncode:
        raise SystemExit(process.returncode)
    return list(peaks.values())


if __name__ == "__main__":
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    match sys.argv[1:]:
        case ["--count", model, rows, processes]:
            raise SystemExit(_counted(Path(model), Path(rows), int(processes)))
        case given:
            numbers = [int(word) for word in given]
            raise SystemExit(main(*(numbers + [MEGABYTES, PROCESSES][len(numbers) :])))
