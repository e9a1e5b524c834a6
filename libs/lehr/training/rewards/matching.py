"""Rewards of 1 or 0: a completion is the right text, contains it, or fits a pattern."""

from __future__ import annotations

from typing import Literal

from lehr.training.rewards.base import OUTPUT, ComparingReward, Reward, Scored
from lehr.training.rewards.patterns import Pattern, is_found
from lehr.training.rewards.templates import Template, columns_in


class ExactMatchReward(ComparingReward):
    """1 where both texts are equal, white space around them aside."""

    type: Literal["exact_match"] = "exact_match"
    ignore_case: bool = False

    def score(self, scored: Scored) -> float:
        """Return 1 or 0."""
        left, right = (side.strip() for side in self.sides(scored))
        if self.ignore_case:
            left, right = left.casefold(), right.casefold()
        return float(left == right)


class StringCheckReward(ComparingReward):
    """OpenAI's grader of the same name."""

    type: Literal["string_check"] = "string_check"
    operation: Literal["eq", "ne", "like", "ilike"]
    """Equal, not equal, contains ``reference``, contains it in whatever case."""

    def score(self, scored: Scored) -> float:
        """Return 1 or 0."""
        looked_at, reference = self.sides(scored)
        match self.operation:
            case "eq":
                return float(looked_at == reference)
            case "ne":
                return float(looked_at != reference)
            case "like":
                return float(reference in looked_at)
            case "ilike":
                return float(reference.casefold() in looked_at.casefold())


class RegexReward(Reward):
    """1 where a regular expression is found."""

    type: Literal["regex"] = "regex"
    pattern: Pattern
    input: Template = OUTPUT

    @property
    def columns(self) -> frozenset[str]:
        return columns_in(self.input)

    def score(self, scored: Scored) -> float:
        """Return 1 or 0."""
        return float(is_found(self.pattern, scored.render(self.input)))
