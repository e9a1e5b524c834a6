"""From rows to what is trained and validated: the one path of plans, previews and trainers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from lehr.errors import FieldViolation, InvalidArgument
from lehr.samples.length import LengthCounts, fit, recommend
from lehr.samples.rows import Row
from lehr.samples.split import Split, split_rows
from lehr.samples.tokens import Sample, SampleTokenizer
from lehr.training.spec import DataSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFacts:
    """The numbers that a plan shows and a job's log repeats."""

    max_length: int
    """Tokens of the longest sample that is trained."""
    train: LengthCounts
    validation: LengthCounts
    """All zeros where nothing is held out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedData:
    """Samples ready to be batched, and their numbers."""

    train: list[Sample]
    validation: list[Sample]
    facts: DataFacts


def prepare(
    rows: Sequence[Row],
    *,
    tokenizer: SampleTokenizer,
    data: DataSpec,
    validation_rows: Sequence[Row] | None = None,
) -> PreparedData:
    """Split, tokenise and cut ``rows`` as ``data`` says; pure, and equal for equal input.

    ``validation_rows`` are those of ``data.validation_dataset``. Rows beyond
    ``max_train_samples`` and ``max_eval_samples`` are neither tokenised nor counted.

    Raises:
        InvalidArgument: a row cannot be rendered, the length is beyond the model's context, or a
            side would be empty.
    """
    train_rows, held_out = _sides(rows, data, validation_rows)
    train = list(tokenizer.encode(train_rows))
    validation = list(tokenizer.encode(held_out))
    max_length = _max_length(data, train + validation, tokenizer.context)
    train_fit, train_counts = fit(train, max_length=max_length, overlong=data.overlong)
    held_fit, held_counts = fit(validation, max_length=max_length, overlong=data.overlong)
    _refuse_empty("training", train_counts, max_length)
    if held_out:
        _refuse_empty("validation", held_counts, max_length)
    facts = DataFacts(max_length=max_length, train=train_counts, validation=held_counts)
    return PreparedData(train=train_fit, validation=held_fit, facts=facts)


def describe(facts: DataFacts) -> Iterator[str]:
    """Yield the lines of a job's log that say what is used, cut and left out."""
    yield from _describe_side("training", facts.train, facts.max_length)
    if facts.validation.rows:
        yield from _describe_side("validation", facts.validation, facts.max_length)


def _sides(
    rows: Sequence[Row], data: DataSpec, validation_rows: Sequence[Row] | None
) -> tuple[list[Row], list[Row]]:
    if not rows:
        raise _refused("dataset", "the dataset has no rows", reason="NO_ROWS")
    if validation_rows is None:
        split = split_rows([row.key() for row in rows], share=data.share, seed=data.split_seed)
        held_out = [rows[at] for at in split.validation]
    else:
        split = Split(train=_shuffled(len(rows), data.split_seed), validation=[])
        held_out = [validation_rows[at] for at in _shuffled(len(validation_rows), data.split_seed)]
        if not held_out:
            raise _refused(
                "data.validation_dataset", "the validation dataset has no rows", reason="NO_ROWS"
            )
    train = [rows[at] for at in split.train]
    return train[: data.max_train_samples], held_out[: data.max_eval_samples]


def _shuffled(count: int, seed: int) -> list[int]:
    return split_rows(range(count), share=0.0, seed=seed).train


def _max_length(data: DataSpec, samples: Sequence[Sample], context: int | None) -> int:
    if data.max_length is None:
        return recommend([len(sample) for sample in samples], context=context).max_length
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
