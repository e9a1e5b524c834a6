"""A chat template costs what a chat costs, whatever its author meant it to do."""

from __future__ import annotations

import pytest

from lehr.errors import InvalidArgument
from lehr.samples import sandbox
from lehr.samples.chat import ChatTemplate

CHAT = [{"role": "user", "content": "abc"}, {"role": "assistant", "content": "def"}]

BOMBS = {
    "loops": "{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}",
    "recursion": "{% macro f(n) %}{{ f(n) }}{{ f(n) }}{% endmacro %}{{ f(1) }}",
    "macros that end": (
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(40) }}"
    ),
    "joined": (
        "{% set state = namespace(x='a' * 99) %}{% for a in range(99) %}"
        "{% set state.x = state.x ~ state.x %}{% endfor %}"
    ),
    "added": (
        "{% set state = namespace(x='a' * 99) %}{% for a in range(99) %}"
        "{% set state.x = state.x + state.x %}{% endfor %}"
    ),
    "repeated": "{{ 'a' * 999999999 }}",
    "repeated, number first": "{{ 999999999 * 'a' }}",
    "list": "{{ [1] * 999999999 }}",
    "list, number first": "{{ 999999999 * [1] }}",
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
    "percent, width of a value": "{{ '%*d' % (99999999, 1) }}",
    "percent, precision of a value": "{{ '%5.*f' % (99999999, 1.0) }}",
    "percent, many widths": "{{ ('%9999d' * 99999) % ((1,) * 99999) }}",
    "filter format, width of a value": "{{ '%*d' | format(99999999, 1) }}",
    "filter batch": "{{ [1] | batch(99999999, 'x') | list }}",
    "filter center of many": "{{ range(99999) | map('center', 9999) | list }}",
    "filter tojson, indent of text": "{{ [[1]] | tojson(indent='x' * 99999) }}",
    "filter tojson, separator": "{{ [1, 2] | tojson(separators=('x' * 99999, ':')) }}",
    "method format, width of a value": "{{ '{:{}}'.format(1, 99999999) }}",
    "method format, width by name": "{{ '{{{0:{w}}'.format(1, w=99999999) }}",
    "method expandtabs by name": "{{ '\t'.expandtabs(tabsize=99999999) }}",
    "method expandtabs of many": "{{ ('\t' * 99999).expandtabs(9999) }}",
    "method encode": "{{ 'a'.encode().ljust(99999999) }}",
    "method to_bytes": "{{ (1).to_bytes(99999999, 'big') }}",
    "product": (
        "{% set state = namespace(x=10 ** 60) %}{% for a in range(99) %}"
        "{% set state.x = state.x * state.x %}{% endfor %}"
    ),
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
        "{{ namespace(__class__='x') }}",
        "{{ namespace({'_a': 1}) }}",
        "{% set state = namespace() %}{% set state.__init__ = 1 %}",
        "{{ '{0.__class__.__mro__}'.format('') }}",
        "{{ '{a.__class__.__mro__}'.format(a=1) }}",
        "{{ (messages | map('list')).gi_frame.f_globals }}",
        "{{ namespace.__init__.__globals__ }}",
        "{{ messages[0].update({'content': 'x'}) }}",
        "{% include '/etc/passwd' %}",
    ],
)
def test_a_template_reaches_nothing_outside_the_chat(source: str) -> None:
    with pytest.raises(InvalidArgument):
        ChatTemplate(source, special_tokens={}).render(CHAT)


def test_the_meter_cannot_be_replaced_by_a_name_of_the_template() -> None:
    source = "{% set _Meter = 1 %}{% set step = 1 %}" + BOMBS["loops"]

    with pytest.raises(InvalidArgument, match="loops more than"):
        ChatTemplate(source, special_tokens={}).render(CHAT)


def test_a_template_that_takes_too_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "SECONDS_MAX", 0.0)
    source = "{% for a in range(999) %}{% endfor %}"

    with pytest.raises(InvalidArgument, match="takes more than 0 seconds"):
        ChatTemplate(source, special_tokens={}).render(CHAT)


def test_ordinary_text_is_joined_as_jinja_joins_it() -> None:
    source = (
        "{{ 'a' ~ 1 ~ none ~ true }}|{{ 'x' + 'y' }}|{{ 2 ** 3 }}|{{ 'ab' * 2 }}|{{ '%s!' % 'z' }}"
        "|{{ ['p', 'q'] | join('-') }}|{{ 'a.b' | replace('.', '!') }}|{{ 'k' | center(3) }}"
        "|{{ 'a\nb' | indent(2) }}|{{ ', '.join(['m', 'n']) }}|{{ '{}-{}'.format(1, 2) }}"
        "|{{ ', '.join(messages | map(attribute='role')) }}"
        "|{{ [1, 2] | slice(2) | list }}|{{ messages | map(attribute='role') | join(',') }}"
        "|{{ '{{{:04}}}-{{' .format(7) }}|{{ '%05.1f%% *' % 2 }}|{{ [1, 2] | batch(2) | list }}"
        "|{{ [1] | tojson(separators=(', ', ': ')) }}|{{ 'a\tb'.expandtabs(2) }}|{{ 12 * 12 }}"
    )

    shown = ChatTemplate(source, special_tokens={}).render(CHAT)

    assert shown == (
        "a1NoneTrue|xy|8|abab|z!|p-q|a!b| k |a\n  b|m, n|1-2|user, assistant"
        "|[[1], [2]]|user,assistant"
        "|{0007}-{|002.0% *|[[1, 2]]|[1]|a b|144"
    )


def test_templates_are_laid_out_as_transformers_lays_them_out() -> None:
    source = (
        "  {% for message in messages %}\n{{ message.role }}\n{% break %}\n  {% endfor %}\n"
        "{{ {'a': '\u00e9<&'} | tojson }}"
    )

    shown = ChatTemplate(source, special_tokens={}).render(CHAT)

    assert shown == 'user\n{"a": "\u00e9<&"}'


@pytest.mark.parametrize("source", ["{{ " + "(" * 3000 + "1" + ")" * 3000 + " }}", "{{ 1 + }}"])
def test_a_template_that_cannot_be_read_is_told_in_words(source: str) -> None:
    with pytest.raises(InvalidArgument, match="the chat template is not valid: ") as refused:
        ChatTemplate(source, special_tokens={})

    assert refused.value.reason == "TEMPLATE_INVALID"


def test_what_jinja_itself_asserts_is_told_in_words() -> None:
    with pytest.raises(InvalidArgument, match="expected length") as refused:
        ChatTemplate("{{ 'a' | truncate(1, end='bb') }}", special_tokens={}).render(CHAT)

    assert refused.value.reason == "TEMPLATE_REFUSES_ROW"


def test_a_long_chat_is_well_within_the_budget() -> None:
    chat = [{"role": "user", "content": "x" * 1000}] * 5000

    shown = ChatTemplate(
        "{% for message in messages %}{{ message.role ~ ': ' ~ message.content }}{% endfor %}",
        special_tokens={},
    ).render(chat)

    assert len(shown) == 5000 * 1006
