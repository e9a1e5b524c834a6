"""The rows that the requirements give, as their exact lines."""

from __future__ import annotations

import json
from pathlib import Path

from lehr.samples.lines import read_row
from lehr.samples.rows import Row

_FILES = Path(__file__).parents[1] / "unit" / "samples" / "required"

_NOTES = ("Notes: " + "lorem ipsum " * 25)[:300]


def _chat(*turns: tuple[str, str]) -> str:
    return json.dumps({"messages": [{"role": role, "content": said} for role, said in turns]})


TR_01_A = _chat(("user", _NOTES), ("assistant", "Paris."))
"""311 tokens of the toy tokenizer, 7 of them trained."""
TR_01_B = _chat(("user", "Notes"), ("assistant", ("lorem ipsum " * 9)[:100]))
"""An answer that is longer than what is kept: 110 tokens, 101 of them trained."""
TR_01_C = _chat(("assistant", "I start so"), ("user", _NOTES[:200]))
"""Nothing trainable is left of its last 64 tokens."""
TR_03 = (TR_01_A,)
TR_05 = (
    _chat(("user", "Hi"), ("assistant", "Yo")),
    _chat(("user", "Hi"), ("assistant", "Yo yo yo")),
)
TR_09 = (
    _chat(
        ("user", "What is 2+2?"),
        ("assistant", "<think>two plus two</think>The answer is 4."),
        ("user", "And 3+3?"),
        ("assistant", "<think>three plus three</think>6."),
    ),
    _chat(("user", "What is 5+5?"), ("assistant", "five and five\n</think>\n\n10.")),
)
DS_01 = tuple((_FILES / "ds_01_train.jsonl").read_text(encoding="utf-8").splitlines())
DS_11 = tuple((_FILES / "ds_11_nul.jsonl").read_text(encoding="utf-8").splitlines())
DS_11_ACCEPTED = tuple(line for line in DS_11 if r"x\ud83dy" not in line)
"""Without the row that holds half a surrogate pair."""

TOOL_TEMPLATE = (
    "{{ '<s>' }}{% if tools %}{{ '<|tool|>tools: ' + (tools | tojson) + '</s>' }}{% endif %}"
    "{% for message in messages %}{{ '<|' + message['role'] + '|>' + (message['content'] or '') }}"
    "{% for call in message['tool_calls'] or [] %}"
    "{{ call['function']['name'] + (call['function']['arguments'] | tojson) }}"
    "{% endfor %}{{ '</s>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
"""Shows tools and calls, in the marks of the toy tokenizer."""


def as_rows(*lines: str) -> list[Row]:
    """Read lines as the catalog does."""
    return [read_row(line, number=number) for number, line in enumerate(lines, start=1)]


def write_lines(path: Path, *lines: str) -> Path:
    """Write lines to a file as they stand."""
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return path
