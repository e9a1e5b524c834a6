"""Rows a second on one core: our whole path beside ``datasets.map`` with a fast tokenizer.

python -m tests.bench.tokenise [rows] [turns] [rounds]

Ours reads canonical rows, renders, tokenises with the mask of what is trained, and writes the
table. Theirs reads the same rows as JSON lines into memory first, and then renders and tokenises
with ``apply_chat_template``; the mask too, where the template marks what an assistant generates.
Both take turns, each with one thread; seconds are CPU seconds of the process.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

# Before the libraries start their threads.
os.environ |= {"TOKENIZERS_PARALLELISM": "false", "RAYON_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}

import datasets
from transformers import AutoTokenizer

from lehr.demo.model import smollm2
from lehr.demo.stdlib_rows import write_stdlib_rows
from lehr.samples.lines import read_rows
from lehr.samples.rows import ChatRow
from lehr.samples.table import TokenTable
from lehr.samples.tabulate import write_table
from lehr.samples.templates import TEMPLATES
from lehr.samples.tokens import SampleTokenizer
from tests.support.canonical_rows import write_canonical

ROWS, TURNS, ROUNDS = 2000, 2, 3
WORDS_PER_ANSWER = 180
CACHE = Path(tempfile.gettempdir()) / "lehr-bench"


def main(rows: int, turns: int, rounds: int) -> int:
    """Print both speeds and their ratio for a template without and one with generation marks."""
    CACHE.mkdir(exist_ok=True)
    model = smollm2(CACHE)
    chats = _chats(rows, turns)
    datasets.disable_progress_bars()
    slower = False
    with tempfile.TemporaryDirectory(prefix="lehr-bench-") as name:
        folder = Path(name)
        canonical = write_canonical(folder / "rows.jsonl.zst", chats)
        plain = folder / "rows.jsonl"
        plain.write_text("".join(json.dumps({"messages": one.messages}) + "\n" for one in chats))
        for template in (None, TEMPLATES["chatml"].source()):
            ratio = _compared(model, template, canonical, plain, rows=rows, rounds=rounds)
            slower |= ratio < 1.0
    return int(slower)


def _compared(
    model: Path, template: str | None, canonical: Path, plain: Path, *, rows: int, rounds: int
) -> float:
    ours = _ours(model, template, canonical)
    theirs = _theirs(model, template, plain)
    seconds: dict[str, list[float]] = {"ours": [], "theirs": []}
    for _ in range(rounds):
        for name, run in (("ours", ours), ("theirs", theirs)):
            began = time.process_time()
            run()
            seconds[name].append(time.process_time() - began)
    speeds = {name: rows / statistics.median(taken) for name, taken in seconds.items()}
    ratio = speeds["ours"] / speeds["theirs"]
    what = "marked answers" if template else "answers found"
    print(
        f"{what}: ours {speeds['ours']:.0f} rows/s, datasets.map {speeds['theirs']:.0f} rows/s, "
        f"ratio {ratio:.2f}"
    )
    return ratio


def _ours(model: Path, template: str | None, canonical: Path) -> Callable[[], None]:
    tokenizer = SampleTokenizer.load(model, chat_template=template)
    out = canonical.with_name("table.safetensors")

    def run() -> None:
        write_table(canonical, tokenizer, out)
        assert TokenTable.open(out).trained_counts.min() > 0

    return run


def _theirs(model: Path, template: str | None, plain: Path) -> Callable[[], None]:
    tokenizer = AutoTokenizer.from_pretrained(model, local_files_only=True)
    loaded = datasets.load_dataset(
        "json", data_files=str(plain), split="train", cache_dir=str(plain.parent / "cache")
    )
    options: dict[str, Any] = {"tokenize": True, "return_dict": True}
    if template is not None:
        options |= {"chat_template": template, "return_assistant_tokens_mask": True}

    def tokenised(row: dict[str, Any]) -> dict[str, Any]:
        return dict(tokenizer.apply_chat_template(row["messages"], **options))

    def run() -> None:
        loaded.map(
            tokenised,
            num_proc=None,
            load_from_cache_file=False,
            remove_columns=loaded.column_names,
        )

    return run


def _chats(rows: int, turns: int) -> list[ChatRow]:
    """Return chats of documentation prose: real words, of a length that is usual for training."""
    answers = [row.messages[1]["content"] for row in read_rows(write_stdlib_rows(CACHE))]
    chance = random.Random(7)  # noqa: S311 - repeatable

    def said(words: int) -> str:
        picked: list[str] = []
        while len(picked) < words:
            picked += chance.choice(answers).split(" ")
        return " ".join(picked[:words])

    def turn(at: int) -> dict[str, Any]:
        if at % 2:
            return {"role": "assistant", "content": said(WORDS_PER_ANSWER)}
        return {"role": "user", "content": said(WORDS_PER_ANSWER // 4)}

    return [ChatRow(messages=tuple(turn(at) for at in range(turns))) for _ in range(rows)]


if __name__ == "__main__":
    given = [int(word) for word in sys.argv[1:]]
    raise SystemExit(main(*(given + [ROWS, TURNS, ROUNDS][len(given) :])))
