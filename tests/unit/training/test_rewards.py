"""Declared rewards: what each kind gives, what is refused, and that none can hold a run up."""

from __future__ import annotations

import json
import time
from collections import Counter
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from lehr.samples.rows import PromptAnswerRow
from lehr.training.rewards import Rewards, columns_of, item_of, score
from lehr.training.rewards.base import Reward, Scored
from lehr.training.rewards.numeric import last_number
from lehr.training.rewards.similarity import bleu, gleu, indel_similarity, lcs_length

_REWARDS: TypeAdapter[tuple[Reward, ...]] = TypeAdapter(Rewards)


def rewards(*told: dict[str, Any]) -> tuple[Reward, ...]:
    return _REWARDS.validate_python(told)


def scored(text: str, *, tokens: int | None = None, **item: Any) -> Scored:
    return Scored(text=text, item=item, token_count=tokens)


def earned(told: dict[str, Any], text: str, *, tokens: int | None = None, **item: Any) -> float:
    [value] = score(rewards(told), scored(text, tokens=tokens, **item)).values()
    return value


def refusal(told: dict[str, Any]) -> str:
    with pytest.raises(ValidationError) as error:
        rewards(told)
    return str(error.value)


@pytest.mark.parametrize(
    ("told", "text", "item", "value"),
    [
        ({"type": "exact_match"}, " Paris\n", {"answer": "Paris"}, 1.0),
        ({"type": "exact_match"}, "paris", {"answer": "Paris"}, 0.0),
        ({"type": "exact_match", "ignore_case": True}, "PARIS", {"answer": "Paris"}, 1.0),
        ({"type": "exact_match"}, "7", {"answer": 7}, 1.0),
        ({"type": "string_check", "operation": "eq"}, "a ", {"answer": "a"}, 0.0),
        ({"type": "string_check", "operation": "ne"}, "a ", {"answer": "a"}, 1.0),
        ({"type": "string_check", "operation": "like"}, "so 42 it is", {"answer": 42}, 1.0),
        ({"type": "string_check", "operation": "like"}, "PARIS", {"answer": "paris"}, 0.0),
        ({"type": "string_check", "operation": "ilike"}, "In PARIS", {"answer": "paris"}, 1.0),
        ({"type": "regex", "pattern": "^[0-9]+$"}, "123", {}, 1.0),
        ({"type": "regex", "pattern": "^[0-9]+$"}, "123\n", {}, 0.0),
        ({"type": "regex", "pattern": "(?s)<think>.*</think>"}, "<think>\n</think>", {}, 1.0),
        ({"type": "numeric"}, "3 * 4 = 12", {"answer": "#### 12"}, 1.0),
        ({"type": "numeric"}, "12 or 13", {"answer": 12}, 0.0),
        ({"type": "numeric"}, "$1,234.50", {"answer": 1234.5}, 1.0),
        ({"type": "numeric"}, "nothing", {"answer": 12}, 0.0),
        ({"type": "numeric", "tolerance": 0.1}, "0.95", {"answer": 1}, 1.0),
        ({"type": "numeric", "relative_tolerance": 0.01}, "1011", {"answer": 1000}, 0.0),
        ({"type": "numeric", "relative_tolerance": 0.01}, "1010", {"answer": 1000}, 1.0),
        ({"type": "length", "unit": "characters", "target": 4}, "abcd", {}, 1.0),
        ({"type": "length", "unit": "characters", "target": 4}, "ab", {}, 0.5),
        ({"type": "length", "unit": "characters", "target": 4}, "abcdef", {}, 0.5),
        ({"type": "length", "unit": "characters", "target": 4}, "abcdefghij", {}, 0.0),
        ({"type": "length", "unit": "characters", "max": 4}, "", {}, 1.0),
    ],
)
def test_a_reward_gives_what_it_says(
    told: dict[str, Any], text: str, item: dict[str, Any], value: float
) -> None:
    assert earned(told, text, **item) == value


def test_lengths_are_counted_in_tokens_unless_told_otherwise() -> None:
    assert earned({"type": "length", "min": 10}, "abc", tokens=5) == 0.5


def test_a_template_reaches_into_columns_and_into_json_that_was_written() -> None:
    told = {
        "type": "exact_match",
        "input": "{{ sample.output_json.result.value }}",
        "reference": "{{item.expected.value}}!",
    }

    assert earned(told, '{"result": {"value": "a!"}}', expected={"value": "a"}) == 1.0
    assert earned(told, '{"result": {"value": "b!"}}', expected={"value": "a"}) == 0.0


@pytest.mark.parametrize(
    "template", ["{{item}}", "{{sample.choices}}", "{{answer}}", "{{item.a", "{{ item.a + 1 }}"]
)
def test_a_template_that_names_nothing_is_refused(template: str) -> None:
    assert "{{item.<column>}}" in refusal({"type": "exact_match", "reference": template})


_PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "pattern": "^[A-Z]"}, "age": {"const": None}},
    "required": ["name"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"name": "Ada", "age": null}', 1.0),
        ('{"name": "ada"}', 0.0),
        ('{"name": "Ada", "age": 3}', 0.0),
        ('{"name": "Ada", "more": 3}', 0.0),
        ('Here it is: {"name": "Ada"}', 0.0),
    ],
)
def test_json_earns_a_reward_where_it_fits_the_schema(text: str, value: float) -> None:
    assert earned({"type": "json_schema", "json_schema": _PERSON}, text) == value


def test_a_schema_is_the_same_as_an_object_and_as_text() -> None:
    [first] = rewards({"type": "json_schema", "json_schema": _PERSON})
    [second] = rewards({"type": "json_schema", "json_schema": first.model_dump()["json_schema"]})

    assert first == second


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"type": "thing"}, "no JSON Schema"),
        ({"$ref": "https://example.com/schema.json"}, "nothing is fetched"),
        ({"properties": {"a": {"pattern": "(?=a)"}}}, "bounded time"),
        ({"patternProperties": {r"(a)\1": {}}}, "bounded time"),
        ({"unevaluatedProperties": False}, "not available"),
    ],
)
def test_a_schema_that_cannot_be_checked_in_bounds_is_refused(
    schema: dict[str, Any], words: str
) -> None:
    assert words in refusal({"type": "json_schema", "json_schema": schema})


def test_likeness_is_that_of_the_definitions() -> None:
    assert lcs_length("ABCBDAB", "BDCABA") == 4
    # As rapidfuzz.fuzz.ratio gives it for this pair of its documentation.
    assert indel_similarity("this is a test", "this is a test!") == pytest.approx(0.9655, abs=1e-4)
    words, reference = (
        ["the", "cat", "sat", "on", "the", "mat"],
        ["the", "cat", "is", "on", "the", "mat"],
    )
    # 5/6 words; 3/5, 1/4 and 0/3 longer runs, each with one more above and below.
    assert bleu(words, reference) == pytest.approx((5 / 6 * 4 / 6 * 2 / 5 * 1 / 4) ** 0.25)
    assert gleu(words, reference) == pytest.approx((5 + 3 + 1) / (6 + 5 + 4 + 3))
    rouge = {"type": "text_similarity", "evaluation_metric": "rouge_2"}
    assert earned(rouge, "The cat sat on the mat.", answer="the cat is on the mat") == 0.6
    rouge["evaluation_metric"] = "rouge_l"
    assert earned(rouge, "b c", answer="a b x c") == pytest.approx(2 * 2 / 6)


@pytest.mark.parametrize("metric", ["fuzzy_match", "bleu", "gleu", "rouge_1", "rouge_5", "rouge_l"])
def test_equal_texts_are_as_alike_as_can_be_and_others_are_not(metric: str) -> None:
    told = {"type": "text_similarity", "evaluation_metric": metric}

    assert earned(told, "one two three", answer="one two three") == pytest.approx(1.0)
    assert earned(told, "XYZ", answer="one two") == 0.0


@pytest.mark.parametrize("metric", ["meteor", "cosine"])
def test_a_measure_without_an_exact_definition_is_refused_by_name(metric: str) -> None:
    told = {"type": "text_similarity", "evaluation_metric": metric}
    assert f"{metric} needs" in refusal(told)


_GRADERS = {
    "right": {"type": "exact_match"},
    "short": {"type": "length", "unit": "characters", "max": 4},
}


@pytest.mark.parametrize(
    ("formula", "value"),
    [
        ("0.75 * right + 0.25 * short", 0.25),
        ("-right + 2 ^ short", 2.0),
        ("max(right, short) - min(right, short)", 1.0),
        ("sqrt(abs(right - 4 * short)) + floor(1.5) + ceil(0.5)", 4.0),
        ("log(exp(short)) / (1 + right)", 1.0),
    ],
)
def test_a_formula_joins_graders_as_openai_has_it(formula: str, value: float) -> None:
    told = {"type": "multi", "graders": _GRADERS, "calculate_output": formula}
    assert earned(told, "wrng", answer="right") == pytest.approx(value)


@pytest.mark.parametrize(
    "formula",
    [
        "right",
        "right + short + other",
        "right.real + short",
        "right + short + (lambda: 1)()",
        "__import__('os') + right + short",
        "right if short else 0",
        "right + short + True",
        "min(right) + short",
        "-" * 990 + "right + short",
        "right + short +",
    ],
)
def test_a_formula_of_anything_else_is_refused(formula: str) -> None:
    refusal({"type": "multi", "graders": _GRADERS, "calculate_output": formula})


@pytest.mark.parametrize("formula", ["right / short - right", "log(right + short)", "exp(999)"])
def test_a_formula_without_a_value_earns_nothing_and_is_counted(formula: str) -> None:
    graders = {**_GRADERS, "short": {"type": "string_check", "operation": "ne"}}
    used = f"{formula} + 0 * right + 0 * short"
    failures: Counter[tuple[str, str]] = Counter()
    made = rewards({"type": "multi", "graders": graders, "calculate_output": used})
    # Right, and nothing else: the divisor is 0, and so is the logarithm's argument.
    text = "a" if "log" not in formula else "a "

    values = score(made, scored(text, answer="a"), failures=failures)

    if "log" in formula:
        assert values == {"multi": pytest.approx(0.6931, abs=1e-4)}
    else:
        assert values == {"multi": 0.0}
        assert failures == {("multi", "FORMULA_HAS_NO_VALUE"): 1}


@pytest.mark.parametrize("kind", ["python", "score_model", "label_model", "endpoint"])
def test_graders_that_are_not_there_are_refused_with_the_reason(kind: str) -> None:
    assert f"has type {kind}, which" in refusal({"type": kind, "name": "x"})
    multi = {"type": "multi", "graders": {"a": {"type": kind}}, "calculate_output": "a"}
    assert f"has type {kind}, which" in refusal(multi)


def test_rewards_have_names_of_their_own() -> None:
    made = rewards({"type": "exact_match"}, {"type": "exact_match", "name": "loose"})
    assert score(made, scored("a", answer="a")) == {"exact_match": 1.0, "loose": 1.0}
    with pytest.raises(ValidationError, match="2 rewards called exact_match"):
        rewards({"type": "exact_match"}, {"type": "exact_match"})


def test_failures_earn_nothing_and_are_counted_by_their_reason() -> None:
    made = rewards(
        {"type": "exact_match"},
        {"type": "numeric", "reference": "{{item.unit}}"},
        {"type": "json_schema", "json_schema": {}},
        {"type": "length", "max": 5},
    )
    failures: Counter[tuple[str, str]] = Counter()

    for text in ("{", "5 cm"):
        values = score(made, scored(text, unit="cm"), failures=failures)
        assert set(values.values()) == {0.0}

    assert failures == {
        ("exact_match", "COLUMN_MISSING"): 2,
        ("numeric", "REFERENCE_HAS_NO_NUMBER"): 2,
        ("json_schema", "NOT_JSON"): 2,
        ("length", "TOKENS_UNKNOWN"): 2,
    }


def test_the_columns_that_rewards_read_are_known_before_any_row_is() -> None:
    graders = {"a": {"type": "exact_match", "reference": "{{item.key.inner}}"}}
    made = rewards(
        {"type": "numeric", "input": "{{item.other}} {{sample.output_text}}"},
        {"type": "multi", "graders": graders, "calculate_output": "a"},
        {"type": "length", "max": 5},
    )
    assert columns_of(made) == {"other", "answer", "key"}


def test_a_row_gives_its_answer_beside_its_columns() -> None:
    row = PromptAnswerRow(prompt="?", answer=0, columns={"unit": "cm"})
    assert item_of(row.columns, row.answer) == {"unit": "cm", "answer": 0}
    assert item_of(row.columns, None) == {"unit": "cm"}


def _doubling(depth: int) -> dict[str, Any]:
    """Return a schema that a plain checker takes 2 ** depth steps for."""
    twice = {f"d{at}": {"anyOf": [{"$ref": f"#/$defs/d{at + 1}"}] * 2} for at in range(depth)}
    return {"$defs": {**twice, f"d{depth}": False}, "$ref": "#/$defs/d0"}


@pytest.mark.parametrize(
    ("told", "text"),
    [
        ({"type": "regex", "pattern": "(a|aa)+$"}, "a" * 50_000 + "b"),
        ({"type": "regex", "pattern": "(.*)(.*)(.*)[^a]$"}, "a" * 50_000),
        ({"type": "numeric"}, "1" * 100_000),
        ({"type": "numeric"}, "1,234" * 20_000),
        ({"type": "numeric"}, "1e9999 " * 10_000),
        ({"type": "text_similarity", "evaluation_metric": "fuzzy_match"}, "ab" * 10_000),
        ({"type": "text_similarity", "evaluation_metric": "bleu"}, "a " * 10_000),
        ({"type": "text_similarity", "evaluation_metric": "rouge_l"}, "a " * 200_000),
        ({"type": "json_schema", "json_schema": _doubling(40)}, "{}"),
        ({"type": "json_schema", "json_schema": {"$ref": "#"}}, "{}"),
        (
            {"type": "json_schema", "json_schema": {"pattern": "^(a|aa)+$"}},
            json.dumps("a" * 50_000 + "b"),
        ),
        (
            {"type": "json_schema", "json_schema": {"uniqueItems": True}},
            json.dumps([{}, 1] * 20_000),
        ),
        ({"type": "json_schema", "json_schema": {"items": {"$ref": "#"}}}, "[" * 900 + "]" * 900),
        ({"type": "json_schema", "json_schema": {}}, "[" * 100_000),
    ],
)
def test_no_completion_holds_a_run_up(told: dict[str, Any], text: str) -> None:
    began = time.process_time()
    earned(told, text, answer="ba" * 5000 + " 7")
    # A fraction of a second; without the bounds, minutes to for ever.
    assert time.process_time() - began < 10.0


def test_signs_are_signs_only_where_nothing_stands_before_them() -> None:
    told = {text: last_number(text) for text in ("-3", "3-2", "is -1,000.5", "1,23", "x=+4e2", "-")}
    assert [None if one is None else float(one) for one in told.values()] == [
        -3.0,
        2.0,
        -1000.5,
        23.0,
        400.0,
        None,
    ]
