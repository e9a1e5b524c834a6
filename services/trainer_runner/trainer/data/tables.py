"""Token tables of a run: those that came with the plan, or made from its rows by the same code."""

from __future__ import annotations

import tempfile
from datetime import datetime
from pathlib import Path

from lehr.samples.files import TokenizerFiles
from lehr.samples.table import TableUnreadable, TokenTable
from lehr.samples.tabulate import write_table
from lehr.samples.tokens import SampleTokenizer
from lehr.training.plan import TrainingPlan


def open_tables(
    plan: TrainingPlan, render_time: datetime
) -> tuple[TokenTable, TokenTable | None, int | None]:
    """Return the tables of training and validation dataset and the most tokens the model reads.

    Templates that print a date print that of ``render_time``.

    Raises:
        InvalidArgument: a row cannot be rendered.
    """

    def opened(rows: Path, images: Path | None, tokens: Path | None) -> TokenTable:
        if tokens is not None:
            try:
                return TokenTable.open(tokens)
            except TableUnreadable:
                # Of another version: the rows are here too.
                pass
        tokenizer = _tokenizer(plan, render_time, images)
        return _made(rows, tokenizer, plan.progress_file.parent)

    table = opened(plan.dataset_file, plan.images_file, plan.tokens_file)
    validation_table: TokenTable | None = None
    if plan.validation_file is not None:
        validation_table = opened(
            plan.validation_file, plan.validation_images_file, plan.validation_tokens_file
        )
    return table, validation_table, TokenizerFiles.read(plan.model_dir).context


def _tokenizer(plan: TrainingPlan, render_time: datetime, images: Path | None) -> SampleTokenizer:
    return SampleTokenizer.load_bundled(
        plan.model_dir, plan.spec.data.chat_template, now=render_time, images=images
    )


def _made(rows: Path, tokenizer: SampleTokenizer, folder: Path) -> TokenTable:
    with tempfile.TemporaryDirectory(dir=folder, prefix=".tokens-") as made:
        path = Path(made) / "table.safetensors"
        write_table(rows, tokenizer, path)
        # What is mapped stays readable without its name.
        return TokenTable.open(path)
