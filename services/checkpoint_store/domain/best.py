"""Which checkpoint is Best: the lowest finite validation loss, a tie keeps the earlier step."""

import math
from collections.abc import Iterable

from lehr.errors import FieldViolation, InvalidArgument
from services.checkpoint_store.domain.checkpoint import Checkpoint


def bar_of(checkpoints: Iterable[Checkpoint]) -> Checkpoint | None:
    """Return the one that a new Best must be strictly below, deleted or not.

    Deleting the Best does not make the second best the Best: the bar stays where it was.
    """
    counted = (
        (each.eval_loss, each.age, each)
        for each in checkpoints
        if each.was_committed and not each.is_superseded and each.eval_loss is not None
    )
    lowest = min(counted, key=lambda one: one[:2], default=None)
    return None if lowest is None else lowest[2]


def best_of(checkpoints: Iterable[Checkpoint]) -> Checkpoint | None:
    """Return the Best that people see, or None where there is none or it was deleted."""
    bar = bar_of(checkpoints)
    return bar if bar is not None and bar.is_visible else None


def read_loss(text: str) -> tuple[float | None, str]:
    """Return the loss as a number where it is finite, and its text as it is stored.

    Raises:
        InvalidArgument: the text is no number.
    """
    if not text:
        return None, ""
    try:
        value = float(text)
    except ValueError:
        value = None
    if value is None or len(text) > 64 or not text.isascii() or "_" in text:
        rule = "must be a number as text, NaN, Infinity, -Infinity, or empty"
        raise InvalidArgument(
            f"eval_loss {text[:64]!r} {rule}",
            fields=[FieldViolation(field="eval_loss", description=rule)],
        )
    if math.isfinite(value):
        return value, text.strip()
    return None, "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
