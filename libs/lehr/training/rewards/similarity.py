"""Likeness of two texts by measures that their definitions fix to the last digit."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator

from lehr.training.rewards.base import (
    TEXT_CHARACTERS_MAX,
    ComparingReward,
    Scored,
    Unscorable,
)

Metric = Literal[
    "fuzzy_match",
    "bleu",
    "gleu",
    "rouge_1",
    "rouge_2",
    "rouge_3",
    "rouge_4",
    "rouge_5",
    "rouge_l",
]
_REFUSED = {
    "meteor": "needs a dictionary of synonyms",
    "cosine": "needs a model of embeddings",
}
_WORD = re.compile(r"\w+")
_ORDERS = range(1, 5)


def _known(metric: Any) -> Any:
    why = _REFUSED.get(metric) if isinstance(metric, str) else None
    if why is not None:
        raise ValueError(f"{metric} {why}, which is not available; use fuzzy_match or rouge_l")
    return metric


class TextSimilarityReward(ComparingReward):
    """OpenAI's grader of the same name; 0 for nothing in common, 1 for equal texts.

    ``fuzzy_match`` counts characters; the others count words, runs of letters and digits in
    whatever case.
    """

    type: Literal["text_similarity"] = "text_similarity"
    evaluation_metric: Annotated[Metric, BeforeValidator(_known)]

    def score(self, scored: Scored) -> float:
        """Return 0.0 to 1.0."""
        looked_at, reference = self.sides(scored)
        if max(len(looked_at), len(reference)) > TEXT_CHARACTERS_MAX:
            raise Unscorable("TEXT_TOO_LONG", f"has more than {TEXT_CHARACTERS_MAX} characters")
        if self.evaluation_metric == "fuzzy_match":
            return indel_similarity(looked_at, reference)
        words, others = _words(looked_at), _words(reference)
        match self.evaluation_metric:
            case "bleu":
                return bleu(words, others)
            case "gleu":
                return gleu(words, others)
            case "rouge_l":
                return _f1(lcs_length(words, others), len(words), len(others))
        return rouge(words, others, order=int(self.evaluation_metric.removeprefix("rouge_")))


def indel_similarity(left: str, right: str) -> float:
    """Return 1 minus insertions and deletions per character (``fuzz.ratio`` of rapidfuzz)."""
    total = len(left) + len(right)
    return 2 * lcs_length(left, right) / total if total else 1.0


def lcs_length(left: Sequence[Hashable], right: Sequence[Hashable]) -> int:
    """Return the length of the longest common subsequence (Hyyro 2004, bit-parallel)."""
    places: dict[Hashable, int] = {}
    for at, one in enumerate(left):
        places[one] = places.get(one, 0) | 1 << at
    whole = (1 << len(left)) - 1
    unmatched = whole
    for one in right:
        met = unmatched & places.get(one, 0)
        unmatched = ((unmatched + met) | (unmatched - met)) & whole
    return len(left) - unmatched.bit_count()


def rouge(words: Sequence[str], reference: Sequence[str], *, order: int) -> float:
    """Return the F1 of shared n-grams (Lin 2004, ROUGE-N); of texts without any, equality."""
    ours, theirs = _grams(words, order), _grams(reference, order)
    if not ours and not theirs:
        return float(list(words) == list(reference))
    return _f1((ours & theirs).total(), ours.total(), theirs.total())


def bleu(words: Sequence[str], reference: Sequence[str]) -> float:
    """Return sentence BLEU-4 (Papineni et al. 2002); 1 is added to counts of pairs and longer.

    That is the smoothing of Lin and Och 2004, without which most sentences would have 0.
    """
    if not words:
        return float(not reference)
    logs = 0.0
    for order in _ORDERS:
        ours = _grams(words, order)
        shared, more = (ours & _grams(reference, order)).total(), int(order > 1)
        if shared + more == 0:
            return 0.0
        logs += math.log((shared + more) / (ours.total() + more)) / len(_ORDERS)
    brevity = min(0.0, 1.0 - len(reference) / len(words))
    return math.exp(logs + brevity)


def gleu(words: Sequence[str], reference: Sequence[str]) -> float:
    """Return the smaller of precision and recall of all 1- to 4-grams (Wu et al. 2016)."""
    ours = sum((_grams(words, order) for order in _ORDERS), Counter[Any]())
    theirs = sum((_grams(reference, order) for order in _ORDERS), Counter[Any]())
    longer = max(ours.total(), theirs.total())
    return (ours & theirs).total() / longer if longer else 1.0


def _words(text: str) -> list[str]:
    return _WORD.findall(text.casefold())


def _grams(words: Sequence[str], order: int) -> Counter[tuple[str, ...]]:
    def each() -> Iterator[tuple[str, ...]]:
        for at in range(len(words) - order + 1):
            yield tuple(words[at : at + order])

    return Counter(each())


def _f1(shared: int, ours: int, theirs: int) -> float:
    return 2 * shared / (ours + theirs) if ours + theirs else 1.0
