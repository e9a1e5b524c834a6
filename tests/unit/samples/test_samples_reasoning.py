"""Reasoning in answers is trained once, where it belongs, or left out and counted."""

from __future__ import annotations

from typing import Any

import pytest

from lehr.errors import InvalidArgument
from lehr.samples.answers import Answers, find_answers
from lehr.samples.chat import ChatTemplate

#: Shows the reasoning of answers to the last question only, and an empty block where there is none.
FORGETFUL = """
{%- set state = namespace(question=-1) -%}
{%- for message in messages -%}
  {%- if message.role == 'user' -%}{%- set state.question = loop.index0 -%}{%- endif -%}
{%- endfor -%}
{%- for message in messages -%}
  {{- '<|' ~ message.role ~ '|>' -}}
  {%- if message.role == 'assistant' -%}
    {%- set said = message.content -%}
    {%- set thought = message.reasoning_content or '' -%}
    {%- if '</think>' in said -%}
      {%- set thought = said.split('</think>')[0].split('<think>')[-1].strip() -%}
      {%- set said = said.split('</think>')[-1].lstrip() -%}
    {%- endif -%}
    {%- if loop.index0 > state.question and (loop.last or thought) -%}
      {{- '<think>\\n' ~ thought ~ '\\n</think>\\n\\n' ~ said -}}
    {%- else -%}
      {{- said -}}
    {%- endif -%}
  {%- else -%}
    {{- message.content -}}
  {%- endif -%}
  {{- '</s>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|assistant|>' -}}{%- endif -%}
"""

#: Opens the block in the prompt, and strips every block from the answers of a chat.
STRIPPING = """
{%- for message in messages -%}
  {{- '<|' ~ message.role ~ '|>' -}}
  {%- if message.role == 'assistant' -%}
    {{- message.content.split('</think>')[-1].lstrip() -}}
  {%- else -%}
    {{- message.content -}}
  {%- endif -%}
  {{- '</s>' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|assistant|><think>\\n' -}}{%- endif -%}
"""

#: Writes content as it stands.
VERBATIM = (
    "{% for message in messages %}{{ '<|' ~ message.role ~ '|>' ~ message.content ~ '</s>' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)

TWO_TURNS = (
    ("user", "What is 2+2?"),
    ("assistant", "<think>two plus two</think>The answer is 4."),
    ("user", "And 3+3?"),
    ("assistant", "<think>three plus three</think>6."),
)
ONLY_CLOSED = (("user", "What is 5+5?"), ("assistant", "five and five\n</think>\n\n10."))


def answers_of(template: str, *turns: tuple[str, str], **fields: Any) -> Answers:
    """Return the answers of a chat; ``fields`` go into its last turn."""
    messages = [{"role": role, "content": content} for role, content in turns]
    messages[-1].update(fields)
    return find_answers(ChatTemplate(template, special_tokens={}), messages)


def trained(found: Answers) -> list[str]:
    return [found.text[span.start : span.end] for span in found.spans]


def test_an_earlier_answer_without_its_reasoning_is_left_out_and_counted() -> None:
    found = answers_of(FORGETFUL, *TWO_TURNS)

    assert trained(found) == ["<think>\nthree plus three\n</think>\n\n6.</s>"]
    assert found.hidden_count == 1
    assert found.text.count("two plus two") == 0


def test_an_earlier_answer_without_reasoning_is_trained_as_it_stands_in_the_chat() -> None:
    found = answers_of(
        FORGETFUL, ("user", "a"), ("assistant", "b"), ("user", "c"), ("assistant", "d")
    )

    assert trained(found) == ["b</s>", "<think>\n\n</think>\n\nd</s>"]
    assert found.hidden_count == 0


def test_a_closing_mark_alone_closes_the_whole_thought() -> None:
    found = answers_of(FORGETFUL, *ONLY_CLOSED)

    assert trained(found) == ["<think>\nfive and five\n</think>\n\n10.</s>"]


def test_reasoning_that_a_template_strips_is_trained_after_the_prompt_that_opens_it() -> None:
    found = answers_of(STRIPPING, *TWO_TURNS)

    assert trained(found) == ["three plus three\n</think>\n\n6.</s>"]
    assert found.text.endswith("And 3+3?</s><|assistant|><think>\n" + trained(found)[0])
    assert found.hidden_count == 1


def test_an_orphan_closing_mark_gets_its_opening_where_content_is_verbatim() -> None:
    found = answers_of(VERBATIM, *ONLY_CLOSED)

    assert trained(found) == ["<think>\nfive and five\n</think>\n\n10.</s>"]


def test_every_answer_of_a_verbatim_template_keeps_its_block() -> None:
    found = answers_of(VERBATIM, *TWO_TURNS)

    assert trained(found) == [content + "</s>" for role, content in TWO_TURNS if role != "user"]
    assert found.hidden_count == 0


def test_reasoning_beside_the_content_is_found_where_the_template_shows_it() -> None:
    found = answers_of(
        FORGETFUL, ("user", "a"), ("assistant", "b"), reasoning="because", content="b"
    )

    assert trained(found) == ["<think>\nbecause\n</think>\n\nb</s>"]


def test_reasoning_that_a_template_does_not_know_is_never_lost_in_silence() -> None:
    with pytest.raises(InvalidArgument, match="reasoning of message 2") as refused:
        answers_of(VERBATIM, ("user", "a"), ("assistant", "b"), reasoning="because")

    assert refused.value.reason == "TEMPLATE_HIDES_ANSWERS"


def test_an_empty_block_before_a_block_is_refused() -> None:
    doubled = VERBATIM.replace(
        "'|>' ~ message.content", "'|><think>\\n\\n</think>' ~ message.content"
    )

    with pytest.raises(InvalidArgument, match="empty block"):
        answers_of(doubled, *TWO_TURNS[:2])


def test_a_probe_word_in_the_chat_does_not_mislead() -> None:
    turns = (("user", "lehrprobe"), ("assistant", "lehrprobe"), ("user", "c"), ("assistant", "d"))

    found = answers_of(FORGETFUL, *turns)

    assert trained(found) == ["lehrprobe</s>", "<think>\n\n</think>\n\nd</s>"]


def test_a_tool_call_before_the_last_question_keeps_its_place() -> None:
    calling = FORGETFUL.replace(
        "{{- '</s>\\n' -}}",
        "{%- for call in message.tool_calls or [] -%}{{- '[' ~ call.function.name ~ ']' -}}"
        "{%- endfor -%}{{- '</s>\\n' -}}",
    )
    call = {"type": "function", "function": {"name": "now", "arguments": {}}}
    messages = [
        {"role": "user", "content": "time?"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "12"},
        {"role": "assistant", "content": "noon"},
        {"role": "user", "content": "thanks"},
        {"role": "assistant", "content": "ok"},
    ]

    found = find_answers(ChatTemplate(calling, special_tokens={}), messages)

    assert trained(found) == ["[now]</s>", "noon</s>", "<think>\n\n</think>\n\nok</s>"]


def test_answers_without_a_mark_are_counted_where_a_template_marks_only_some() -> None:
    last_only = (
        "{% for message in messages %}{{ '<|' ~ message.role ~ '|>' }}"
        "{% if message.role == 'assistant' and loop.last %}"
        "{% generation %}{{ message.content ~ '</s>' }}{% endgeneration %}"
        "{% else %}{{ message.content ~ '</s>' }}{% endif %}{% endfor %}"
    )

    found = answers_of(
        last_only, ("user", "a"), ("assistant", "b"), ("user", "c"), ("assistant", "d")
    )

    assert (trained(found), found.hidden_count) == (["d</s>"], 1)
