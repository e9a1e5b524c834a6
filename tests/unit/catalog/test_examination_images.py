"""Images of rows: each is kept once and verified, and what is wrong with one is named."""

import base64
import hashlib
import io
import struct
import zipfile
import zlib
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from services.catalog.examination import images as limits
from tests.support.datasets import Examined, chat, examined, image, jsonl, parquet_of, zipped

RED, BLUE = image(), image(color="blue")
_noise = io.BytesIO()
Image.effect_noise((200, 200), 90).save(_noise, "JPEG")
JPEG = _noise.getvalue()


def name_of(raw: bytes, kind: str = "png") -> str:
    """Return the name under which an image is kept."""
    return f"{hashlib.sha256(raw).hexdigest()}.{kind}"


def shows(*images: Any, question: str = "q") -> dict[str, Any]:
    """Return a row with images."""
    return chat(question, "a", images=list(images))


def folder(tmp_path: Path, *rows: dict[str, Any], **members: bytes) -> Examined:
    """Examine a zip of rows and images; in names ``__`` stands for a dot."""
    files = {name.replace("__", "."): raw for name, raw in members.items()}
    return examined(tmp_path, {"a.zip": zipped({"train.jsonl": jsonl(rows), **files})})


def test_images_of_a_folder_are_kept_once_under_their_digest(tmp_path: Path) -> None:
    rows = [shows("red.png"), shows("blue.png", "red.png", question="r"), shows("same.png")]

    one = folder(tmp_path, *rows, red__png=RED, blue__png=BLUE, same__png=RED)

    assert one.images == sorted([name_of(RED), name_of(BLUE)])
    assert [row.row.images for row in one.rows] == [
        (name_of(RED),),
        (name_of(BLUE), name_of(RED)),
        (name_of(RED),),
    ]
    assert one.found.image_row_count == 3
    # The same picture under another name makes a copy of the row.
    assert one.problems == {"DUPLICATE_ROW": (1, (3,))}
    with zipfile.ZipFile(one.folder / "images.zip") as archive:
        assert archive.read(name_of(BLUE)) == BLUE
        assert {info.compress_type for info in archive.infolist()} == {zipfile.ZIP_STORED}


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "GIF"])
def test_each_format_is_known_by_its_bytes(tmp_path: Path, kind: str) -> None:
    raw = image(kind)

    one = folder(tmp_path, shows("picture.jpg"), picture__jpg=raw)

    assert one.images == [name_of(raw, kind.lower())]
    assert one.found.is_accepted


def test_the_same_images_are_found_in_every_way_to_write_them(tmp_path: Path) -> None:
    url = "data:image/png;base64," + base64.b64encode(RED).decode()
    parts = chat("q", "a")
    parts["messages"][0]["content"] = [
        {"type": "image_url", "image_url": {"url": url}},
        {"type": "text", "text": "q"},
    ]
    ways = {
        "data.jsonl": jsonl([shows(url)]),
        "parts.jsonl": jsonl([parts]),
        "bytes.parquet": parquet_of([shows({"bytes": RED, "path": None})]),
        "plain.parquet": parquet_of([shows(RED)]),
        "path.zip": zipped({"t/rows.jsonl": jsonl([shows("i/red.png")]), "t/i/red.png": RED}),
        "top.zip": zipped({"t/rows.jsonl": jsonl([shows("i/red.png")]), "i/red.png": RED}),
        "dots.zip": zipped({"t/rows.jsonl": jsonl([shows("../i/./red.png")]), "i/red.png": RED}),
    }

    one = examined(tmp_path, ways)

    assert {row.row.images for row in one.rows} == {(name_of(RED),)}
    assert {row.row.key() for row in one.rows} == {one.rows[0].row.key()}
    assert one.found.image_row_count == len(ways)
    assert one.found.is_accepted


def test_a_folder_of_images_and_what_describes_them(tmp_path: Path) -> None:
    row = {"file_name": "red.png", "prompt": "What?", "completion": "Red."}
    files = {"train/metadata.jsonl": jsonl([row]), "train/red.png": RED}

    one = examined(tmp_path, {"a.zip": zipped(files)})

    assert [located.row.images for located in one.rows] == [(name_of(RED),)]


def test_rows_and_images_may_come_as_separate_files(tmp_path: Path) -> None:
    rows = jsonl([shows("red.png"), shows("i/blue.png", question="r")])
    files = {"rows.jsonl": rows, "red.png": RED, "images.zip": zipped({"i/blue.png": BLUE})}

    one = examined(tmp_path, files)

    assert one.images == sorted([name_of(RED), name_of(BLUE)])
    assert one.problems == {}


def png_of(width: int, height: int) -> bytes:
    """Return an image whose header announces a size."""
    header = b"IHDR" + struct.pack(">II", width, height) + RED[24:29]
    return RED[:12] + header + struct.pack(">I", zlib.crc32(header)) + RED[33:]


@pytest.mark.parametrize(
    ("value", "reason", "words"),
    [
        ("gone.png", "IMAGE_MISSING", "did not come"),
        ("../red.png", "IMAGE_MISSING", "did not come"),
        ("/etc/passwd", "IMAGE_MISSING", "did not come"),
        ("torn.png", "IMAGE_UNREADABLE", "no readable"),
        ("torn.jpg", "IMAGE_UNREADABLE", "no readable"),
        ("text.png", "IMAGE_UNREADABLE", "no readable"),
        ("empty.png", "IMAGE_UNREADABLE", "no readable"),
        ("bmp.png", "IMAGE_UNREADABLE", "no readable"),
        ("huge.png", "IMAGE_TOO_LARGE", "pixels"),
        ("large.png", "IMAGE_TOO_LARGE", "pixels"),
        ("wide.png", "IMAGE_TOO_LARGE", "pixels"),
        ("heavy.png", "IMAGE_TOO_LARGE", "bytes"),
        ("data:image/png;base64,###", "IMAGE_UNREADABLE", "base64"),
        ("data:image/png,x", "IMAGE_UNREADABLE", "base64"),
        ("http://127.0.0.1/a.png", "IMAGE_REMOTE", "nothing is fetched"),
        ("https://example.org/a.png", "IMAGE_REMOTE", "nothing is fetched"),
        ({"bytes": None, "path": None}, "IMAGE_UNREADABLE", "neither"),
    ],
)
def test_what_is_wrong_with_an_image_is_named_with_its_lines(
    tmp_path: Path, value: Any, reason: str, words: str
) -> None:
    files = {
        "torn.png": RED[:-20],
        "torn.jpg": JPEG[:-200],
        "text.png": b"hello",
        "empty.png": b"",
        "bmp.png": image("BMP"),
        "huge.png": png_of(60_000, 60_000),
        "large.png": png_of(9000, 9000),
        "wide.png": png_of(17_000, 1),
        "heavy.png": RED + bytes(limits.IMAGE_BYTES_MAX),
        "red.png": RED,
    }
    rows = [shows("red.png"), shows(value), shows(value, question="r")]

    one = examined(tmp_path, {"a.zip": zipped({"rows.jsonl": jsonl(rows), **files})})

    errors = [problem for problem in one.found.problems if problem.is_error]
    assert [(error.reason, error.row_count, error.lines) for error in errors] == [
        (reason, 2, (2, 3))
    ]
    assert words in errors[0].description
    assert one.found.row_count == 1


def test_addresses_are_one_kind_of_problem_however_many(tmp_path: Path) -> None:
    rows = [shows(f"https://example.org/{at}{'x' * at}.png") for at in range(120)]

    one = examined(tmp_path, {"a.jsonl": jsonl(rows)})

    assert one.problems == {"IMAGE_REMOTE": (120, tuple(range(1, 21)))}


def test_images_that_no_row_has_are_told_and_left_out(tmp_path: Path) -> None:
    one = folder(tmp_path, shows("red.png"), red__png=RED, blue__png=BLUE, b__jpg=JPEG)

    assert one.only.reason == "IMAGE_UNUSED"
    assert (one.only.row_count, one.only.is_error) == (2, False)
    assert "b.jpg, blue.png" in one.only.description
    assert one.images == [name_of(RED)]


def test_rows_without_images_make_no_archive(tmp_path: Path) -> None:
    one = folder(tmp_path, chat("q", "a"))

    assert one.found.images_file is None
    assert one.found.image_row_count == 0
    assert not (one.folder / "images.zip").exists()


def test_an_archive_of_images_is_the_same_each_time(tmp_path: Path) -> None:
    rows = [shows("red.png"), shows("blue.png")]

    one = folder(tmp_path, *rows, red__png=RED, blue__png=BLUE)
    two = folder(tmp_path, *rows[::-1], red__png=RED, blue__png=BLUE)

    assert one.found.images_file == two.found.images_file
