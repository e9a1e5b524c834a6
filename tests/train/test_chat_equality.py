"""Our rendering and token masks against those of transformers, on templates of many habits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lehr.demo.tiny import CHAT_TEMPLATE, tiny_llama
from lehr.samples.chat import ChatTemplate
from lehr.samples.rows import ChatRow, PromptCompletionRow
from lehr.samples.tokens import SampleTokenizer
from tests.support.toy_model import MARKED_TEMPLATE, PLAIN_TEMPLATE, write_toy_model

pytestmark = pytest.mark.train

SMOLLM2 = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
    "<|im_end|>\n' }}{% endif %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + "
    "'<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|im_start|>assistant\n' }}{% endif %}"
)
TOOLS = """\
{%- if tools %}
    {{- '<|im_start|>system\\n# Tools\\n<tools>' }}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\\n</tools><|im_end|>\\n" }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == "assistant" and message.tool_calls %}
        {{- '<|im_start|>' + message.role }}
        {%- if message.content %}{{- '\\n' + message.content }}{%- endif %}
        {%- for call in message.tool_calls %}
            {%- if call.function %}{%- set call = call.function %}{%- endif %}
            {{- '\\n<tool_call>\\n{"name": "' }}{{- call.name }}
            {{- '", "arguments": ' }}{{- call.arguments | tojson(indent=2) }}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content | trim + '<|im_end|>' + '\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""
REASONING = """\
{%- macro turn(message) -%}
    {{ bos_token }}{{ message.role }}
    {%- if message.reasoning_content is defined -%}
        <think>{{ message.reasoning_content }}</think>
    {%- endif %}
    {{ message.content }}{{ eos_token }}
{% endmacro -%}
{%- set state = namespace(count=0) -%}
{% for message in messages -%}
    {% if message.role == 'system' %}{% continue %}{% endif -%}
    {% set state.count = state.count + 1 -%}
    {{ turn(message) }}
    {% if state.count > 5 %}{% break %}{% endif -%}
{% endfor %}
{{ dict(a=1)['a'] }} of {{ state.count }}
{% if add_generation_prompt %}{{ bos_token }}assistant{% endif %}
"""
PLAIN = [
    {"role": "user", "content": "What is <b>2 + 2</b>?"},
    {"role": "assistant", "content": "It's four.\n\n"},
    {"role": "user", "content": "And 3 + 3?"},
    {"role": "assistant", "content": "6", "reasoning": "three plus three"},
]
#: Nothing of it is hidden by a template that does not know reasoning.
TOLD = [{key: turn[key] for key in ("role", "content")} for turn in PLAIN]
CALLING = [
    {"role": "user", "content": "Weather in Z\u00fcrich?"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {
                "type": "function",
                "function": {"name": "weather", "arguments": {"city": "Z\u00fcrich", "day": None}},
            }
        ],
    },
    {"role": "tool", "name": "weather", "content": "4 C"},
    {"role": "assistant", "content": "It is 4 degrees."},
]
A_TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}


def theirs(folder: Path) -> Any:
    from transformers import AutoTokenizer  # noqa: PLC0415 - takes seconds

    return AutoTokenizer.from_pretrained(folder, local_files_only=True)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("tiny"))


@pytest.mark.parametrize("add_generation_prompt", [False, True])
@pytest.mark.parametrize(
    ("template", "messages", "tools"),
    [
        (SMOLLM2, PLAIN, None),
        (CHAT_TEMPLATE, PLAIN, None),
        (TOOLS, PLAIN, None),
        (TOOLS, CALLING, [A_TOOL]),
        (TOOLS, CALLING, []),
        (REASONING, PLAIN, None),
        (MARKED_TEMPLATE, PLAIN, None),
    ],
)
def test_the_text_is_the_one_that_transformers_renders(
    tiny: Path, template: str, messages: Any, tools: Any, add_generation_prompt: bool
) -> None:
    tokenizer = theirs(tiny)
    expected = tokenizer.apply_chat_template(
        messages,
        tools=tools,
        chat_template=template,
        tokenize=False,
        add_generation_prompt=add_generation_prompt,
    )

    chat = ChatTemplate(template, special_tokens=tokenizer.special_tokens_map)

    rendered = chat.render(messages, tools=tools, add_generation_prompt=add_generation_prompt)
    assert rendered == expected


def test_ids_and_mask_are_those_of_transformers_where_the_template_marks_answers(
    tmp_path: Path,
) -> None:
    folder = write_toy_model(tmp_path, template=MARKED_TEMPLATE)
    expected = theirs(folder).apply_chat_template(
        TOLD, tokenize=True, return_dict=True, return_assistant_tokens_mask=True
    )

    row = ChatRow(messages=tuple(TOLD))
    sample = SampleTokenizer.load(folder).encode([row])[0].sample

    assert list(sample.token_ids) == expected["input_ids"]
    assert list(sample.trained) == expected["assistant_masks"]


@pytest.mark.parametrize("template", [SMOLLM2, CHAT_TEMPLATE, TOOLS, PLAIN_TEMPLATE])
def test_ids_are_those_of_transformers_and_answers_are_found_without_marks(
    tiny: Path, tmp_path: Path, template: str
) -> None:
    for name in ("tokenizer.json", "config.json"):
        (tmp_path / name).write_bytes((tiny / name).read_bytes())
    settings = json.loads((tiny / "tokenizer_config.json").read_text())
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({**settings, "chat_template": template})
    )
    expected = theirs(tmp_path).apply_chat_template(TOLD, tokenize=True)["input_ids"]

    tokenizer = SampleTokenizer.load(tmp_path)
    sample = tokenizer.encode([ChatRow(messages=tuple(TOLD))])[0].sample

    pieces = zip(tokenizer.pieces(sample), sample.trained, strict=True)
    answers = "".join(piece for piece, trained in pieces if trained)
    assert list(sample.token_ids) == expected
    assert "It's four." in answers
    assert "2 + 2" not in answers
    assert "assistant" not in answers


def test_plain_text_is_tokenised_as_transformers_does(tiny: Path) -> None:
    expected = theirs(tiny)("Return the number of items  in the list")["input_ids"]

    row = PromptCompletionRow(prompt="Return the number of", completion=" items  in the list")
    sample = SampleTokenizer.load(tiny).encode([row])[0].sample

    assert list(sample.token_ids)[:-1] == expected
