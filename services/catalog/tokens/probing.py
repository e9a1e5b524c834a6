"""What a strange tokenizer and its chat template can do, found in a process that may die of it."""

from __future__ import annotations

import resource
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

from lehr.errors import InvalidArgument
from lehr.samples.answers import find_answers
from lehr.samples.chat import ChatTemplate, Message
from lehr.samples.files import TokenizerFiles
from lehr.samples.templates import TEMPLATES
from lehr.samples.tokens import SampleTokenizer
from services.catalog.examination.pool import Pool, ReaderDied

PROCESSOR_SECONDS = 30
PATIENCE_SECONDS = 600.0
WORDS_MAX = 500
"""Characters of a template's own words that are kept."""

NONE, MARKED, DIFFERENTIAL, REFUSED = "none", "generation_marks", "differential", "refused"

_QUESTION = {"role": "user", "content": "Which animal says moo?"}
_ANSWER = {"role": "assistant", "content": "A cow."}
_AGAIN = ({"role": "user", "content": "And woof?"}, {"role": "assistant", "content": "A dog."})
_CALL = {"type": "function", "function": {"name": "weather", "arguments": {"city": "Oslo"}}}
_TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
#: Chats of which a template must take one at least.
_PLAIN: Mapping[str, Sequence[Message]] = {
    "chats of one turn": (_QUESTION, _ANSWER),
    "chats of several turns": (_QUESTION, _ANSWER, *_AGAIN),
    "system turns": ({"role": "system", "content": "Be brief."}, _QUESTION, _ANSWER),
}
_WITH_TOOLS: Sequence[Message] = (
    _QUESTION,
    {"role": "assistant", "content": "", "tool_calls": [_CALL]},
    {"role": "tool", "name": "weather", "content": "4 C"},
    _ANSWER,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Probed:
    """What was found."""

    refusal: str = ""
    """Why the tokenizer cannot be used at all; empty where it can."""
    context: int | None = None
    """Most tokens, or None where neither model nor tokenizer says."""
    chat_template: str = NONE
    """none, generation_marks, differential or refused."""
    advice: str = ""


def probe(folder: Path, *, seconds: int = PROCESSOR_SECONDS) -> Probed:
    """Look at the tokenizer of a model folder, in a process of its own.

    ``seconds`` are those of processor time that it may take: on a busy machine the same model is
    not refused.

    Raises:
        TimeoutError: it could not be done in ten minutes, which is the machine's fault.
    """
    give_up_at = monotonic() + PATIENCE_SECONDS

    def wait() -> None:
        if monotonic() > give_up_at:
            raise TimeoutError("a model's tokenizer could not be looked at in time")

    with Pool(1, heartbeat=wait) as pool:
        try:
            found: Probed = pool.call(_probe, (folder, seconds))
        except ReaderDied:
            return Probed(
                refusal="tokenizer.json or the chat template breaks the process that reads it, or "
                f"takes more than {seconds} seconds or all of its memory; use another"
            )
    return found


def _probe(asked: tuple[Path, int]) -> Probed:
    folder, seconds = asked
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    try:
        tokenizer = SampleTokenizer.load(folder)
        state, advice = _judge(TokenizerFiles.read(folder))
    except InvalidArgument as error:
        return Probed(refusal=_words(error))
    except MemoryError:
        return Probed(refusal="tokenizer.json or the chat template takes more memory than there is")
    except Exception as error:  # the tokenizer's library raises nothing more exact.
        return Probed(refusal=f"tokenizer.json cannot be loaded: {_words(error)}")
    return Probed(context=tokenizer.context, chat_template=state, advice=advice)


def _judge(files: TokenizerFiles) -> tuple[str, str]:
    """Return how answers are found in chats of a model, and advice."""
    templates = {
        name: ChatTemplate(source, special_tokens=files.special_tokens)
        for name, source in files.chat_templates.items()
    }
    template = templates.get("default")
    if template is None:
        fitting = ", ".join(_fitting(files))
        return NONE, f"choose a template with data.chat_template: {fitting}"
    wrong = {what: _wrong(template, turns) for what, turns in _PLAIN.items()}
    troubles = [why for why in wrong.values() if why]
    if len(troubles) == len(wrong):
        others = ", ".join(_fitting(files))
        return REFUSED, f"{troubles[0]}; or choose a template with data.chat_template: {others}"
    wrong["tools"] = _wrong(templates.get("tool_use", template), _WITH_TOOLS, tools=[_TOOL])
    advice = "; ".join(f"not for {what}: {why}" for what, why in wrong.items() if why)
    return (MARKED if template.marks_answers else DIFFERENTIAL), advice


def _wrong(
    template: ChatTemplate,
    turns: Sequence[Message],
    *,
    tools: Sequence[Mapping[str, Any]] | None = None,
) -> str:
    """Return why the answers of a chat cannot be found; empty where they can."""
    try:
        find_answers(template, turns, tools=tools)
    except InvalidArgument as error:
        return _words(error)
    return ""


def _fitting(files: TokenizerFiles) -> list[str]:
    """Return the bundled templates whose marks the tokenizer knows."""
    tokenizer = files.tokenizer()
    return [
        name
        for name, one in TEMPLATES.items()
        if all(tokenizer.token_to_id(token) is not None for token in one.needs)
    ]


def _words(error: Exception) -> str:
    """Return what an error says, without what no database or terminal should be given."""
    text = str(error)[:WORDS_MAX]
    return "".join(letter if letter.isprintable() else " " for letter in text)
