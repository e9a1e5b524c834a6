"""An answer's place is proved, or the chat is refused: templates that would give a wrong one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from lehr.errors import InvalidArgument
from lehr.samples.answers import find_answers
from lehr.samples.chat import ChatTemplate
from lehr.samples.rendering import Renderer
from lehr.samples.rows import PreferenceRow, PromptCompletionRow, UnpairedRow
from lehr.samples.simple_chats import SimpleChats
from tests.support.canonical_rows import a_chat
from tests.unit.samples.test_token_properties import MOVING_TEMPLATE

PROMPT = "{{ '[assistant]' if add_generation_prompt }}"
CHAT = (("user", "q"), ("assistant", "one"), ("user", "r"), ("assistant", "two"))


def turns_with(answer: str, *, inner: str = "", user: str = "{{ message.content }}") -> str:
    """Return a template of bracketed roles; ``answer`` and ``user`` write a turn's content."""
    return (
        f"{{% for message in messages %}}{inner}{{{{ '[' ~ message.role ~ ']' }}}}"
        f"{{% if message.role == 'assistant' %}}{answer}{{% else %}}{user}{{% endif %}}"
        "{% endfor %}" + PROMPT
    )


def of(source: str) -> ChatTemplate:
    return ChatTemplate(source, special_tokens={})


def learnt(source: str, turns: Sequence[Any], *, shown: int = 0) -> list[str]:
    """Return what is trained of a chat of role and content, or of messages."""
    chat = a_chat(*turns).messages if isinstance(turns[0], tuple) else turns
    found = find_answers(of(source), chat, shown=shown)
    return [found.text[span.start : span.end] for span in found.spans]


def refusal(source: str, turns: Sequence[Any], *, shown: int = 0) -> str:
    with pytest.raises(InvalidArgument) as refused:
        learnt(source, turns, shown=shown)
    assert refused.value.reason == "TEMPLATE_HIDES_ANSWERS"
    return refused.value.message


def test_a_mark_that_begins_where_the_prompt_ends_belongs_to_the_answer() -> None:
    source = (
        "{% for message in messages %}{% if message.role == 'assistant' %}{% generation %}"
        "{{ message.content }}!{% endgeneration %}{% else %}{{ message.content }}{% endif %}"
        "{% endfor %}"
    )

    assert learnt(source, CHAT[:2], shown=1) == ["one!"]
    assert learnt(source, CHAT, shown=3) == ["two!"]


def test_marks_after_a_prompt_that_changes_with_the_answer_are_refused() -> None:
    answer = "{% generation %}{{ message.content }}{% endgeneration %}"
    source = turns_with(answer, user="{{ message.content }}{{ '.' if loop.last }}")

    assert "renders the prompt differently once an answer follows" in refusal(source, CHAT, shown=3)
    assert learnt(source, CHAT) == ["one", "two"]


def test_marks_around_something_else_are_refused() -> None:
    source = turns_with("{% generation %}>{% endgeneration %}{{ message.content }};")

    assert "the text of message 4 is not where its answer should be" in refusal(source, CHAT)


def test_an_empty_block_that_the_prompt_ends_with_is_seen() -> None:
    block = "{{ '<think>\\n\\n</think>\\n\\n' }}"
    source = turns_with(block + "{{ message.content }};").replace(
        PROMPT, "{% if add_generation_prompt %}[assistant]" + block + "{% endif %}"
    )
    thought = [CHAT[0], ("assistant", "<think>hm</think>one")]

    assert "an empty block before the reasoning of message 2" in refusal(source, thought)
    assert learnt(source, CHAT[:2]) == ["one;"]


def test_a_call_whose_name_is_not_shown_is_refused() -> None:
    call = {"type": "function", "function": {"name": "weather", "arguments": {}}}
    chat = (
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
    )
    count = "{{ message.tool_calls | length }};"
    name = "{{ message.tool_calls[0].function.name }};"

    assert "message 2 is not where" in refusal(turns_with(count), chat)
    assert learnt(turns_with(name), chat) == ["weather;"]


def test_a_probe_word_in_a_chat_that_moves_does_not_mislead() -> None:
    for word in ("lehrprobe", "lehrprobe0x lehrprobe1x lehrprobe", "lehrprobe01x"):
        for rules, question in (("be", f"{word} {word}"), (word, "q"), (word, word)):
            chat = (("system", rules), ("user", question), *CHAT[1:])
            assert learnt(MOVING_TEMPLATE, chat) == ["one</s>", "two</s>"]


def test_an_answer_that_ends_otherwise_once_others_follow_is_refused() -> None:
    source = turns_with("{{ message.content }}{{ '</s>' if loop.last else ';' }}")

    assert "ends message 2 differently once others follow" in refusal(source, CHAT)


def test_reasoning_that_is_stripped_beside_a_call_is_refused() -> None:
    call = {"type": "function", "function": {"name": "weather", "arguments": {}}}
    answer = {"role": "assistant", "content": "<think>hm</think>so", "tool_calls": [call]}
    source = turns_with(
        "{{ message.content.split('</think>')[-1] }}"
        "{{ message.tool_calls[0].function.name if message.tool_calls }};"
    )
    question = {"role": "user", "content": "q"}

    assert "does not show the reasoning of message 2" in refusal(source, (question, answer))
    spoken = {**answer, "tool_calls": None}
    assert learnt(source, (question, spoken)) == ["<think>\nhm\n</think>\n\nso;"]


def test_a_prompt_that_rewrites_earlier_answers_is_refused() -> None:
    source = turns_with(
        "{{ '!' if add_generation_prompt }}{{ message.content.split('</think>')[-1] }};"
    )
    chat = (*CHAT[:3], ("assistant", "<think>hm</think>two"))

    assert "renders earlier turns differently before an answer is written" in refusal(source, chat)


def test_an_answer_whose_surroundings_overlap_is_refused() -> None:
    # Nothing is written as aaa, anything else between aa and aa.
    source = (
        "{% for message in messages %}{{ '[' ~ message.role ~ ']' }}"
        "{% if message.role == 'assistant' and not message.content %}aaa"
        "{% elif message.role == 'assistant' %}aa{{ message.content }}aa"
        "{% else %}{{ message.content }}{{ '.' if loop.index0 == loop.length - 2 }}{% endif %}"
        "{% endfor %}"
    )
    chat = (CHAT[0], ("assistant", ""), *CHAT[2:])

    assert "renders the rest of the chat differently" in refusal(source, chat)


def test_a_word_that_a_template_replaces_is_looked_for_and_refused() -> None:
    source = turns_with("{{ message.content | replace('bad', '***') }};")
    simple = SimpleChats(of(source))
    chat = a_chat(CHAT[0], ("assistant", "so bad")).messages

    assert simple.find(a_chat(*CHAT).messages) == find_answers(of(source), a_chat(*CHAT).messages)
    assert simple.find(chat) is None
    assert "message 2 is not where its answer should be" in refusal(source, chat)


def test_what_only_some_chats_end_with_is_looked_for() -> None:
    source = turns_with("{{ message.content }};{{ '!' if loop.last and 'z' in message.content }}")
    simple = SimpleChats(of(source))
    chat = a_chat(CHAT[0], ("assistant", "z")).messages

    assert simple.find(chat) is None
    assert learnt(source, chat) == ["z;!"]
    assert simple.find(a_chat(*CHAT).messages) is not None


def test_a_chat_with_more_than_text_is_looked_for() -> None:
    source = turns_with("{{ message.content }};")
    answer = {"role": "assistant", "content": "one", "thinking": "hm"}
    chat = ({"role": "user", "content": "q"}, answer, *a_chat(*CHAT[2:]).messages)

    assert SimpleChats(of(source)).find(chat) is None
    assert learnt(source, chat) == ["two;"]


def test_habits_with_rules_and_without_are_learnt_apart() -> None:
    source = turns_with("{{ message.content }};{{ '!' if messages[0].role == 'system' }}")
    simple = SimpleChats(of(source))

    for turns in (CHAT, (("system", "be"), *CHAT)):
        chat = a_chat(*turns).messages
        assert simple.find(chat) == find_answers(of(source), chat)
        assert simple.find(chat) is not None
    assert learnt(source, (("system", "be"), *CHAT)) == ["one;!", "two;!"]


def test_answers_that_nothing_ends_are_looked_for() -> None:
    source = turns_with("{{ message.content }}")
    chat = a_chat(CHAT[0], ("assistant", "one ")).messages

    assert SimpleChats(of(source)).find(chat) is None
    assert learnt(source, chat) == ["one"]


def test_prompts_that_differ_with_the_answer_cannot_be_compared() -> None:
    source = turns_with(
        "{{ message.content }};",
        user="{{ message.content }}{{ '!' if 'z' in messages[-1].content }}",
    )
    renderer = Renderer({"default": of(source)})

    def pair(rejected: str) -> PreferenceRow:
        sides = ({"role": "assistant", "content": said} for said in ("one", rejected))
        chosen, other = ((turn,) for turn in sides)
        return PreferenceRow(prompt=a_chat(CHAT[0]).messages, chosen=chosen, rejected=other)

    with pytest.raises(InvalidArgument, match="cannot be compared") as refused:
        renderer.render(pair("z"))

    assert refused.value.reason == "CONTEXT_DIFFERS"
    assert [side.text for side in renderer.render(pair("two"))] == [
        "[user]q[assistant]one;",
        "[user]q[assistant]two;",
    ]


def test_tools_are_shown_to_the_template_and_choose_it() -> None:
    tools = ({"type": "function", "function": {"name": "now"}},)
    source = "{{ tools | length if tools is not none else '-' }}" + turns_with(
        "{{ message.content }};"
    )
    renderer = Renderer({"default": of(source), "tool_use": of("T" + source)})

    def begins(tools: Any) -> str:
        [found] = renderer.render(a_chat(*CHAT, tools=tools))
        assert [found.text[span.start : span.end] for span in found.spans] == ["one;", "two;"]
        return found.text[:2]

    assert (begins(None), begins(tools), begins(())) == ("-[", "T1", "T0")


def test_each_side_of_a_preference_has_the_images_of_its_own_turns() -> None:
    def seen(role: str) -> dict[str, Any]:
        return {"role": role, "content": [{"type": "image"}, {"type": "text", "text": "x"}]}

    answer = {"role": "assistant", "content": "y"}
    words = "{{ message.content | map(attribute='text') | join }}"
    renderer = Renderer({"default": of(turns_with("{{ message.content }};", user=words))})
    row = PreferenceRow(
        prompt=(seen("user"),),
        chosen=(answer, seen("user"), seen("user"), answer),
        rejected=(answer, seen("user"), answer),
        images=("p", "c1", "c2", "r"),
    )

    sides = renderer.render(row)

    assert [side.images for side in sides] == [("p", "c1", "c2"), ("p", "r")]


def test_a_prompt_of_no_text_is_no_turn() -> None:
    renderer = Renderer({"default": of(turns_with("{{ message.content }};"))})
    answer = a_chat(CHAT[1]).messages

    for row in (
        PromptCompletionRow(prompt="", completion=answer),
        UnpairedRow(prompt="", completion=answer, label=True),
    ):
        [found] = renderer.render(row)
        assert found.text == "[assistant]one;"
