"""Random rows of every kind, as hypothesis makes them."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from lehr.samples.rows import (
    ChatRow,
    PreferenceRow,
    PromptAnswerRow,
    PromptCompletionRow,
    Row,
    StepwiseRow,
    TextRow,
    UnpairedRow,
)

TEXTS = st.text(st.characters(codec="utf-8"), max_size=12)
FILLED = TEXTS.filter(lambda text: bool(text.strip()))
NUMBERS = st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False)
JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)
OBJECTS = st.dictionaries(TEXTS, JSON, max_size=3)
IMAGES = st.lists(st.from_regex(r"[0-9a-f]{64}\.png", fullmatch=True), max_size=2).map(tuple)
TOOLS = st.none() | st.lists(OBJECTS, max_size=2).map(tuple)


def turn(role: str, content: Any, **more: Any) -> dict[str, Any]:
    """Return a message."""
    return {"role": role, "content": content, **more}


_CALLS = st.builds(
    lambda name, arguments: {
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    },
    FILLED,
    OBJECTS,
)
ANSWERS = st.builds(turn, st.just("assistant"), FILLED) | st.builds(
    lambda calls: turn("assistant", None, tool_calls=calls),
    st.lists(_CALLS, min_size=1, max_size=2),
)
QUESTIONS = st.builds(turn, st.just("user"), TEXTS)
_SYSTEMS = st.lists(st.builds(turn, st.just("system"), TEXTS), max_size=1)
PROMPTS = st.builds(
    lambda system, pairs, last: (*system, *(one for pair in pairs for one in pair), last),
    _SYSTEMS,
    st.lists(st.tuples(QUESTIONS, ANSWERS), max_size=2),
    QUESTIONS,
)
COMPLETIONS = st.lists(ANSWERS, min_size=1, max_size=1).map(tuple)
SIDES = st.tuples(PROMPTS, COMPLETIONS, COMPLETIONS) | st.tuples(TEXTS, FILLED, FILLED)
_MORE = {"tools": TOOLS, "images": IMAGES}


def _sided(row_type: Any, *names: str, **others: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.builds(
        lambda sides, more: row_type(**dict(zip(names, sides, strict=False)), **more),
        SIDES,
        st.fixed_dictionaries(others | _MORE),
    )


ROWS: st.SearchStrategy[Row] = st.one_of(
    st.builds(
        ChatRow,
        messages=st.builds(lambda prompt, last: (*prompt, *last), PROMPTS, COMPLETIONS),
        **_MORE,
    ),
    _sided(PromptCompletionRow, "prompt", "completion"),
    st.builds(TextRow, text=FILLED),
    _sided(PreferenceRow, "prompt", "chosen", "rejected"),
    _sided(UnpairedRow, "prompt", "completion", label=st.booleans()),
    _sided(PromptAnswerRow, "prompt", answer=JSON, columns=OBJECTS),
    st.lists(st.tuples(TEXTS, st.booleans()), min_size=1, max_size=3).flatmap(
        lambda steps: st.builds(
            StepwiseRow,
            prompt=FILLED,
            completions=st.just(tuple(text for text, _ in steps)),
            labels=st.just(tuple(label for _, label in steps)),
        )
    ),
)
