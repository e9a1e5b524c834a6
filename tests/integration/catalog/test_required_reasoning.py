"""TR-09 of the requirements in the preview: reasoning is trained once, where it belongs."""

from __future__ import annotations

from pathlib import Path

import pytest

from lehr.api.catalog.v1 import catalog_pb2 as pb
from lehr.client import AsyncClient
from tests.support.required_rows import TR_09, write_lines
from tests.support.toy_model import write_toy_model
from tests.unit.samples.test_samples_reasoning import FORGETFUL, STRIPPING, VERBATIM

LAST_OF_FIRST = "<think>\nthree plus three\n</think>\n\n6.</s>"
SECOND_ROW = "<think>\nfive and five\n</think>\n\n10.</s>"


def answers(sample: pb.SamplePreview) -> list[str]:
    """Return each run of tokens that are trained, as text."""
    found = [""]
    for token, is_trained in zip(sample.tokens, sample.trained, strict=True):
        if is_trained:
            found[-1] += token
        elif found[-1]:
            found.append("")
    return [text for text in found if text]


@pytest.mark.parametrize(
    ("template", "trained"),
    [
        # Hides the reasoning of earlier turns: their answers are read, not trained.
        (FORGETFUL, ([LAST_OF_FIRST], [SECOND_ROW])),
        # Opens the block in the prompt: what is trained begins inside it.
        (
            STRIPPING,
            (
                [LAST_OF_FIRST.removeprefix("<think>\n")],
                [SECOND_ROW.removeprefix("<think>\n")],
            ),
        ),
        # Shows every turn as it was written.
        (
            VERBATIM,
            (
                [
                    "<think>two plus two</think>The answer is 4.</s>",
                    "<think>three plus three</think>6.</s>",
                ],
                [SECOND_ROW],
            ),
        ),
    ],
    ids=["forgetful", "stripping", "verbatim"],
)
async def test_each_trained_answer_shows_its_reasoning_once_inside_one_block(
    client: AsyncClient,
    tmp_path: Path,
    template: str,
    trained: tuple[list[str], list[str]],
) -> None:
    await client.models.add(
        write_toy_model(tmp_path / "model", template=template), name="thinks", license="MIT"
    )
    await client.datasets.upload(write_lines(tmp_path / "train.jsonl", *TR_09), name="tr-09")

    samples = await client.datasets.preview("tr-09", model="thinks", lines=[1, 2])

    assert tuple(map(answers, samples)) == trained
    for sample in samples:
        assert "".join(sample.tokens) == sample.text
        for answer in answers(sample):
            # With what the prompt has opened there is one block, whole and not empty.
            shown = sample.text[: sample.text.index(answer) + len(answer)]
            block = shown[shown.rindex("<think>") :]
            assert (block.count("<think>"), block.count("</think>")) == (1, 1)
            assert block.split("</think>")[0].removeprefix("<think>").strip()
    for words in ("three plus three", "five and five"):
        assert sum(one.text.count(words) for one in samples) == 1
