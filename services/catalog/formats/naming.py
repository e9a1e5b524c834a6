"""Which format a file has: its first bytes decide, and its name where they cannot."""

import json
from enum import StrEnum
from pathlib import PurePosixPath

from services.catalog.domain.announcing import IMAGE_SUFFIXES
from services.catalog.formats.archive import ZIP_MAGICS
from services.catalog.formats.columnar import is_columnar
from services.catalog.formats.elements import holds_rows
from services.catalog.formats.errors import Broken
from services.catalog.formats.expansion import is_compressed
from services.catalog.formats.lines import BOM

COMPRESSED = (".gz", ".zst")
HEAD_BYTES = 2**20
"""Bytes of a file that are looked at."""

_IMAGE_MAGICS = (b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"GIF87a", b"GIF89a")


class Format(StrEnum):
    """How rows are written."""

    LINES = "JSON lines"
    ELEMENTS = "JSON"
    CSV = "csv"
    TSV = "tsv"
    PARQUET = "parquet"
    ARROW = "arrow"


_BY_SUFFIX = {
    ".jsonl": Format.LINES,
    ".ndjson": Format.LINES,
    ".json": Format.ELEMENTS,
    ".csv": Format.CSV,
    ".tsv": Format.TSV,
    ".parquet": Format.PARQUET,
    ".arrow": Format.ARROW,
    ".feather": Format.ARROW,
}


def suffix_of(name: str) -> str:
    """Return the suffix that names the format, that of a compression left out."""
    path = PurePosixPath(name.lower())
    return PurePosixPath(path.stem).suffix if path.suffix in COMPRESSED else path.suffix


def holds_data(name: str) -> bool:
    """Tell by its name whether a file in an archive holds rows."""
    return suffix_of(name) in _BY_SUFFIX


def is_named_image(name: str) -> bool:
    """Tell by its name whether a file is an image."""
    return name.lower().endswith(IMAGE_SUFFIXES)


def is_image(name: str, head: bytes) -> bool:
    """Tell whether a file is an image rather than rows."""
    is_webp = head.startswith(b"RIFF") and head[8:12] == b"WEBP"
    return is_webp or head.startswith(_IMAGE_MAGICS) or is_named_image(name)


def is_misnamed(name: str, kind: Format, *, is_packed: bool) -> bool:
    """Tell whether a file's name denies what the file is."""
    claimed = _BY_SUFFIX.get(suffix_of(name))
    is_json = {claimed, kind} <= {Format.LINES, Format.ELEMENTS}
    is_other = claimed is not None and claimed is not kind and not is_json
    return is_other or is_packed is not name.lower().endswith(COMPRESSED)


def is_zip(head: bytes) -> bool:
    """Tell whether a file is a zip archive."""
    return head.startswith(ZIP_MAGICS)


def format_of(name: str, head: bytes) -> Format:
    """Return the format of rows by the first bytes of a file that is not compressed any more.

    Raises:
        Broken: it is none that is read.
    """
    claimed = _BY_SUFFIX.get(suffix_of(name))
    if is_columnar(head) is not None:
        return Format.PARQUET if is_columnar(head) == "parquet" else Format.ARROW
    if is_zip(head) or is_compressed(head):
        raise Broken("ARCHIVE_REFUSED", "is compressed twice; compress the rows once")
    if claimed in (Format.PARQUET, Format.ARROW):
        raise Broken("FORMAT_UNKNOWN", f"is no {claimed} file, whatever its name says")
    if claimed in (Format.CSV, Format.TSV):
        return claimed
    text = head.removeprefix(BOM).lstrip()
    if claimed is None and text[:1] not in (b"{", b"["):
        raise Broken(
            "FORMAT_UNKNOWN",
            "is of no format that is read; give jsonl, json, csv, tsv, parquet or arrow",
        )
    return Format.LINES if _is_lines(text, claimed) else Format.ELEMENTS


def _is_lines(text: bytes, claimed: Format | None) -> bool:
    """Tell JSON lines from JSON: whether the first line is a value, and something follows it."""
    line, _, rest = text.partition(b"\n")
    try:
        first = json.loads(line)
    except (ValueError, RecursionError):
        # Too long for a look, broken, or JSON over several lines: then the name counts.
        opens_only = line.strip() in (b"{", b"[") or line.startswith(b"[")
        return claimed is Format.LINES and not opens_only
    if rest.strip():
        return True
    return (claimed is Format.LINES and isinstance(first, dict)) or (
        isinstance(first, dict) and not holds_rows(first)
    )
