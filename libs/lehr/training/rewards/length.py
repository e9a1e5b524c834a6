"""A reward for completions of the right length."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from lehr.training.rewards.base import Reward, Scored, Unscorable

Length = Annotated[int, Field(ge=0, le=10_000_000)]


class LengthReward(Reward):
    """1 within the bounds; beyond them it falls in proportion to how far the length is off.

    Below the least it is length / least, above the most 2 - length / most, and never below 0.
    """

    type: Literal["length"] = "length"
    unit: Literal["tokens", "characters"] = "tokens"
    target: Length | None = None
    """Both bounds in one."""
    min: Length | None = None
    max: Length | None = None

    @model_validator(mode="after")
    def _some_bounds(self) -> LengthReward:
        bounds = [bound for bound in (self.min, self.max) if bound is not None]
        if (self.target is None) == (not bounds):
            raise ValueError("gives target and bounds, or neither; give target, or min and max")
        if self.min is not None and self.max is not None and self.min > self.max:
            raise ValueError("has a min above its max; swap them")
        return self

    def score(self, scored: Scored) -> float:
        """Return 0.0 to 1.0."""
        length = len(scored.text) if self.unit == "characters" else scored.token_count
        if length is None:
            raise Unscorable("TOKENS_UNKNOWN", "nobody counted the completion's tokens")
        least = self.target if self.target is not None else self.min
        most = self.target if self.target is not None else self.max
        if least is not None and length < least:
            return length / least
        if most is not None and length > most:
            return max(0.0, 2.0 - length / most) if most else 0.0
        return 1.0
