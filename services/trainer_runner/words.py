"""What a run says in its job's log, in one place, from values."""

from __future__ import annotations

import math

from lehr.training.ends import RunEnd
from services.trainer_runner.cadence import NON_FINITE_LIMIT, Cadence, Marks, Standing


def best_so_far(standing: Standing) -> str:
    """Name the Best, or say that there is none."""
    if standing.best_step is None:
        return "no finite validation loss was seen, so no checkpoint is Best"
    best = f"Best is step {standing.best_step} ({standing.best_loss:.6g})"
    if standing.misses == 0:
        return best
    times = "once" if standing.misses == 1 else f"{standing.misses} times in a row"
    return f"{best}, not beaten {times}"


def after_evaluation(step: int, loss: float, standing: Standing) -> str:
    """Say what an evaluation gave; ``standing`` is the one after it."""
    if step == 0:
        return f"baseline: the base model's validation loss is {loss:.4f}"
    if standing.best_step == step:
        return f"step {step}: validation loss {loss:.6g} is the new Best"
    if not math.isfinite(loss):
        return f"step {step}: validation loss is {loss}, which is no improvement"
    return f"step {step}: validation loss {loss:.6g}; {best_so_far(standing)}"


def after_save(step: int, marks: Marks) -> str:
    """Say which checkpoint was saved, and why."""
    names = {"ordinary": marks.is_ordinary, "Best": marks.is_best, "final": marks.is_final}
    why = ", ".join(name for name, is_so in names.items() if is_so)
    return f"step {step}: checkpoint saved ({why})"


def at_end(end: RunEnd, step: int, standing: Standing, cadence: Cadence) -> str:
    """Say how the run ends at ``step``, and which checkpoint is its best."""
    match end:
        case RunEnd.USER_ERROR:
            return (
                f"The training loss was not a finite number {NON_FINITE_LIMIT} times in a row, "
                f"up to step {step}; lower learning_rate, or set max_grad_norm"
            )
        case RunEnd.COMPLETED:
            message = f"All {cadence.total_steps} steps are done"
        case RunEnd.EARLY_STOPPED:
            message = (
                f"Stopped early at step {step}: validation loss has not fallen in "
                f"{standing.misses} evaluations"
            )
        case _:
            message = f"Stopped after step {step}" if step > 0 else "Stopped before the first step"
    is_judged = cadence.evaluates and standing.evaluated_step not in (None, 0)
    return f"{message}; {best_so_far(standing)}" if is_judged else message
