"""How many optimiser steps a job takes; plan and trainer count with the same arithmetic."""

from __future__ import annotations

import math
from dataclasses import dataclass

from lehr.training.spec import TrainingSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """The shape of the optimisation loop."""

    batches_per_epoch: int
    """Forward passes of one pass over the training rows; the last may be smaller."""
    per_epoch: int
    """Optimiser steps of one pass; the last may accumulate fewer batches."""
    total: int
    """Optimiser steps of the whole job."""


def count_steps(train_samples: int, training: TrainingSpec) -> Steps:
    """Count the steps that ``train_samples`` (at least 1) give on one device.

    An epoch's last batch and last accumulation are smaller, not left out, and a fraction of an
    epoch is rounded up to whole steps, as transformers does.
    """
    batches = math.ceil(train_samples / training.per_device_train_batch_size)
    per_epoch = math.ceil(batches / training.gradient_accumulation_steps)
    by_epochs = math.ceil(training.num_train_epochs * per_epoch)
    total = training.max_steps if training.max_steps > 0 else by_epochs
    return Steps(batches_per_epoch=batches, per_epoch=per_epoch, total=total)
