"""Which method trains which adapter; the one place that every service asks. No torch here."""

from __future__ import annotations

from collections.abc import Mapping

from lehr.samples.rows import RowKind
from lehr.training.combinations import Problem, combination_problems
from lehr.training.methods import METHODS
from lehr.training.methods.base import Method
from lehr.training.spec import JobSpec

_TO_MAP: Mapping[RowKind, str] = {
    "messages": "messages",
    "prompt_completion": "prompt and completion",
    "text": "text",
    "preference": "chosen and rejected, and prompt where they do not hold it",
    "unpaired_preference": "prompt, completion and label",
    "prompt_answer": "prompt, and answer where there is one",
    "stepwise": "prompt, completions and labels",
}


def problems(spec: JobSpec, *, row_kind: str | None = None) -> list[Problem]:
    """Say what the registry refuses in ``spec``; empty when it can run.

    ``row_kind`` is the kind of the dataset's rows where it is already known.
    """
    method = METHODS.get(spec.method)
    if method is None:
        known = ", ".join(sorted(METHODS))
        return [Problem(field="method", description=f"unknown method {spec.method!r}; use {known}")]
    found = combination_problems(spec, method)
    if spec.data.packing and not method.packs:
        told = f"{spec.method} does not pack samples into one row; leave packing out"
        found.append(Problem(field="data.packing", description=told))
    own = spec.hyperparameters
    rows = spec.training.rows_per_step
    if own is not None and rows < own.answers_per_step_min:
        told = (
            f"{spec.method} compares the rows of an optimiser step with each other; set "
            "per_device_train_batch_size or gradient_accumulation_steps to "
            f"{own.answers_per_step_min} or more"
        )
        found.append(Problem(field="training.per_device_train_batch_size", description=told))
    if own is not None and own.other_models:
        told = (
            f"names {', '.join(own.other_models)}, and a node is given the base model alone so "
            "far; use rewards without a model, or a method without a teacher"
        )
        found.append(Problem(field="hyperparameters", description=told))
    if own is not None and rows % own.rows_per_prompt:
        told = (
            f"an optimiser step has {rows} rows, which are no whole groups of "
            f"{own.rows_per_prompt} answers to one prompt; make per_device_train_batch_size times "
            "gradient_accumulation_steps a multiple of num_generations"
        )
        found.append(Problem(field="training.per_device_train_batch_size", description=told))
    if row_kind is not None and row_kind not in method.row_kinds:
        found.append(Problem(field="dataset", description=_wrong_rows(method, row_kind)))
    return found


def _wrong_rows(method: Method, row_kind: str) -> str:
    kinds = " or ".join(method.row_kinds)
    maps = "; or ".join(_TO_MAP[kind] for kind in method.row_kinds)
    return (
        f"{method.method_id} needs {kinds} rows; this dataset has {row_kind} rows; "
        f"add it again with a column map of {maps}"
    )
