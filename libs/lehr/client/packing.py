"""What lies on this disk, as the files of an upload."""

from __future__ import annotations

import re
import shutil
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from lehr.errors import InvalidArgument

_ODD = re.compile(r"[^A-Za-z0-9._-]+")
_EPOCH = (1980, 1, 1, 0, 0, 0)
"""The earliest time that a zip can hold."""


@contextmanager
def dataset_files(given: Path | Sequence[Path]) -> Iterator[dict[str, Path]]:
    """Give the files of a dataset by name while the block lasts; a folder becomes one zip.

    Raises:
        InvalidArgument: nothing is there, two files have one name, or a folder is not alone.
    """
    paths = [given] if isinstance(given, Path) else list(given)
    if not paths:
        raise InvalidArgument("give at least one file")
    if any(path.is_dir() for path in paths):
        if len(paths) > 1:
            raise InvalidArgument("give several files, or one folder")
        with tempfile.TemporaryDirectory(prefix="lehr-upload-") as place:
            packed = Path(place) / f"{_name_of(paths[0])}.zip"
            pack(paths[0], packed)
            yield {packed.name: packed}
        return
    files = {path.name: path for path in paths}
    if len(files) < len(paths):
        raise InvalidArgument("two files have the same name; rename one")
    yield files


def model_files(folder: Path) -> dict[str, Path]:
    """Return the files of a model folder by name.

    Raises:
        InvalidArgument: there are none.
    """
    # Hidden files, such as .gitattributes, are about the folder and not part of the model.
    found = {
        path.name: path
        for path in sorted(folder.iterdir())
        if path.is_file() and not path.name.startswith(".")
    }
    if not found:
        raise InvalidArgument(f"{folder} holds no files; give the folder of a model")
    return found


def pack(folder: Path, target: Path) -> None:
    """Put the files below a folder into a zip, as they are; the same files give the same bytes.

    Raises:
        InvalidArgument: there are none.
    """
    # Hidden files and folders are about the folder and not part of the data.
    names = sorted(
        (path.relative_to(folder).as_posix(), path)
        for path in folder.rglob("*")
        if path.is_file()
        and not any(part.startswith(".") for part in path.relative_to(folder).parts)
    )
    if not names:
        raise InvalidArgument(f"{folder} holds no files")
    with zipfile.ZipFile(target, "w", zipfile.ZIP_STORED) as archive:
        for name, path in names:
            entry = zipfile.ZipInfo(name, _EPOCH)
            entry.external_attr = 0o644 << 16
            entry.create_system = 3
            entry.file_size = path.stat().st_size
            with path.open("rb") as source, archive.open(entry, "w") as member:
                shutil.copyfileobj(source, member, 1 << 20)


def _name_of(folder: Path) -> str:
    name = _ODD.sub("-", folder.resolve().name).strip("-._")
    return name[:100] or "folder"
