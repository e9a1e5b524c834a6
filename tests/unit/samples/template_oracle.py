"""What the formats of the bundled templates are, by their published descriptions, in plain Python.

plain: one paragraph a turn, begun by who speaks. alpaca: README of Stanford Alpaca (instruction and
response under headings). zephyr: model card of Zephyr 7B. mistral: instruction format of the model
card of Mistral 7B Instruct v0.1. chatml: OpenAI's chatml.md. llama3: Meta's page on prompt formats
of Llama 3. gemma: Google's page on the format of Gemma, which knows no system turn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

BOS, EOS = "<s>", "</s>"
Turn = tuple[str, str]
Piece = tuple[str, bool]
"""Text, and whether it is trained."""


def render(name: str, turns: Sequence[Turn]) -> list[Piece]:
    """Return the pieces of a chat in the order in which they are written."""
    begin = BOS if name in ("plain", "alpaca", "mistral", "llama3", "gemma") else ""
    return [(begin, False), *FORMATS[name](turns)]


def plain(turns: Sequence[Turn]) -> Iterable[Piece]:
    for role, text in turns:
        yield f"{role[0].upper()}{role[1:]}: ", False
        yield (text + EOS, True) if role == "assistant" else (text, False)
        yield "\n\n", False


def alpaca(turns: Sequence[Turn]) -> Iterable[Piece]:
    headings = {"user": "### Instruction:\n", "assistant": "### Response:\n"}
    for role, text in turns:
        yield headings.get(role, ""), False
        yield (text + EOS, True) if role == "assistant" else (text, False)
        yield "\n\n", False


def zephyr(turns: Sequence[Turn]) -> Iterable[Piece]:
    for role, text in turns:
        yield f"<|{role}|>\n", False
        yield text + EOS, role == "assistant"
        yield "\n", False


def chatml(turns: Sequence[Turn]) -> Iterable[Piece]:
    for role, text in turns:
        yield f"<|im_start|>{role}\n", False
        yield f"{text}<|im_end|>", role == "assistant"
        yield "\n", False


def llama3(turns: Sequence[Turn]) -> Iterable[Piece]:
    for role, text in turns:
        yield f"<|start_header_id|>{role}<|end_header_id|>\n\n", False
        yield f"{text}<|eot_id|>", role == "assistant"


def mistral(turns: Sequence[Turn]) -> Iterable[Piece]:
    for role, text in with_rules_in_questions(turns):
        if role == "assistant":
            yield " ", False
            yield text + EOS, True
        else:
            yield f"[INST] {text} [/INST]", False


def gemma(turns: Sequence[Turn]) -> Iterable[Piece]:
    for role, text in with_rules_in_questions(turns):
        yield f"<start_of_turn>{'model' if role == 'assistant' else 'user'}\n", False
        yield f"{text}<end_of_turn>", role == "assistant"
        yield "\n", False


def with_rules_in_questions(turns: Sequence[Turn]) -> Iterable[Turn]:
    """Put what the system says before the next question; formats without a place for it do so."""
    rules = [text for role, text in turns if role in ("system", "developer")]
    for role, text in turns:
        if role == "user":
            yield role, "".join(f"{rule}\n\n" for rule in rules) + text
            rules = []
        elif role == "assistant":
            yield role, text


FORMATS: dict[str, Callable[[Sequence[Turn]], Iterable[Piece]]] = {
    one.__name__: one for one in (plain, alpaca, zephyr, mistral, chatml, llama3, gemma)
}
