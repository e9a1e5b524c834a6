"""Regular expressions whose time grows only linearly with the text: those of Rust's regex crate.

pydantic-core carries that engine. Look-around and references back to groups do not exist in it,
because no engine can bound their time.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Annotated

from pydantic import AfterValidator, Field
from pydantic_core import SchemaError, SchemaValidator, core_schema


@lru_cache(maxsize=256)
def _compiled(pattern: str) -> SchemaValidator:
    return SchemaValidator(core_schema.str_schema(pattern=pattern, regex_engine="rust-regex"))


def check_pattern(pattern: str) -> str:
    """Return the pattern.

    Raises:
        ValueError: it is none, or needs what has no bounded time.
    """
    try:
        _compiled(pattern)
    except SchemaError as error:
        # Of several lines the last says what is wrong.
        told = str(error).strip().splitlines()[-1].removeprefix("error: ")
        raise ValueError(
            f"is no regular expression that is searched in bounded time: {told}"
        ) from None
    return pattern


def is_found(pattern: str, text: str) -> bool:
    """Whether a checked pattern matches anywhere in a text; ``^`` and ``$`` bind it to the ends."""
    return _compiled(pattern).isinstance_python(text, strict=True)


Pattern = Annotated[str, Field(min_length=1, max_length=10_000), AfterValidator(check_pattern)]
"""A regular expression in the syntax of Rust's regex crate."""
