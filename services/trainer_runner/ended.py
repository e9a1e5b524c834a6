"""A run that had ended by itself is not run again: its end is told once more."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

from lehr.training.ends import RunEnd
from lehr.training.plan import TrainingPlan
from lehr.training.reports import CheckpointReport, DoneReport, LogReport
from services.trainer_runner.folders import Resumed, write_folder
from services.trainer_runner.pipes import Reporter


def repeat_end(plan: TrainingPlan, resumed: Resumed, end: RunEnd, report: Reporter) -> RunEnd:
    """Give the final checkpoint of a run that had ended by itself again, without computing.

    The platform asks for that when it lost the end of the run that made it.
    """
    step, standing = resumed.step, resumed.standing

    def fill(folder: Path) -> None:
        shutil.copytree(resumed.folder, folder, dirs_exist_ok=True)

    path = write_folder(plan.output_dir / f"checkpoint-{step}", fill, passed=lambda: None)
    report(LogReport(text=f"The run had already ended at step {step}; nothing is trained again"))
    report(
        CheckpointReport(
            step=step,
            path=str(path),
            is_ordinary=False,
            is_best=standing.best_step == step,
            is_final=True,
            resumable=True,
            eval_loss=standing.loss_at(step),
            snapshot_monotonic=time.monotonic(),
        )
    )
    report(
        DoneReport(
            end=end,
            message=f"The run had already ended at step {step}.",
            step=step,
            best_step=standing.best_step,
            best_loss=standing.best_loss,
            baseline_loss=standing.baseline_loss,
        )
    )
    return end
