"""Images of rows: every way to write them ends in parts and names, and nothing is fetched."""

from __future__ import annotations

from typing import Any

import pytest

from lehr.errors import InvalidArgument
from lehr.samples.layouts import recognise
from lehr.samples.rows import ChatRow, PreferenceRow, PromptAnswerRow, PromptCompletionRow
from tests.unit.samples.row_strategies import turn

A = turn("assistant", "a")
PART = {"type": "image"}
SAID = {"type": "text", "text": "What?"}
DATA_URL = "data:image/png;base64,iVBORw0KGgo="
IN_PARQUET = {"bytes": b"\x89PNG", "path": "c.png"}
NAMES = {"a.png": "1.png", "b/b.png": "2.png", DATA_URL: "3.png", b"\x89PNG": "4.png"}


def store(value: Any) -> str:
    """Return the name of an image, as what stores them does."""
    key = value["bytes"] if isinstance(value, dict) else value
    if key not in NAMES:
        raise InvalidArgument(f"there is no image {key!r} beside the rows")
    return NAMES[key]


@pytest.mark.parametrize(
    ("content", "columns", "parts", "names"),
    [
        ([PART, SAID], {"images": ["a.png"]}, [PART, SAID], ("1.png",)),
        ([PART, SAID], {"images": '["a.png"]'}, [PART, SAID], ("1.png",)),
        ([PART, SAID], {"image": "a.png"}, [PART, SAID], ("1.png",)),
        ([PART, SAID], {"images": [IN_PARQUET]}, [PART, SAID], ("4.png",)),
        ([{"type": "image", "image": b"\x89PNG"}, SAID], {}, [PART, SAID], ("4.png",)),
        (
            [SAID, {"type": "image_url", "image_url": {"url": DATA_URL, "detail": "low"}}],
            {},
            [SAID, PART],
            ("3.png",),
        ),
        ([{"type": "image_url", "image_url": "a.png"}], {}, [PART], ("1.png",)),
        (
            [{"type": "image", "image": "b/b.png"}, PART, SAID],
            {"images": ["a.png"]},
            [PART, PART, SAID],
            ("2.png", "1.png"),
        ),
        (
            "<image>\nthis or <image>?",
            {"images": ["a.png", "b/b.png"]},
            [
                PART,
                {"type": "text", "text": "\nthis or "},
                PART,
                {"type": "text", "text": "?"},
            ],
            ("1.png", "2.png"),
        ),
        ("What?", {"images": ["a.png", "b/b.png"]}, [PART, PART, SAID], ("1.png", "2.png")),
        ([SAID], {"images": ["a.png"]}, [PART, SAID], ("1.png",)),
        ("What is <image> in HTML?", {}, "What is <image> in HTML?", ()),
        ("What?", {"images": []}, "What?", ()),
        ("What?", {"images": None, "image": None}, "What?", ()),
    ],
)
def test_images_become_parts_and_names_in_order(
    content: Any, columns: dict[str, Any], parts: Any, names: tuple[str, ...]
) -> None:
    row, _ = recognise({"messages": [turn("user", content), A], **columns}, images=store)

    assert row == ChatRow(messages=(turn("user", parts), A), images=names)
    assert row.has_images is bool(names)


def test_images_of_a_preference_go_by_prompt_chosen_and_rejected() -> None:
    shown = turn("user", [PART, SAID])
    more = turn("user", [PART])
    value = {
        "chosen": [shown, A, more, A],
        "rejected": [shown, turn("assistant", "b"), more, A],
        "images": ["a.png", DATA_URL, "b/b.png"],
    }

    row, _ = recognise(value, images=store)

    assert isinstance(row, PreferenceRow)
    assert row.prompt == (shown,)
    assert row.images == ("1.png", "3.png", "2.png")


def test_text_with_an_images_column_becomes_a_chat_with_or_without_an_image() -> None:
    shown, _ = recognise({"problem": "x", "answer": 4, "images": ["a.png"]}, images=store)
    plain, _ = recognise({"prompt": "q", "completion": "a", "images": []}, images=store)

    content = [PART, {"type": "text", "text": "x"}]
    assert shown == PromptAnswerRow(
        prompt=(turn("user", content),), answer=4, columns={}, images=("1.png",)
    )
    assert plain == PromptCompletionRow(prompt=(turn("user", "q"),), completion=(A,))


@pytest.mark.parametrize(
    ("content", "columns", "message"),
    [
        ([PART], {}, "images: are 0, but the messages have places for 1; write one image for"),
        ([PART], {"images": ["a.png", "a.png"]}, "images: are 2, but the messages have places fo"),
        ("<image> <image>", {"images": ["a.png"]}, "images: are 1, but the messages have 2 <im"),
        ([PART], {"images": ["gone.png"]}, r"images\[0\]: there is no image 'gone.png'"),
        ([{"type": "image", "image": "gone.png"}], {}, r"messages\[0\].content\[0\]: there is no"),
        ([PART], {"images": ["http://h/x.png"]}, r"images\[0\]: is the address 'http://h/x.png'"),
        ([PART], {"image": "HTTPS://h/x.png"}, "is the address 'HTTPS://h/x.png'; nothing is fe"),
        ([PART], {"images": ["//h/x.png"]}, "is the address '//h/x.png'"),
        ([PART], {"images": ["file:///etc/passwd"]}, "is the address 'file:///etc/passwd'"),
        (
            [{"type": "image_url", "image_url": {"url": "https://h/x.png"}}],
            {},
            r"messages\[0\].content\[0\]: is the address 'https://h/x.png'",
        ),
        ([PART], {"images": [None]}, r"images\[0\]: is null; write the path of an image"),
        ([PART], {"images": [5]}, r"images\[0\]: is a number; write the path of an image"),
    ],
)
def test_images_that_do_not_fit_or_cannot_be_read_are_named(
    content: Any, columns: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidArgument, match=message):
        recognise({"messages": [turn("user", content), A], **columns}, images=store)


def test_an_image_of_the_assistant_is_refused() -> None:
    chat = [turn("user", "Draw"), turn("assistant", [PART])]

    with pytest.raises(InvalidArgument, match="is an image of the assistant's"):
        recognise({"messages": chat, "images": ["a.png"]}, images=store)


def test_a_file_that_comes_without_images_cannot_name_one() -> None:
    with pytest.raises(InvalidArgument, match="no images came with the file; add a zip"):
        recognise({"messages": [turn("user", [PART]), A], "images": ["a.png"]})
