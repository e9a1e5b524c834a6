"""What a declared reward is: plain data that scores one completion, the same on every machine."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any

import orjson
from pydantic import Field

from lehr.training.rewards.templates import Template, columns_in, render
from lehr.training.section import Section

TEXT_CHARACTERS_MAX = 20_000
"""Of each text whose likeness is measured, which takes time that grows with its square."""
JSON_CHARACTERS_MAX = 200_000
"""Of a completion that is read as JSON."""

RewardName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$")]

OUTPUT = "{{sample.output_text}}"
ANSWER = "{{item.answer}}"


class Unscorable(Exception):  # noqa: N818 - no fault of the program: the completion earns nothing
    """A completion cannot be scored by a reward; it earns 0 there."""

    def __init__(self, reason: str, what: str) -> None:
        super().__init__(what)
        self.reason = reason
        """Stable, in capitals: failures are counted by it."""


@dataclass(frozen=True, kw_only=True)
class Scored:
    """One completion, with the columns of the row whose prompt it answers."""

    text: str
    """Without special tokens."""
    item: Mapping[str, Any]
    """The row's columns as JSON values, ``answer`` among them where there is one."""
    token_count: int | None = None
    """Tokens of the completion; None where nobody tokenised it."""

    @cached_property
    def json(self) -> Any:
        """The completion read as JSON.

        Raises:
            Unscorable: it is no JSON, or too long to be read.
        """
        if len(self.text) > JSON_CHARACTERS_MAX:
            raise Unscorable("TEXT_TOO_LONG", f"has more than {JSON_CHARACTERS_MAX} characters")
        try:
            return orjson.loads(self.text)
        except orjson.JSONDecodeError as error:
            raise Unscorable("NOT_JSON", f"is no JSON: {error}") from None

    def render(self, template: str) -> str:
        """Fill a template in; raises Unscorable where it names what is not there."""
        if template == OUTPUT:
            return self.text
        return render(template, self._looked_up)

    def _looked_up(self, path: tuple[str, ...]) -> Any:
        root, *rest = path
        if root == "item":
            return _within(self.item, rest, "COLUMN_MISSING")
        if rest[0] == "output_text":
            return self.text
        return _within(self.json, rest[1:], "FIELD_MISSING")


def _within(value: Any, path: Iterable[str], reason: str) -> Any:
    for name in path:
        if not isinstance(value, Mapping) or value.get(name) is None:
            raise Unscorable(reason, f"has no {name}")
        value = value[name]
    return value


class Reward(Section, ABC):
    """One reward; subclasses fix ``type``."""

    type: str
    name: RewardName | None = None
    """What charts call it; its type by default."""

    @property
    def chart_name(self) -> str:
        """What charts call it."""
        return self.name or self.type

    @property
    def columns(self) -> frozenset[str]:
        """The row's columns that it reads."""
        return frozenset()

    @abstractmethod
    def score(self, scored: Scored) -> float:
        """Return what a completion earns; finite.

        Raises:
            Unscorable: it earns 0, for the reason given.
        """


class ComparingReward(Reward):
    """Compares two texts, of which one is usually the completion and one the row's answer."""

    input: Template = OUTPUT
    """What is looked at."""
    reference: Template = ANSWER
    """What it is compared with."""

    @property
    def columns(self) -> frozenset[str]:
        return columns_in(self.input) | columns_in(self.reference)

    def sides(self, scored: Scored) -> tuple[str, str]:
        """Return both texts, filled in."""
        return scored.render(self.input), scored.render(self.reference)
