"""How many tokens an image takes: our rules against the processors of transformers."""

from __future__ import annotations

import json
import random
import zipfile
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from tokenizers import AddedToken

from lehr.errors import InvalidArgument
from lehr.samples.rows import ChatRow, Row
from lehr.samples.tabulate import tabulate
from lehr.samples.tokens import SampleTokenizer
from lehr.samples.vision import ImageRule, read_rule
from tests.support.canonical_rows import located
from tests.support.toy_model import toy_tokenizer, write_toy_model

pytestmark = [pytest.mark.train, pytest.mark.filterwarnings("ignore")]

chance = random.Random(11)  # noqa: S311 - repeatable
SIZES = [
    (1, 1),
    (28, 28),
    (364, 364),
    (365, 364),
    (3000, 10),
    (10, 1999),
    (400, 101),
    (303, 400),
    (5000, 5000),
    *((chance.randint(20, 3000), chance.randint(20, 3000)) for _ in range(40)),
]
TEMPLATE = (
    "{% for message in messages %}{{ '<|' + message.role + '|>' }}"
    "{% if message.content is string %}{{ message.content }}{% else %}"
    "{% for part in message.content %}"
    "{{ MARK if part.type == 'image' else part.text }}"
    "{% endfor %}{% endif %}{{ '</s>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def a_vision_model(folder: Path, model_type: str, mark: str, **files: dict[str, Any]) -> Path:
    """Write a model that reads images as far as its tokens are concerned."""
    write_toy_model(folder, template=TEMPLATE.replace("MARK", repr(mark)), context=100_000)
    tokenizer = toy_tokenizer()
    marks = [mark, "<fake_token_around_image>", "<global-img>"]
    marks += [f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7)]
    tokenizer.add_special_tokens([AddedToken(one, normalized=False) for one in marks])
    tokenizer.save(str(folder / "tokenizer.json"))
    config = json.loads((folder / "config.json").read_text())
    config |= {"model_type": model_type, "vision_config": {}}
    (folder / "config.json").write_text(json.dumps(config))
    for name, values in files.items():
        (folder / f"{name}.json").write_text(json.dumps(values))
    return folder


def a_fast_tokenizer(folder: Path) -> Any:
    from transformers import PreTrainedTokenizerFast  # noqa: PLC0415 - takes seconds

    return PreTrainedTokenizerFast(
        tokenizer_file=str(folder / "tokenizer.json"), bos_token="<s>", eos_token="</s>"
    )


def rule_of(folder: Path) -> ImageRule:
    rule = read_rule(folder)
    assert isinstance(rule, ImageRule)
    return rule


def a_row(*names: str) -> Row:
    asked = [{"type": "image"} for _ in names] + [{"type": "text", "text": "what?"}]
    return ChatRow(
        messages=(
            {"role": "user", "content": asked},
            {"role": "assistant", "content": "a cat"},
        ),
        images=names,
    )


def images_of(folder: Path, **sizes: tuple[int, int]) -> Path:
    path = folder / "images.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for name, size in sizes.items():
            with archive.open(f"{name}.png", "w") as file:
                Image.new("RGB", size).save(file, "PNG")
    return path


@pytest.mark.parametrize("model_type", ["qwen2_vl", "qwen2_5_vl"])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"min_pixels": 3136, "max_pixels": 12845056, "patch_size": 14, "merge_size": 2},
        {"size": {"shortest_edge": 50_000, "longest_edge": 300_000}},
    ],
    ids=["default", "named", "sized"],
)
def test_qwen_counts_are_those_of_its_processor(
    tmp_path: Path, model_type: str, settings: dict[str, Any]
) -> None:
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import (  # noqa: PLC0415
        Qwen2VLImageProcessorPil,
    )

    theirs = Qwen2VLImageProcessorPil(**settings)
    folder = a_vision_model(tmp_path, model_type, "<|image_pad|>", preprocessor_config=settings)
    rule = rule_of(folder)

    for width, height in SIZES:
        if max(width, height) > 200 * min(width, height):
            with pytest.raises(InvalidArgument, match="too narrow"):
                rule.written((width, height))
            continue
        patches = theirs.get_number_of_image_patches(height, width)
        assert rule.written((width, height)).count("<|image_pad|>") == patches // 4


@pytest.mark.parametrize("strategy", ["default", "full"])
def test_llava_tokens_are_those_of_its_processor(tmp_path: Path, strategy: str) -> None:
    from transformers import LlavaProcessor  # noqa: PLC0415
    from transformers.models.llava.image_processing_pil_llava import (  # noqa: PLC0415
        LlavaImageProcessorPil,
    )

    crop = {"height": 112, "width": 112}
    settings = {"patch_size": 14, "vision_feature_select_strategy": strategy}
    settings |= {"num_additional_image_tokens": 1}
    folder = a_vision_model(
        tmp_path,
        "llava",
        "<image>",
        preprocessor_config={"crop_size": crop, "size": {"shortest_edge": 112}},
        processor_config=settings,
    )
    processor = LlavaProcessor(
        LlavaImageProcessorPil(crop_size=crop, size={"shortest_edge": 112}),
        a_fast_tokenizer(folder),
        **settings,
    )
    images = images_of(tmp_path, a=(300, 200), b=(20, 40))
    tokenizer = SampleTokenizer.load(folder, images=images)

    [found] = tokenizer.encode([a_row("a.png", "b.png")])

    text = tokenizer.render(a_row("a.png", "b.png"))[0].text
    shown = [Image.new("RGB", size) for size in ((300, 200), (20, 40))]
    expected = processor(images=shown, text=text, add_special_tokens=False)["input_ids"][0]
    assert found.token_ids.tolist() == list(expected)
    pieces = tokenizer.pieces(found.sample)
    assert [piece for piece, on in zip(pieces, found.trained, strict=True) if on] == [
        *"a cat",
        "</s>",
    ]


@pytest.mark.parametrize("splits", [True, False])
def test_idefics3_tokens_are_those_of_its_processor(tmp_path: Path, splits: bool) -> None:
    from transformers import Idefics3Processor  # noqa: PLC0415
    from transformers.models.idefics3.image_processing_pil_idefics3 import (  # noqa: PLC0415
        Idefics3ImageProcessorPil,
    )

    settings = {
        "size": {"longest_edge": 400},
        "max_image_size": {"longest_edge": 100},
        "do_image_splitting": splits,
    }
    folder = a_vision_model(
        tmp_path,
        "idefics3",
        "<image>",
        preprocessor_config=settings,
        processor_config={"image_seq_len": 9},
    )
    processor = Idefics3Processor(
        Idefics3ImageProcessorPil(**settings), a_fast_tokenizer(folder), image_seq_len=9
    )
    for number, size in enumerate([(300, 200), (90, 400), (40, 41), (1000, 30)]):
        images = images_of(tmp_path, a=size)
        tokenizer = SampleTokenizer.load(folder, images=images)

        [found] = tokenizer.encode([a_row("a.png")])

        text = tokenizer.render(a_row("a.png"))[0].text
        shown = [[Image.new("RGB", size)]]
        expected = processor(images=shown, text=[text], add_special_tokens=False)["input_ids"][0]
        assert found.token_ids.tolist() == list(expected), (number, size)


@pytest.mark.parametrize(
    "settings", [{}, {"size": {"longest_edge": 400}, "max_image_size": {"longest_edge": 101}}]
)
def test_idefics3_tiles_are_those_of_its_processor(
    tmp_path: Path, settings: dict[str, Any]
) -> None:
    from transformers.models.idefics3.image_processing_pil_idefics3 import (  # noqa: PLC0415
        Idefics3ImageProcessorPil,
    )

    theirs = Idefics3ImageProcessorPil(**settings)
    folder = a_vision_model(tmp_path, "idefics3", "<image>", preprocessor_config=settings)
    rule = rule_of(folder)

    for width, height in SIZES:
        _, rows, columns = theirs.get_number_of_image_patches(height, width)
        tiles = rule.written((width, height)).count("_col_")
        assert tiles == rows * columns, (width, height)


def test_smolvlm_writes_what_its_processor_writes(tmp_path: Path) -> None:
    # The processor itself wants a video library that is not here; these two parts decide.
    from transformers.models.smolvlm.image_processing_pil_smolvlm import (  # noqa: PLC0415
        SmolVLMImageProcessorPil,
    )
    from transformers.models.smolvlm.processing_smolvlm import (  # noqa: PLC0415
        get_image_prompt_string,
    )

    settings = {"size": {"longest_edge": 2048}, "max_image_size": {"longest_edge": 512}}
    theirs = SmolVLMImageProcessorPil(**settings)
    folder = a_vision_model(
        tmp_path,
        "smolvlm",
        "<image>",
        preprocessor_config=settings,
        processor_config={"image_seq_len": 64},
    )
    rule = rule_of(folder)

    for width, height in SIZES:
        _, rows, columns = theirs.get_number_of_image_patches(height, width)
        expected = get_image_prompt_string(
            rows, columns, 64, "<fake_token_around_image>", "<image>", "<global-img>"
        )
        assert rule.written((width, height)) == expected


def test_an_image_on_its_side_is_measured_as_it_is_seen(tmp_path: Path) -> None:
    folder = a_vision_model(tmp_path / "model", "idefics3", "<image>")
    image = Image.new("RGB", (600, 200))
    exif = image.getexif()
    exif[0x0112] = 6
    with zipfile.ZipFile(tmp_path / "images.zip", "w") as archive, archive.open("a.jpg", "w") as to:
        image.save(to, "JPEG", exif=exif)
    tokenizer = SampleTokenizer.load(folder, images=tmp_path / "images.zip")

    [lying] = tokenizer.encode([a_row("a.jpg")])

    shown = "".join(tokenizer.pieces(lying.sample))
    assert rule_of(folder).written((200, 600)) in shown
    assert rule_of(folder).written((600, 200)) not in shown


def test_images_and_marks_that_differ_in_number_are_refused(tmp_path: Path) -> None:
    folder = a_vision_model(tmp_path, "qwen2_vl", "<|image_pad|>")
    images = images_of(tmp_path, a=(30, 30))
    row = ChatRow(
        messages=(
            {"role": "user", "content": "<|image_pad|><|image_pad|>"},
            {"role": "assistant", "content": "a"},
        ),
        images=("a.png",),
    )

    with pytest.raises(InvalidArgument, match=r"the row has 1 images, .* writes 2 marks"):
        tabulate(located([row]), SampleTokenizer.load(folder, images=images))


def test_a_vision_model_of_an_unknown_kind_refuses_images_and_reads_text(tmp_path: Path) -> None:
    folder = a_vision_model(tmp_path, "some_vl", "<image>")
    tokenizer = SampleTokenizer.load(folder, images=images_of(tmp_path, a=(30, 30)))

    assert len(tokenizer.encode([a_row()])[0].token_ids) > 3
    with pytest.raises(InvalidArgument, match="not known for models of type some_vl"):
        tokenizer.encode([a_row("a.png")])
