"""Recognise the layout of a row, or follow the user's column map, and make it canonical.

Where a row fits several layouts the first of ``LAYOUTS`` counts: what is more special comes first,
so that a preference is one although it also has ``messages``. A column that is null is not there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from lehr.errors import InvalidArgument
from lehr.samples.chats import read_chat
from lehr.samples.checks import (
    check_json,
    filled_text_of,
    label_of,
    parsed,
    text_of,
    type_name,
    wrong,
)
from lehr.samples.columns import check_columns, mapped, names_of, renamed
from lehr.samples.images import StoreImage
from lehr.samples.rows import (
    Chat,
    ChatRow,
    PreferenceRow,
    PromptAnswerRow,
    PromptCompletionRow,
    Row,
    RowKind,
    StepwiseRow,
    TextRow,
    UnpairedRow,
)
from lehr.samples.sides import Given, check_answer, common_prompt

PROMPTS = ("prompt", "question", "problem")
"""Columns that hold what the model is asked, the first that is there."""
ANSWERS = ("answer", "solution", "ground_truth", "reference_answer")
"""Columns that hold the right answer, the first that is there."""

_CHATS = ("messages", "conversations")
#: Columns that likely hold the prompt of a preference; which, only the user can say.
_PERHAPS_PROMPTS = ("input", "query", "context")
_NO_COLUMNS: Mapping[str, str] = MappingProxyType({})


def recognise(
    value: Mapping[str, Any],
    *,
    columns: Mapping[str, str] = _NO_COLUMNS,
    images: StoreImage | None = None,
) -> tuple[Row, str]:
    """Return a row and the name of its layout.

    With ``columns`` (field to the user's column) nothing but these columns is looked at, except
    that a ``prompt_answer`` row keeps all others. ``images`` stores an image; without it rows with
    images are refused.

    Raises:
        InvalidArgument: no layout fits, or a field is wrong; field and cure are named.
    """
    if not columns:
        for layout in LAYOUTS:
            if layout.fits(value):
                return layout.read(Given(value, images)), layout.name
        raise wrong("", f"fits no layout; its columns are {names_of(value)}; {_ADVICE}")
    kind = check_columns(columns)
    try:
        fields, others = mapped(value, columns)
        return _READERS[kind](Given(fields, images, others)), _LAYOUT_OF.get(kind, kind)
    except InvalidArgument as error:
        raise renamed(error, columns) from error


def _chat(given: Given) -> Row:
    field = given.first(_CHATS)
    turns = read_chat(given.columns[field], field)
    if not turns:
        raise wrong(field, "is empty; write at least one message")
    return _chat_row(given, field, turns)


def _alpaca(given: Given) -> Row:
    answer = filled_text_of(given.columns["output"], "output")
    turns = (*_alpaca_prompt(given), {"role": "assistant", "content": answer})
    return _chat_row(given, "instruction", turns)


def _chat_row(given: Given, field: str, turns: Chat) -> Row:
    [messages], tools, images = given.finish((field, turns))
    return ChatRow(messages=messages, tools=tools, images=images)


def _alpaca_prompt(given: Given) -> Chat:
    """Return earlier turns and the question: instruction and input, a line break between them."""
    told = [text_of(given.columns.get(field) or "", field) for field in ("instruction", "input")]
    question = "\n".join(filter(None, told))
    filled_text_of(question, "instruction")
    return (*_history(given.columns.get("history")), {"role": "user", "content": question})


def _history(value: object) -> Chat:
    pairs = parsed(value, "history", begins="[") or []
    if not isinstance(pairs, list):
        raise wrong("history", f"is {type_name(pairs)}; write a list of [question, answer]")
    turns: list[dict[str, Any]] = []
    for at, pair in enumerate(pairs):
        if not isinstance(pair, list) or len(pair) != 2:
            raise wrong(f"history[{at}]", "is not [question, answer]")
        for role, text in zip(("user", "assistant"), pair, strict=True):
            turns.append({"role": role, "content": text_of(text, f"history[{at}]")})
    return tuple(turns)


def _prompt_completion(given: Given) -> Row:
    asked, answered = given.side("prompt"), given.side("completion")
    (prompt, completion), tools, images = given.finish(("prompt", asked), ("completion", answered))
    check_answer("completion", completion)
    return PromptCompletionRow(prompt=prompt, completion=completion, tools=tools, images=images)


def _text(given: Given) -> Row:
    return TextRow(text=filled_text_of(given.columns["text"], "text"))


def _preference(given: Given) -> Row:
    chosen, rejected = given.side("chosen"), given.side("rejected")
    field = given.first((*PROMPTS, "instruction", "conversations", "messages"))
    if field == "messages" and not _is_single(given.columns["chosen"]):
        # Some sets repeat the chosen chat as messages; the prompt is then in both answers.
        field = ""
    if field == "instruction":
        asked: Any = _alpaca_prompt(given)
        chosen, rejected = _spoken(chosen), _spoken(rejected)
    elif field and (isinstance(chosen, str) or not isinstance(given.columns[field], str)):
        asked = given.side(field)
    else:
        # A prompt of text beside answers of messages only repeats what these begin with.
        _refuse_unnamed_prompt(given, chosen)
        field = "prompt"
        asked, chosen, rejected = common_prompt(chosen, rejected)
    sides = (field, asked), ("chosen", chosen), ("rejected", rejected)
    (prompt, better, worse), tools, images = given.finish(*sides)
    check_answer("chosen", better)
    check_answer("rejected", worse, may_be_empty=True)
    return PreferenceRow(prompt=prompt, chosen=better, rejected=worse, tools=tools, images=images)


def _openai_preference(given: Given) -> Row:
    asked = given.columns["input"]
    if not isinstance(asked, Mapping) or asked.get("messages") is None:
        raise wrong("input", "is not an object with messages")
    columns = {
        "prompt": asked["messages"],
        "tools": asked.get("tools"),
        "chosen": given.columns["preferred_output"],
        "rejected": given.columns["non_preferred_output"],
    }
    try:
        return _preference(Given(columns, None))
    except InvalidArgument as error:
        raise renamed(error, _OPENAI_COLUMNS) from error


def _unpaired(given: Given) -> Row:
    if "messages" in given.columns:
        asked, answered = _last_answer(read_chat(given.columns["messages"], "messages"))
    else:
        asked, answered = given.side("prompt"), given.side("completion")
    (prompt, completion), tools, images = given.finish(("prompt", asked), ("completion", answered))
    label = label_of(given.columns["label"], "label")
    check_answer("completion", completion, may_be_empty=not label)
    return UnpairedRow(
        prompt=prompt, completion=completion, label=label, tools=tools, images=images
    )


def _last_answer(chat: Chat) -> tuple[Any, Any]:
    """Return a chat without its last answer, and that answer."""
    at = len(chat)
    while at and chat[at - 1]["role"] in ("assistant", "tool"):
        at -= 1
    if at == len(chat):
        raise wrong("messages", "does not end with an answer that the label could be about")
    return chat[:at], chat[at:]


def _prompt_answer(given: Given) -> Row:
    field, answer_field = given.first(PROMPTS), given.first(ANSWERS)
    asked = given.side(field)
    if not asked:
        raise wrong(field, "is empty; write what the model is asked")
    [prompt], tools, images = given.finish((field, asked))
    answer = given.columns[answer_field] if answer_field else None
    check_json(answer, answer_field)
    used = {field, answer_field, "tools", "images", "image", "system"}
    return PromptAnswerRow(
        prompt=prompt, answer=answer, columns=given.others(used), tools=tools, images=images
    )


def _stepwise(given: Given) -> Row:
    prompt = filled_text_of(given.columns["prompt"], "prompt")
    steps, verdicts = (_list(given, field) for field in ("completions", "labels"))
    if len(steps) != len(verdicts) or not steps:
        raise wrong("labels", f"are {len(verdicts)} for {len(steps)} completions; write one each")
    return StepwiseRow(
        prompt=prompt,
        completions=tuple(text_of(it, f"completions[{at}]") for at, it in enumerate(steps)),
        labels=tuple(label_of(it, f"labels[{at}]") for at, it in enumerate(verdicts)),
    )


def _list(given: Given, field: str) -> list[Any]:
    found = parsed(given.columns[field], field, begins="[")
    if not isinstance(found, list):
        raise wrong(field, f"is {type_name(found)}; write a list")
    return found


def _is_single(value: object) -> bool:
    return isinstance(value, Mapping)


def _spoken(side: Any) -> Chat:
    return ({"role": "assistant", "content": side},) if isinstance(side, str) else side


def _refuse_unnamed_prompt(given: Given, chosen: object) -> None:
    perhaps = given.first(_PERHAPS_PROMPTS) if isinstance(chosen, str) else ""
    if perhaps:
        raise wrong(
            "prompt", f"is missing; if it is {perhaps!r}, map columns prompt, chosen and rejected"
        )


@dataclass(frozen=True, slots=True)
class Layout:
    """A way in which many people write one kind of row."""

    name: str
    columns: tuple[tuple[str, ...], ...]
    """Of each tuple at least one column is there."""
    read: Callable[[Given], Row]

    def fits(self, value: Mapping[str, Any]) -> bool:
        """Return whether a row has the columns of this layout."""
        for names in self.columns:
            for name in names:
                if value.get(name) is not None:
                    break
            else:
                return False
        return True


LAYOUTS = (
    Layout(
        "openai_preference",
        (("preferred_output",), ("non_preferred_output",), ("input",)),
        _openai_preference,
    ),
    Layout("preference", (("chosen",), ("rejected",)), _preference),
    Layout("stepwise", (("completions",), ("labels",), ("prompt",)), _stepwise),
    Layout("unpaired_preference", (("label",), ("completion",), ("prompt",)), _unpaired),
    Layout("chat", (("messages",),), _chat),
    Layout("sharegpt", (("conversations",),), _chat),
    Layout("prompt_completion", (("completion",), ("prompt",)), _prompt_completion),
    Layout("alpaca", (("output",), ("instruction",)), _alpaca),
    Layout("prompt_answer", (ANSWERS, PROMPTS), _prompt_answer),
    Layout("text", (("text",),), _text),
    Layout("prompt_answer", (("prompt",),), _prompt_answer),
)
"""All layouts, in the order in which they are tried."""

COLUMNS = frozenset(name for one in LAYOUTS for names in one.columns for name in names) | {
    *("tools", "images", "image", "system", "history", *_PERHAPS_PROMPTS)
}
"""Columns that are looked at where no map says which."""

_READERS: Mapping[RowKind, Callable[[Given], Row]] = {
    "messages": _chat,
    "prompt_completion": _prompt_completion,
    "text": _text,
    "preference": _preference,
    "unpaired_preference": _unpaired,
    "prompt_answer": _prompt_answer,
    "stepwise": _stepwise,
}
_LAYOUT_OF: Mapping[str, str] = {"messages": "chat"}
_OPENAI_COLUMNS = {
    "prompt": "input.messages",
    "tools": "input.tools",
    "chosen": "preferred_output",
    "rejected": "non_preferred_output",
}
_ADVICE = (
    "name them as a layout has them (messages; conversations; prompt and completion; instruction "
    "and output; text; chosen and rejected; prompt and answer), or give a column map"
)
