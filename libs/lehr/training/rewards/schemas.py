"""A reward for JSON of the right shape, checked in a bounded number of steps."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from functools import lru_cache
from typing import Annotated, Any, Literal

from jsonschema import (  # type: ignore[import-untyped]
    Draft202012Validator,
    SchemaError,
    ValidationError,
    validators,
)
from pydantic import AfterValidator, BeforeValidator, Field
from referencing import Registry

from lehr.training.rewards.base import Reward, Scored, Unscorable
from lehr.training.rewards.patterns import check_pattern, is_found

SCHEMA_CHARACTERS_MAX = 65_536
STEPS_MAX = 20_000
"""Keywords of a schema that are looked at for one completion."""

_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
#: The library checks them in steps of its own, which nothing bounds.
_REFUSED = ("unevaluatedProperties", "unevaluatedItems")
_steps_left: ContextVar[int] = ContextVar("steps_left")

Keyword = Callable[[Any, Any, Any, Any], Iterator[ValidationError] | None]


def _as_text(schema: Any) -> Any:
    """Keep the schema as JSON, in which no transport changes a number or loses a null."""
    if isinstance(schema, Mapping):
        return json.dumps(schema, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return schema


def _checked(text: str) -> str:
    try:
        schema = json.loads(text)
        if not isinstance(schema, dict):
            raise ValueError("is no JSON Schema; give an object")
        Draft202012Validator.check_schema(schema)
        for part in _objects(schema):
            _check_part(part)
    except SchemaError as error:
        raise ValueError(f"is no JSON Schema of 2020-12: {error.message}") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"is no JSON: {error}") from None
    except RecursionError:
        raise ValueError("is nested too deeply") from None
    return text


def _check_part(part: Mapping[str, Any]) -> None:
    for name in _REFERENCES:
        target = part.get(name)
        if isinstance(target, str) and not target.startswith("#"):
            raise ValueError(f"refers to {target}, and nothing is fetched; put it under $defs")
    for name in _REFUSED:
        if name in part:
            raise ValueError(f"has {name}, which is not available; use additionalProperties, items")
    patterns = part.get("patternProperties")
    for pattern in (part.get("pattern"), *(patterns if isinstance(patterns, dict) else ())):
        if isinstance(pattern, str):
            check_pattern(pattern)


def _objects(value: Any) -> Iterator[Mapping[str, Any]]:
    if isinstance(value, dict):
        yield value
    inner = value.values() if isinstance(value, dict) else value
    for one in inner if isinstance(value, dict | list) else ():
        yield from _objects(one)


JsonSchemaText = Annotated[
    str,
    Field(max_length=SCHEMA_CHARACTERS_MAX),
    BeforeValidator(_as_text),
    AfterValidator(_checked),
]
"""A JSON Schema of 2020-12, as an object or as its JSON; ``format`` is not checked."""


class JsonSchemaReward(Reward):
    """1 where the whole completion is JSON that fits a schema."""

    type: Literal["json_schema"] = "json_schema"
    json_schema: JsonSchemaText

    def score(self, scored: Scored) -> float:
        """Return 1 or 0; what is no JSON at all is counted as such."""
        value = scored.json
        token = _steps_left.set(STEPS_MAX)
        try:
            return float(_validator(self.json_schema).is_valid(value))
        except RecursionError:
            raise Unscorable("TOO_DEEP", "is nested too deeply for the schema") from None
        finally:
            _steps_left.reset(token)


def _counted(keyword: str, check: Keyword) -> Keyword:
    def counting(validator: Any, value: Any, instance: Any, schema: Any) -> Any:
        # Elements that cannot be sorted are compared with each other.
        is_square = keyword == "uniqueItems" and isinstance(instance, list)
        left = _steps_left.get() - (1 + len(instance) ** 2 // 100 if is_square else 1)
        if left < 0:
            raise Unscorable("TOO_MANY_STEPS", f"takes more than {STEPS_MAX} steps to check")
        _steps_left.set(left)
        return check(validator, value, instance, schema)

    return counting


def _pattern(validator: Any, pattern: str, instance: Any, schema: Any) -> Iterator[ValidationError]:
    if isinstance(instance, str) and not is_found(pattern, instance):
        yield ValidationError("does not match")


def _pattern_properties(
    validator: Any, patterns: Mapping[str, Any], instance: Any, schema: Any
) -> Iterator[ValidationError]:
    for pattern, subschema in patterns.items() if isinstance(instance, dict) else ():
        for name, value in instance.items():
            if is_found(pattern, name):
                yield from validator.descend(value, subschema, path=name, schema_path=pattern)


def _additional_properties(
    validator: Any, allowed: Any, instance: Any, schema: Mapping[str, Any]
) -> Iterator[ValidationError]:
    """Look at properties that neither ``properties`` nor ``patternProperties`` names."""
    known, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
    for name, value in instance.items() if isinstance(instance, dict) else ():
        if name not in known and not any(is_found(pattern, name) for pattern in patterns):
            yield from validator.descend(value, allowed, path=name)


_BOUNDED: Mapping[str, Keyword] = {
    "pattern": _pattern,
    "patternProperties": _pattern_properties,
    "additionalProperties": _additional_properties,
}


@lru_cache(maxsize=64)
def _validator(schema: str) -> Any:
    keywords = {
        name: _counted(name, _BOUNDED.get(name, check))
        for name, check in Draft202012Validator.VALIDATORS.items()
    }
    bounded = validators.extend(Draft202012Validator, keywords)
    return bounded(json.loads(schema), registry=Registry())
