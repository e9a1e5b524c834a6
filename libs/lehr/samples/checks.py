"""What any value of a row must be: strict JSON, whole text, bounded depth; and how to refuse."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from lehr.errors import FieldViolation, InvalidArgument

DEPTH_MAX = 64
"""Lists and objects inside each other that a value of a row may have."""
_SHOWN = 60


def wrong(field: str, what: str) -> InvalidArgument:
    """Return the refusal of a row because of ``field``; the whole row where that is empty."""
    return InvalidArgument(
        f"{field}: {what}" if field else what,
        reason="ROW_INVALID",
        fields=[FieldViolation(field=field or "row", description=what)],
        field=field,
    )


def shown(value: object) -> str:
    """Return a value as a message may quote it, cut where it is long."""
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def type_name(value: object) -> str:
    """Return what a person calls the type of a JSON value."""
    names: tuple[tuple[type | tuple[type, ...], str], ...] = (
        (bool, "true or false"),
        (str, "text"),
        (Mapping, "an object"),
        ((list, tuple), "a list"),
        ((int, float), "a number"),
        (type(None), "null"),
    )
    found = (name for kind, name in names if isinstance(value, kind))
    return next(found, f"a value of type {type(value).__name__}")


def parse_json(text: str, field: str = "") -> Any:
    """Read JSON as its standard has it; whole numbers of any size stay exact.

    Raises:
        InvalidArgument: it is not JSON, holds a key twice in one object, a number that no JSON
            reader could give back (NaN, 1e999), or is nested too deeply.
    """
    try:
        return _DECODER.decode(text)
    except _NotStrict as error:
        raise wrong(field, str(error)) from None
    except RecursionError:
        raise wrong(field, "is nested too deeply to be read") from None
    except json.JSONDecodeError as error:
        is_ = "is text that is" if field else "is"
        raise wrong(field, f"{is_} not JSON: {error.msg} at column {error.colno}") from None
    except ValueError as error:
        raise wrong(field, f"cannot be read: {error}") from None


def parsed(value: object, field: str, *, begins: str) -> Any:
    """Return a value that must be a list or an object; as text, it is read as JSON.

    Tables without nested columns, such as csv, hold it so. ``begins`` are the characters that
    such text may begin with; other text is returned as it is, for its type to be refused.
    """
    if isinstance(value, str) and value.lstrip()[:1] in tuple(begins):
        return parse_json(value, field)
    return value


def text_of(value: object, field: str) -> str:
    """Return ``value``, which must be text that has an UTF-8 form."""
    if not isinstance(value, str):
        raise wrong(field, f"is {type_name(value)}; write text")
    at = half_pair(value)
    if at is not None:
        raise wrong(
            field, f"holds half a surrogate pair (U+{ord(value[at]):04X}) at character {at}"
        )
    return value


def half_pair(text: str) -> int | None:
    """Return the place of the first half of a surrogate pair, which has no UTF-8 form."""
    if text.isascii():
        return None
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return error.start
    return None


def filled_text_of(value: object, field: str) -> str:
    """Return ``value``, which must be text of which something can be learnt."""
    text = text_of(value, field)
    if not text.strip():
        raise wrong(field, "is empty; there is nothing to learn from")
    return text


def label_of(value: object, field: str) -> bool:
    """Return a verdict: true or false, 1 or 0, or one of these as text."""
    if isinstance(value, bool):
        return value
    word = value.strip().lower() if isinstance(value, str) else value
    if word in ("true", "1", 1) and not isinstance(value, float):
        return True
    if word in ("false", "0", 0) and not isinstance(value, float):
        return False
    if isinstance(value, str):
        raise wrong(field, f"is {shown(value)}; write true or false")
    raise wrong(field, f"is {type_name(value)}; write true or false")


def check_json(value: object, field: str, *, depth: int = 0) -> None:
    """Check that a value of any shape can be kept as JSON and given back the same.

    Raises:
        InvalidArgument: it holds something that JSON or UTF-8 cannot, or is nested too deeply.
    """
    if isinstance(value, str):
        text_of(value, field)
    elif value is None or isinstance(value, int):
        pass
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise wrong(field, f"is {value}, which is not JSON")
    elif depth == DEPTH_MAX:
        raise wrong("", f"is nested too deeply; use at most {DEPTH_MAX} levels")
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            text_of(key, field)
            check_json(inner, f"{field}.{key}", depth=depth + 1)
    elif isinstance(value, list):
        for at, inner in enumerate(value):
            check_json(inner, f"{field}[{at}]", depth=depth + 1)
    else:
        raise wrong(field, f"is {type_name(value)}, which is not JSON")


def first_twice(names: Iterable[str]) -> str | None:
    """Return the first of these names that comes again, or None; there may be a million."""
    counts = Counter(names)
    return next((name for name, count in counts.items() if count > 1), None)


class _NotStrict(Exception):  # noqa: N818 - it says what the text is.
    """JSON that readers disagree about."""


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        twice = first_twice(key for key, _ in pairs)
        raise _NotStrict(f"holds the key {shown(twice)} twice in one object")
    return found


def _float(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise _NotStrict(f"holds {shown(digits)}, a number too large to be kept")
    return number


def _constant(word: str) -> Any:
    raise _NotStrict(f"holds {word}, which is not JSON")


_DECODER = json.JSONDecoder(object_pairs_hook=_object, parse_float=_float, parse_constant=_constant)
