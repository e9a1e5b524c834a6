"""A chat template costs what a chat costs, whatever its author meant it to do."""

from __future__ import annotations

import pytest

from lehr.errors import InvalidArgument
from lehr.samples.chat import ChatTemplate

CHAT = [{"role": "user", "content": "abc"}, {"role": "assistant", "content": "def"}]

BOMBS = {
    "loops": "{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}",
    "recursion": "{% macro f(n) %}{{ f(n) }}{{ f(n) }}{% endmacro %}{{ f(1) }}",
    "joined": (
        "{% set state = namespace(x='a' * 99) %}{% for a in range(99) %}"
        "{% set state.x = state.x ~ state.x %}{% endfor %}"
    ),
    "added": (
        "{% set state = namespace(x='a' * 99) %}{% for a in range(99) %}"
        "{% set state.x = state.x + state.x %}{% endfor %}"
    ),
    "repeated": "{{ 'a' * 999999999 }}",
    "list": "{{ [1] * 999999999 }}",
    "power": "{{ 9 ** 9 ** 9 }}",
    "percent": "{{ '%999999999d' % 1 }}",
    "filter center": "{{ 'a' | center(999999999) }}",
    "filter indent": "{{ 'a\nb' | indent(999999999) }}",
    "filter format": "{{ '%999999999d' | format(1) }}",
    "filter slice": "{{ [1] | slice(999999999) | list }}",
    "filter join": "{{ range(99999) | join('a' * 9999) }}",
    "filter replace": "{{ ('a' * 99999) | replace('a', 'b' * 99999) }}",
    "filter tojson": "{{ [[1]] | tojson(indent=999999999) }}",
    "method ljust": "{{ 'a'.ljust(999999999) }}",
    "method zfill": "{{ '1'.zfill(999999999) }}",
    "method expandtabs": "{{ '\t'.expandtabs(999999999) }}",
    "method join": "{{ ('a' * 9999).join(range(99999) | map('string')) }}",
    "method replace": "{{ ('a' * 99999).replace('a', 'b' * 99999) }}",
    "method format": "{{ '{:999999999}'.format(1) }}",
    "method translate": "{{ 'a'.translate({97: 'b' * 99999}) }}",
}


@pytest.mark.parametrize("source", BOMBS.values(), ids=BOMBS)
def test_a_template_that_builds_or_loops_without_end_is_refused(source: str) -> None:
    template = ChatTemplate(source, special_tokens={})

    with pytest.raises(InvalidArgument, match="chat template refuses") as refused:
        template.render(CHAT)

    assert refused.value.reason == "TEMPLATE_REFUSES_ROW"


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ self._TemplateReference__context.vars }}",
        "{{ lipsum(n=99) }}",
        "{{ cycler.__init__.__globals__ }}",
        "{{ [1, 2] | random }}",
    ],
)
def test_a_template_reaches_nothing_outside_the_chat(source: str) -> None:
    with pytest.raises(InvalidArgument):
        ChatTemplate(source, special_tokens={}).render(CHAT)


def test_the_meter_cannot_be_replaced_by_a_name_of_the_template() -> None:
    source = "{% set _Meter = 1 %}{% set step = 1 %}" + BOMBS["loops"]

    with pytest.raises(InvalidArgument, match="loops more than"):
        ChatTemplate(source, special_tokens={}).render(CHAT)


def test_ordinary_text_is_joined_as_jinja_joins_it() -> None:
    source = (
        "{{ 'a' ~ 1 ~ none ~ true }}|{{ 'x' + 'y' }}|{{ 2 ** 3 }}|{{ 'ab' * 2 }}|{{ '%s!' % 'z' }}"
        "|{{ ['p', 'q'] | join('-') }}|{{ 'a.b' | replace('.', '!') }}|{{ 'k' | center(3) }}"
        "|{{ 'a\nb' | indent(2) }}|{{ ', '.join(['m', 'n']) }}|{{ '{}-{}'.format(1, 2) }}"
        "|{{ ', '.join(messages | map(attribute='role')) }}"
        "|{{ [1, 2] | slice(2) | list }}|{{ messages | map(attribute='role') | join(',') }}"
    )

    shown = ChatTemplate(source, special_tokens={}).render(CHAT)

    assert shown == (
        "a1NoneTrue|xy|8|abab|z!|p-q|a!b| k |a\n  b|m, n|1-2|user, assistant"
        "|[[1], [2]]|user,assistant"
    )


def test_a_long_chat_is_well_within_the_budget() -> None:
    chat = [{"role": "user", "content": "x" * 1000}] * 5000

    shown = ChatTemplate(
        "{% for message in messages %}{{ message.role ~ ': ' ~ message.content }}{% endfor %}",
        special_tokens={},
    ).render(chat)

    assert len(shown) == 5000 * 1006
