"""Reasoning in answers: where its author put it, and how a model writes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

#: Marks around reasoning, as written by DeepSeek-R1, Qwen3 and those that follow them.
BEGIN, END = "<think>", "</think>"
#: Fields in which datasets keep reasoning apart from the answer.
FIELDS = ("reasoning_content", "thinking", "reasoning")


@dataclass(frozen=True, slots=True, kw_only=True)
class Spoken:
    """What an assistant's turn says."""

    reasoning: str
    """Without its marks and the space around it; empty where there is none."""
    texts: tuple[str, ...]
    """The answer's own text, without reasoning; more than one where the content has parts."""

    def written_after(self, prompt: str) -> str:
        """Return reasoning and answer as a model writes them after ``prompt``.

        A prompt that has opened the block gets no second opening.
        """
        begin = "" if prompt.rstrip().endswith(BEGIN) else f"{BEGIN}\n"
        return f"{begin}{self.reasoning}\n{END}\n\n{''.join(self.texts).lstrip()}"


def spoken(turn: Mapping[str, Any]) -> Spoken:
    """Tell reasoning and answer of a turn apart."""
    content = turn.get("content")
    parts = [part.get("text", "") for part in content] if isinstance(content, list) else None
    texts = [content or ""] if parts is None else parts
    reasoning = next((turn[name] for name in FIELDS if isinstance(turn.get(name), str)), "")
    thought, mark, answer = texts[0].rpartition(END) if texts else ("", "", "")
    if mark:
        reasoning = reasoning or thought.rpartition(BEGIN)[2]
        texts = [answer, *texts[1:]]
    return Spoken(reasoning=reasoning.strip(), texts=tuple(texts))


def with_whole_block(content: str) -> str:
    """Return content whose reasoning has its opening mark.

    Models whose prompt opens the block write only the closing mark, and data made with them has
    only that.
    """
    thought, mark, _ = content.partition(END)
    return f"{BEGIN}\n{content.lstrip()}" if mark and BEGIN not in thought else content
