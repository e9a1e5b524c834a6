"""Layouts: each is recognised, what is the same becomes the same row, and nothing is guessed."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lehr.errors import InvalidArgument
from lehr.samples.layouts import recognise
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
from tests.unit.samples.row_strategies import ANSWERS, COMPLETIONS, FILLED, PROMPTS, SIDES, turn

Q, A, B = turn("user", "q"), turn("assistant", "a"), turn("assistant", "b")
CALL = {"type": "function", "function": {"name": "now", "arguments": {"zone": "UTC"}}}
TOOL = {"type": "function", "function": {"name": "now"}}

EXAMPLES: list[tuple[str, dict[str, Any], Row]] = [
    ("chat", {"messages": [Q, A], "id": 7}, ChatRow(messages=(Q, A))),
    ("chat", {"messages": json.dumps([Q, A])}, ChatRow(messages=(Q, A))),
    (
        "chat",
        {"messages": [Q, A], "tools": json.dumps([TOOL]), "system": "s"},
        ChatRow(messages=(turn("system", "s"), Q, A), tools=(TOOL,)),
    ),
    (
        "chat",
        {"messages": [turn("system", "s"), Q, A], "system": "s", "tools": ""},
        ChatRow(messages=(turn("system", "s"), Q, A)),
    ),
    (
        "chat",
        {"messages": [Q, turn("assistant", "a", reasoning_content="r", weight=0)]},
        ChatRow(messages=(Q, turn("assistant", "a", reasoning_content="r", weight=0))),
    ),
    (
        "sharegpt",
        {"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]},
        ChatRow(messages=(Q, A)),
    ),
    ("sharegpt", {"conversations": [Q, A]}, ChatRow(messages=(Q, A))),
    (
        "sharegpt",
        {
            "conversations": [
                {"from": "human", "value": "q"},
                {"from": "function_call", "value": json.dumps(CALL["function"])},
                {"from": "observation", "value": "12:00"},
                {"from": "gpt", "value": "a"},
            ],
            "system": "s",
            "tools": json.dumps([TOOL]),
        },
        ChatRow(
            messages=(
                turn("system", "s"),
                Q,
                turn("assistant", None, tool_calls=[CALL]),
                turn("tool", "12:00"),
                A,
            ),
            tools=(TOOL,),
        ),
    ),
    (
        "alpaca",
        {
            "instruction": "Add",
            "input": "2 2",
            "output": "a",
            "system": "s",
            "history": [["q", "b"]],
            "text": "### Instruction: Add",
        },
        ChatRow(messages=(turn("system", "s"), Q, B, turn("user", "Add\n2 2"), A)),
    ),
    ("alpaca", {"instruction": "q", "input": "", "output": "a"}, ChatRow(messages=(Q, A))),
    (
        "prompt_completion",
        {"prompt": "[1]", "completion": "c", "label": None},
        PromptCompletionRow(prompt="[1]", completion="c"),
    ),
    (
        "prompt_completion",
        {"prompt": [Q], "completion": A},
        PromptCompletionRow(prompt=(Q,), completion=(A,)),
    ),
    (
        "prompt_completion",
        {"prompt": "q", "completion": "a", "system": "s"},
        PromptCompletionRow(prompt=(turn("system", "s"), Q), completion=(A,)),
    ),
    (
        "prompt_completion",
        {"prompt": "q", "completion": "a", "system": ""},
        PromptCompletionRow(prompt=(Q,), completion=(A,)),
    ),
    ("text", {"text": "once", "prompt": "p"}, TextRow(text="once")),
    (
        "preference",
        {"prompt": "q", "chosen": "a", "rejected": "", "messages": [Q, A]},
        PreferenceRow(prompt="q", chosen="a", rejected=""),
    ),
    (
        "preference",
        {"prompt": [Q], "chosen": [A], "rejected": B},
        PreferenceRow(prompt=(Q,), chosen=(A,), rejected=(B,)),
    ),
    (
        "preference",
        {"prompt": "q", "chosen": [Q, A], "rejected": [Q, B], "messages": [Q, A]},
        PreferenceRow(prompt=(Q,), chosen=(A,), rejected=(B,)),
    ),
    (
        "preference",
        {"chosen": "Q: q A: yes", "rejected": "Q: q A: no"},
        PreferenceRow(prompt="Q: q A:", chosen=" yes", rejected=" no"),
    ),
    (
        "preference",
        {"question": "q", "chosen": "a", "rejected": "b", "system": "s"},
        PreferenceRow(prompt=(turn("system", "s"), Q), chosen=(A,), rejected=(B,)),
    ),
    (
        "preference",
        {"instruction": "q", "input": "", "chosen": "a", "rejected": "b"},
        PreferenceRow(prompt=(Q,), chosen=(A,), rejected=(B,)),
    ),
    (
        "preference",
        {
            "conversations": [{"from": "human", "value": "q"}],
            "chosen": {"from": "gpt", "value": "a"},
            "rejected": {"from": "gpt", "value": "b"},
        },
        PreferenceRow(prompt=(Q,), chosen=(A,), rejected=(B,)),
    ),
    (
        "openai_preference",
        {
            "input": {"messages": [Q], "tools": [TOOL], "parallel_tool_calls": True},
            "preferred_output": [A],
            "non_preferred_output": [B],
        },
        PreferenceRow(prompt=(Q,), chosen=(A,), rejected=(B,), tools=(TOOL,)),
    ),
    (
        "unpaired_preference",
        {"prompt": "q", "completion": "a", "label": "False"},
        UnpairedRow(prompt="q", completion="a", label=False),
    ),
    (
        "unpaired_preference",
        {"prompt": [Q], "completion": [A], "label": 1},
        UnpairedRow(prompt=(Q,), completion=(A,), label=True),
    ),
    (
        "prompt_answer",
        {"question": "q", "answer": [4], "level": 3},
        PromptAnswerRow(prompt="q", answer=[4], columns={"level": 3}),
    ),
    (
        "prompt_answer",
        {"problem": "q", "solution": "s", "answer": "4"},
        PromptAnswerRow(prompt="q", answer="4", columns={"solution": "s"}),
    ),
    (
        "prompt_answer",
        {"prompt": [Q], "ground_truth": 4, "tests": [{"in": None}], "tools": [TOOL]},
        PromptAnswerRow(prompt=(Q,), answer=4, columns={"tests": [{"in": None}]}, tools=(TOOL,)),
    ),
    ("prompt_answer", {"prompt": "q"}, PromptAnswerRow(prompt="q", columns={})),
    (
        "stepwise",
        {"prompt": "q", "completions": ["x", "y"], "labels": [True, False]},
        StepwiseRow(prompt="q", completions=("x", "y"), labels=(True, False)),
    ),
    (
        "stepwise",
        {"prompt": "q", "completions": '["x"]', "labels": "[1]"},
        StepwiseRow(prompt="q", completions=("x",), labels=(True,)),
    ),
]


@pytest.mark.parametrize(("layout", "value", "row"), EXAMPLES)
def test_a_layout_is_recognised_and_becomes_its_row(
    layout: str, value: dict[str, Any], row: Row
) -> None:
    found = recognise(value)

    assert found == (row, layout)
    assert json.dumps(found[0].fields) == json.dumps(row.fields)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"messages": [Q, turn("system", "s")]}, r"messages\[1\].role: is 'system' after others"),
        ({"messages": [turn("tool", "x"), A]}, r"messages\[0\].role: is 'tool', but no assistant"),
        ({"messages": [Q, turn("tool", "x"), A]}, r"messages\[1\].role: is 'tool'"),
        ({"messages": [Q, turn("user", "x", tool_calls=[CALL])]}, "only an assistant calls tools"),
        ({"messages": [Q, turn("assistant", None, tool_calls=[])]}, "content: is missing"),
        (
            {"messages": [Q, turn("assistant", None, tool_calls={"name": "f"})]},
            "tool_calls: is an object",
        ),
        ({"messages": [Q, turn("assistant", None, tool_calls=[{}])]}, r"calls\[0\].name: is miss"),
        ({"messages": [Q, turn("assistant", "a", thinking=["x"])]}, "thinking: is a list; write t"),
        ({"messages": [turn("user", [{"type": "audio"}]), A]}, r"content\[0\]: is not"),
        ({"messages": [turn("user", [{"type": "text"}]), A]}, r"content\[0\].text: is missing"),
        ({"messages": [turn("user", {"a": 1}), A]}, "content: is an object; write text"),
        ({"messages": [{"role": "chatgpt", "content": "x"}]}, "role: is 'chatgpt'; use one of"),
        ({"messages": "[{'role': 'user'}]"}, "messages: is text that is not JSON"),
        ({"messages": [Q, A], "system": "s", "tools": {}}, "tools: is an object; write a list"),
        ({"messages": [Q, A], "tools": ["f"]}, r"tools\[0\]: is text; write an object"),
        ({"messages": [turn("system", "t"), Q, A], "system": "s"}, "system: differs from"),
        ({"messages": [Q, A], "system": 5}, "system: is a number; write text"),
        (
            {"conversations": [{"from": "bing", "value": "x"}]},
            r"conversations\[0\].from: is 'bing'",
        ),
        ({"conversations": [{"from": "gpt", "value": None}]}, r"conversations\[0\].value: is miss"),
        ({"conversations": [{"from": "gpt", "value": 5}]}, r"\[0\].value: is a number; write text"),
        ({"conversations": [{"from": "function_call", "value": "x"}]}, "is text that is not JSON"),
        ({"instruction": "", "output": "a"}, "instruction: is empty"),
        ({"instruction": "q", "output": " "}, "output: is empty"),
        ({"instruction": "q", "input": 5, "output": "a"}, "input: is a number; write text"),
        ({"instruction": "q", "output": "a", "history": [["x"]]}, r"history\[0\]: is not \[quest"),
        ({"prompt": [Q], "completion": [Q, A]}, r"completion\[0\].role: is 'user'; an answer"),
        ({"prompt": [Q], "completion": []}, "completion: is empty"),
        ({"prompt": "q", "completion": "a", "label": "good"}, "label: is 'good'; write true or"),
        ({"prompt": "q", "completion": "a", "label": 2}, "label: is a number; write true or false"),
        ({"prompt": "q", "completion": "a", "label": 1.0}, "label: is a number; write true or fal"),
        ({"prompt": "q", "completion": "", "label": True}, "completion: is empty"),
        ({"prompt": "q", "chosen": "", "rejected": "b"}, "chosen: is empty"),
        ({"prompt": [Q], "chosen": "a", "rejected": [B]}, "chosen: must be text or messages"),
        ({"chosen": "a", "rejected": "b"}, "prompt: is missing, and chosen and rejected share no"),
        ({"chosen": [A], "rejected": [B]}, "prompt: is missing, and chosen and rejected share no"),
        ({"input": "q", "chosen": "a", "rejected": "a b"}, "prompt: is missing; if it is 'input'"),
        (
            {"input": "q", "preferred_output": [A], "non_preferred_output": [B]},
            "input: is not an object with messages",
        ),
        (
            {"input": {"messages": [Q]}, "preferred_output": [Q], "non_preferred_output": [B]},
            r"preferred_output\[0\].role \(mapped to chosen\): is 'user'",
        ),
        ({"prompt": "", "answer": 4}, "prompt: is empty"),
        ({"prompt": "q", "seen": float("nan")}, "seen: is nan, which is not JSON"),
        ({"prompt": "q", "seen": {"at": b"x"}}, "at: is a value of type bytes, which is not JSON"),
        ({"prompt": "q", "seen": "x\ud83d"}, r"half a surrogate pair \(U\+D83D\)"),
        ({"prompt": "q", "completions": ["x"], "labels": []}, "labels: are 0 for 1 completions"),
        ({"prompt": "q", "completions": ["x"], "labels": ["no"]}, r"labels\[0\]: is 'no'"),
        ({"prompt": "q", "completions": "x", "labels": [True]}, "completions: is text; write a li"),
        ({}, "fits no layout; its columns are none"),
        ({f"c{at}": 1 for at in range(30)}, "'c11' and 18 more; name them"),
        ({"messages": None, "question": "q"}, "columns are 'messages', 'question'"),
    ],
)
def test_a_wrong_row_is_refused_with_field_and_cure(value: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message) as refused:
        recognise(value)

    assert refused.value.reason == "ROW_INVALID"
    assert "field" in refused.value.facts


def as_sharegpt(chat: Any) -> list[dict[str, Any]]:
    """Return the same chat as authors of ShareGPT files write it."""
    names = {"user": "human", "assistant": "gpt", "system": "system"}
    return [
        {"from": names[one["role"]], "value": one["content"]}
        if one.get("tool_calls") is None
        else {
            "from": "function_call",
            "value": json.dumps([call["function"] for call in one["tool_calls"]]),
        }
        for one in chat
    ]


@given(PROMPTS, COMPLETIONS)
def test_a_chat_and_its_sharegpt_spelling_are_the_same_row(prompt: Any, completion: Any) -> None:
    chat = [*prompt, *completion]

    as_chat = recognise({"messages": chat})[0]

    assert recognise({"conversations": as_sharegpt(chat)})[0] == as_chat
    assert recognise({"conversations": chat})[0] == as_chat
    assert recognise({"messages": json.dumps(chat)})[0] == as_chat
    assert as_chat == ChatRow(messages=tuple(chat))


@given(FILLED, FILLED, st.lists(st.lists(FILLED, min_size=2, max_size=2), max_size=2), FILLED)
def test_alpaca_is_the_chat_that_it_tells(
    question: str, answer: str, history: list[list[str]], system: str
) -> None:
    turns = [turn("system", system)]
    turns += [
        turn(r, t) for pair in history for r, t in zip(("user", "assistant"), pair, strict=True)
    ]
    turns += [turn("user", question), turn("assistant", answer)]
    alpaca = {"instruction": question, "output": answer, "history": history, "system": system}

    assert recognise(alpaca)[0] == recognise({"messages": turns})[0]


@given(SIDES)
def test_openais_preference_and_the_plain_one_are_the_same_row(sides: tuple[Any, ...]) -> None:
    prompt, chosen, rejected = sides
    plain, _ = recognise({"prompt": prompt, "chosen": chosen, "rejected": rejected})

    assert plain == PreferenceRow(prompt=prompt, chosen=chosen, rejected=rejected)
    if not isinstance(prompt, str):
        told = {
            "input": {"messages": list(prompt), "tools": None},
            "preferred_output": list(chosen),
            "non_preferred_output": list(rejected),
        }
        assert recognise(told)[0].key() == plain.key()


@given(PROMPTS, st.tuples(ANSWERS, ANSWERS).filter(lambda pair: pair[0] != pair[1]))
def test_the_common_beginning_of_two_chats_is_their_prompt(prompt: Any, answers: Any) -> None:
    chosen, rejected = ((*prompt, answer) for answer in answers)

    row, _ = recognise({"chosen": chosen, "rejected": rejected})

    assert row == PreferenceRow(prompt=prompt, chosen=answers[:1], rejected=answers[1:])


@given(FILLED, FILLED, FILLED)
def test_two_texts_are_given_back_whole_by_prompt_and_answers(
    prompt: str, chosen: str, rejected: str
) -> None:
    row, _ = recognise({"chosen": f"Q{prompt}{chosen}", "rejected": f"Q{prompt}{rejected}"})

    assert isinstance(row, PreferenceRow)
    assert f"{row.prompt}{row.chosen}" == f"Q{prompt}{chosen}"
    assert f"{row.prompt}{row.rejected}" == f"Q{prompt}{rejected}"
    assert row.prompt
    assert row.chosen
    assert row.rejected


@given(
    st.dictionaries(
        st.sampled_from(["messages", "prompt", "completion", "text", "chosen", "rejected", "label"])
        | st.sampled_from(["completions", "labels", "instruction", "output", "answer", "system"])
        | st.sampled_from(["conversations", "tools", "images", "input", "preferred_output"]),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.text(max_size=3),
            lambda inner: (
                st.lists(inner, max_size=2)
                | st.dictionaries(st.sampled_from(["role", "content", "from", "value"]), inner)
            ),
            max_leaves=4,
        ),
        max_size=5,
    )
)
def test_whatever_comes_is_a_row_or_a_refusal_with_words(value: dict[str, Any]) -> None:
    try:
        told = recognise(value)[0].key().hex()
    except InvalidArgument as refused:
        told = refused.reason

    assert told == "ROW_INVALID" or len(told) == 32
