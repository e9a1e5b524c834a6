"""From token tables to what is trained and validated: the one path of plans and trainers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from lehr.errors import FieldViolation, InvalidArgument
from lehr.samples.length import LengthCounts, fit, recommend
from lehr.samples.packing import pack
from lehr.samples.selection import Samples
from lehr.samples.split import RowNumbers, Split, as_words, shuffled, split_rows
from lehr.samples.table import TokenTable
from lehr.training.spec import DataSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaks:
    """Rows of a validation dataset that are no fair test."""

    copies: int = 0
    """Rows that are trained word for word."""
    prompts: int = 0
    """Other rows whose prompt is trained with another answer."""

    @property
    def rows(self) -> int:
        """All of them."""
        return self.copies + self.prompts


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFacts:
    """The numbers that a plan shows and a job's log repeats."""

    max_length: int
    """Tokens of the longest sample that is trained."""
    train: LengthCounts
    validation: LengthCounts
    """All zeros where nothing is held out."""
    packed_rows: int = 0
    """Rows that the training samples are packed into; 0 where each has its own."""
    leaks: Leaks = Leaks()
    """All zeros but for a validation dataset; a share never leaks."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PreparedData:
    """Samples ready to be batched, and their numbers."""

    train: Samples
    validation: Samples
    facts: DataFacts
    packs: tuple[tuple[int, ...], ...] = ()
    """Numbers of the training samples of each row; empty where each sample has its own row."""

    @property
    def row_count(self) -> int:
        """Rows of one pass over the training samples."""
        return len(self.packs) or len(self.train)


def prepare(
    table: TokenTable,
    *,
    data: DataSpec,
    context: int | None,
    validation_table: TokenTable | None = None,
) -> PreparedData:
    """Split and cut the rows of a table as ``data`` says; pure, and equal for equal input.

    ``validation_table`` holds the rows of ``data.validation_dataset``; ``context`` is the most
    tokens that the model reads. Rows beyond ``max_train_samples`` and ``max_eval_samples`` are not
    counted.

    Raises:
        InvalidArgument: the length is beyond the model's context, or a side would be empty.
    """
    held_out = table if validation_table is None else validation_table
    split = _sides(table, data, validation_table)
    lengths = np.concatenate((table.lengths[split.train], held_out.lengths[split.validation]))
    max_length = _max_length(data, lengths, context)
    train = fit(table, split.train, max_length=max_length, overlong=data.overlong)
    validation = fit(held_out, split.validation, max_length=max_length, overlong=data.overlong)
    _refuse_empty("training", train.counts, max_length)
    if len(split.validation):
        _refuse_empty("validation", validation.counts, max_length)
    samples = Samples(table, train)
    packs = _packs(samples, max_length) if data.packing else ()
    facts = DataFacts(
        max_length=max_length,
        train=train.counts,
        validation=validation.counts,
        packed_rows=len(packs),
    )
    if validation_table is not None:
        facts = replace(facts, leaks=_leaks(table, train.rows, held_out, validation.rows))
    return PreparedData(
        train=samples, validation=Samples(held_out, validation), facts=facts, packs=packs
    )


def describe(facts: DataFacts) -> Iterator[str]:
    """Yield the lines of a job's log that say what is used, cut and left out."""
    yield from _describe_side("training", facts.train, facts.max_length)
    if facts.packed_rows:
        yield (
            f"training: {facts.train.samples} samples are packed into {facts.packed_rows} rows "
            f"of at most {facts.max_length} tokens; none of them sees another"
        )
    if facts.validation.rows:
        yield from _describe_side("validation", facts.validation, facts.max_length)
    yield from warnings_of(facts)


def warnings_of(facts: DataFacts) -> Iterator[str]:
    """Yield what a person should know before launching, beyond the counts themselves."""
    leaks, rows = facts.leaks, facts.validation.samples
    if leaks.rows:
        yield (
            f"{leaks.rows} of {rows} validation rows are no fair test: {leaks.copies} are trained "
            f"word for word, {leaks.prompts} have a prompt that is trained; remove them from one "
            "of the two datasets"
        )
    hidden = facts.train.hidden + facts.validation.hidden
    if hidden:
        yield (
            f"{hidden} earlier answers are read but not trained, because the model's chat template "
            "hides their reasoning"
        )
    answers = facts.train.dropped_answers + facts.validation.dropped_answers
    if answers:
        yield (
            f"{answers} rows have an answer that alone fills {facts.max_length} tokens; answers "
            "that are compared are never cut, so they are dropped"
        )
    images = facts.train.dropped_images + facts.validation.dropped_images
    if images:
        yield (
            f"{images} rows with images are longer than {facts.max_length} tokens; they are never "
            "cut, so they are dropped"
        )


def _sides(table: TokenTable, data: DataSpec, validation: TokenTable | None) -> Split:
    if not len(table):
        raise _refused("dataset", "the dataset has no rows", reason="NO_ROWS")
    if validation is None:
        split = split_rows(table.keys, share=data.share, seed=data.split_seed)
    elif len(validation):
        split = Split(
            train=shuffled(len(table), seed=data.split_seed),
            validation=shuffled(len(validation), seed=data.split_seed),
        )
    else:
        raise _refused(
            "data.validation_dataset", "the validation dataset has no rows", reason="NO_ROWS"
        )
    return Split(
        train=split.train[: data.max_train_samples],
        validation=split.validation[: data.max_eval_samples],
    )


def _packs(samples: Samples, max_length: int) -> tuple[tuple[int, ...], ...]:
    rows = pack(samples.lengths.tolist(), capacity=max_length)
    return tuple(tuple(row) for row in rows)


def _leaks(
    table: TokenTable, rows: RowNumbers, held_out: TokenTable, held_out_rows: RowNumbers
) -> Leaks:
    is_copy = _is_in(held_out.keys[held_out_rows], table.keys[rows])
    has_prompt = _is_in(held_out.prompt_keys[held_out_rows], table.prompt_keys[rows])
    return Leaks(
        copies=int(np.count_nonzero(is_copy)),
        prompts=int(np.count_nonzero(has_prompt & ~is_copy)),
    )


def _is_in(these: NDArray[np.uint8], those: NDArray[np.uint8]) -> NDArray[np.bool_]:
    return np.isin(as_words(these), as_words(those))


def _max_length(data: DataSpec, lengths: NDArray[np.int64], context: int | None) -> int:
    if data.max_length is None:
        return recommend(lengths, context=context).max_length
    if context is not None and data.max_length > context:
        raise _refused(
            "data.max_length",
            f"max_length {data.max_length} is more than the model reads; use at most {context}",
            reason="MAX_LENGTH_ABOVE_CONTEXT",
        )
    return data.max_length


def _refuse_empty(side: str, counts: LengthCounts, max_length: int) -> None:
    if counts.samples:
        return
    what = (
        f"0 of {counts.rows} {side} rows are left: {counts.dropped} dropped because they are "
        f"longer than {max_length} tokens (the longest has {counts.longest}), "
        f"{counts.untrainable} without a token to train; "
        "raise max_length, or set overlong to truncate"
    )
    error = _refused("data.max_length", what, reason="NO_SAMPLES")
    error.facts.update(
        side=side,
        rows=str(counts.rows),
        dropped=str(counts.dropped),
        untrainable=str(counts.untrainable),
        longest=str(counts.longest),
    )
    raise error


def _refused(field: str, what: str, *, reason: str) -> InvalidArgument:
    violation = FieldViolation(field=field, description=what)
    return InvalidArgument(what, reason=reason, fields=[violation])


def _describe_side(side: str, counts: LengthCounts, max_length: int) -> Iterator[str]:
    verb = "trained" if side == "training" else "measured"
    yield (
        f"{side}: {counts.samples} of {counts.rows} rows are used; "
        f"{counts.trained_tokens} of {counts.tokens} tokens are {verb}"
    )
    cut = counts.affected - counts.dropped
    if cut:
        yield (
            f"{side}: {_count(cut)} longer than {max_length} tokens, cut to the last "
            f"{max_length}; the longest has {counts.longest}"
        )
    if counts.dropped:
        yield (
            f"{side}: {_count(counts.dropped)} longer than {max_length} tokens, dropped; "
            f"the longest has {counts.longest}"
        )
    if counts.untrainable:
        yield f"{side}: {_count(counts.untrainable)} without a token to train, left out"


def _count(samples: int) -> str:
    return "1 sample is" if samples == 1 else f"{samples} samples are"
