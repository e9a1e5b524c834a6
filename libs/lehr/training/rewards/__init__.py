"""Declared rewards: what an online method is told to aim at, as data and not as code.

Each kind is a section of a spec. OpenAI's graders ``string_check``, ``text_similarity`` and
``multi`` are kinds of their own, read as OpenAI writes them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, Tag, model_validator

from lehr.training.rewards import formula
from lehr.training.rewards.base import Reward, Scored, Unscorable
from lehr.training.rewards.length import LengthReward
from lehr.training.rewards.matching import ExactMatchReward, RegexReward, StringCheckReward
from lehr.training.rewards.modelled import RewardModelReward
from lehr.training.rewards.numeric import NumericReward
from lehr.training.rewards.schemas import JsonSchemaReward
from lehr.training.rewards.similarity import TextSimilarityReward
from lehr.training.section import type_of

REWARDS_MAX = 16

_REFUSED = {
    "python": "runs code, which an administrator must allow; that is not available yet",
    "score_model": "asks another model for a score, which is not available; use reward_model",
    "label_model": "asks another model for a label, which is not available; use reward_model",
    "endpoint": "asks another server, and trainers reach none",
}


def _available(value: Any) -> Any:
    kind = type_of(value)
    if kind in _REFUSED:
        raise ValueError(f"has type {kind}, which {_REFUSED[kind]}")
    return value


_Simple = (
    Annotated[ExactMatchReward, Tag("exact_match")]
    | Annotated[StringCheckReward, Tag("string_check")]
    | Annotated[RegexReward, Tag("regex")]
    | Annotated[NumericReward, Tag("numeric")]
    | Annotated[JsonSchemaReward, Tag("json_schema")]
    | Annotated[LengthReward, Tag("length")]
    | Annotated[TextSimilarityReward, Tag("text_similarity")]
)
SimpleReward = Annotated[Annotated[_Simple, Discriminator(type_of)], BeforeValidator(_available)]
"""A reward that is computed from a text and its row alone."""


class MultiReward(Reward):
    """OpenAI's grader of the same name: a formula over the scores of others."""

    type: Literal["multi"] = "multi"
    graders: Annotated[dict[str, SimpleReward], Field(min_length=1, max_length=REWARDS_MAX)]
    """By the name that the formula uses."""
    calculate_output: Annotated[str, Field(max_length=formula.CHARACTERS_MAX)]
    """Numbers, names of graders, ``+ - * / ^``, min, max, abs, floor, ceil, exp, sqrt, log."""

    @model_validator(mode="after")
    def _formula_over_its_graders(self) -> MultiReward:
        wrong = [name for name in self.graders if not name.isidentifier()]
        if wrong:
            raise ValueError(f"calls a grader {wrong[0]!r}; use letters, digits and _ only")
        formula.check(self.calculate_output, frozenset(self.graders))
        return self

    @property
    def columns(self) -> frozenset[str]:
        return frozenset[str]().union(*(one.columns for one in self.graders.values()))

    def score(self, scored: Scored) -> float:
        """Return the formula's value; where one of its graders fails, so does it."""
        scores = {name: one.score(scored) for name, one in self.graders.items()}
        return formula.value_of(self.calculate_output, scores)


AnyReward = Annotated[
    Annotated[
        _Simple
        | Annotated[MultiReward, Tag("multi")]
        | Annotated[RewardModelReward, Tag("reward_model")],
        Discriminator(type_of),
    ],
    BeforeValidator(_available),
]
"""One reward; ``type`` is its kind."""


def _told_apart(rewards: tuple[Reward, ...]) -> tuple[Reward, ...]:
    counts = Counter(one.chart_name for one in rewards)
    for name, count in counts.items():
        if count > 1:
            raise ValueError(f"has {count} rewards called {name}; give each its own name")
    return rewards


Rewards = Annotated[
    tuple[AnyReward, ...],
    Field(min_length=1, max_length=REWARDS_MAX),
    AfterValidator(_told_apart),
]
"""Rewards with names of their own; what is aimed at is their weighted sum."""


def columns_of(rewards: Iterable[Reward]) -> frozenset[str]:
    """Return the columns of rows that rewards read."""
    return frozenset[str]().union(*(one.columns for one in rewards))


def score(
    rewards: Iterable[Reward], scored: Scored, *, failures: Counter[tuple[str, str]] | None = None
) -> dict[str, float]:
    """Return what a completion earns by the name of each reward, but those that models give.

    Pure, and bounded in time. A completion that a reward cannot score earns 0 there, and is
    counted in ``failures`` under the reward's name and the reason.
    """
    found: dict[str, float] = {}
    for one in rewards:
        if isinstance(one, RewardModelReward):
            continue
        try:
            found[one.chart_name] = one.score(scored)
        except Unscorable as error:
            found[one.chart_name] = 0.0
            if failures is not None:
                failures[one.chart_name, error.reason] += 1
    return found


def item_of(columns: Mapping[str, Any], answer: Any) -> dict[str, Any]:
    """Return what templates call ``item``: a row's columns, its answer among them."""
    return dict(columns) if answer is None else {**columns, "answer": answer}
