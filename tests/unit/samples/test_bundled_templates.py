"""Templates for base models: each ends every answer with a mark that the tokenizer knows."""

from __future__ import annotations

import pytest
from tokenizers import AddedToken, Tokenizer

from lehr.errors import InvalidArgument
from lehr.samples.answers import find_answers
from lehr.samples.chat import ChatTemplate
from lehr.samples.templates import TEMPLATES, BundledTemplate, bundled
from tests.support.toy_model import toy_tokenizer

SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}
CHAT = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": "Hello"},
    {"role": "user", "content": [{"type": "text", "text": "A"}, {"type": "text", "text": "B"}]},
    {"role": "assistant", "content": "C"},
]


def a_tokenizer(template: BundledTemplate) -> Tokenizer:
    tokenizer = toy_tokenizer()
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in template.needs])
    return tokenizer


@pytest.fixture(params=TEMPLATES.values(), ids=TEMPLATES)
def template(request: pytest.FixtureRequest) -> BundledTemplate:
    """Each of them."""
    found: BundledTemplate = request.param
    return found


def test_answers_are_trained_with_their_end_and_nothing_else(template: BundledTemplate) -> None:
    source = bundled(template.name, a_tokenizer(template), SPECIAL)

    found = find_answers(ChatTemplate(source, special_tokens=SPECIAL), CHAT)

    end = template.needs[-1] if template.needs else "</s>"
    assert [found.text[span.start : span.end] for span in found.spans] == [f"Hello{end}", f"C{end}"]
    assert "AB" in found.text
    assert "Be brief." in found.text


def test_the_generation_prompt_is_what_stands_before_an_answer(template: BundledTemplate) -> None:
    compiled = ChatTemplate(template.source(), special_tokens=SPECIAL)

    prompt = compiled.render(CHAT[:2], add_generation_prompt=True)

    assert compiled.render(CHAT[:3]).startswith(prompt)
    assert compiled.render(CHAT[:3])[len(prompt) :].lstrip(" ").startswith("Hello")


def test_tools_are_refused_by_name(template: BundledTemplate) -> None:
    compiled = ChatTemplate(template.source(), special_tokens=SPECIAL)

    with pytest.raises(InvalidArgument, match=f"the {template.name} template has no place for"):
        compiled.render(CHAT, tools=[{"type": "function", "function": {"name": "now"}}])


@pytest.mark.parametrize("name", [one.name for one in TEMPLATES.values() if one.needs])
def test_marks_that_the_model_does_not_know_are_refused(name: str) -> None:
    with pytest.raises(InvalidArgument, match="does not know; use plain") as refused:
        bundled(name, toy_tokenizer(), SPECIAL)

    assert refused.value.reason == "TEMPLATE_DOES_NOT_FIT"


def test_a_tokenizer_without_an_end_token_cannot_end_an_answer() -> None:
    with pytest.raises(InvalidArgument, match="names none"):
        bundled("plain", toy_tokenizer(), {})


def test_an_unknown_template_names_those_that_exist() -> None:
    with pytest.raises(InvalidArgument, match="use one of plain, alpaca"):
        bundled("alpacca", toy_tokenizer(), SPECIAL)
