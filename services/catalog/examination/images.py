"""Images of rows: found, verified and kept once, under the SHA-256 of their bytes."""

import base64
import binascii
import hashlib
import io
import os
import posixpath
import warnings
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from lehr.errors import InvalidArgument
from lehr.samples.images import StoreImage
from services.catalog.formats.sources import ImageFiles

IMAGE_BYTES_MAX = 32 * 2**20
PIXELS_MAX = 64 * 10**6
SIDE_MAX = 16_384
FORMATS = ("PNG", "JPEG", "WEBP", "GIF")
"""Formats that are read; only these parts of the library ever see a stranger's bytes."""


class ImageRefused(InvalidArgument):
    """An image cannot be used; ``reason`` tells the kinds apart."""


class ImagesNeedPool(Exception):  # noqa: N818 - it is a question, not a mistake
    """A row has an image, and images are not read in the process of a service."""


def refuse_images(_: Any) -> str:
    """Stand in for a store of images where none may be read.

    Raises:
        ImagesNeedPool: always.
    """
    raise ImagesNeedPool


class ImageStore:
    """Writes images into a folder, each once; several processes may share it."""

    def __init__(self, files: ImageFiles, folder: Path) -> None:
        self._files = files
        self._folder = folder
        self._loose = dict(files.loose)
        self._archives: dict[Path, zipfile.ZipFile] = {}
        self._known: dict[tuple[Path, str], str | ImageRefused] = {}
        self._used: set[str] = set()

    def of(self, path: Path, folder: str) -> StoreImage:
        """Return what stores the images of a file of rows at ``path``.

        ``folder`` is where relative paths begin, in the archive that the file is in.
        """

        def store(value: Any) -> str:
            return self._store(value, path, folder)

        return store

    def take_used(self) -> set[str]:
        """Return the image files that were used since this was last asked."""
        used, self._used = self._used, set()
        return used

    def _store(self, value: Any, path: Path, folder: str) -> str:
        if isinstance(value, Mapping):
            raw = value.get("bytes")
            value = raw if raw is not None else value.get("path")
        if isinstance(value, bytes):
            return self._kept(value)
        if not isinstance(value, str) or not value:
            raise _refused("IMAGE_UNREADABLE", "is neither a path nor an image")
        if value[:5].lower() == "data:":
            return self._kept(_data_of(value))
        return self._named(value, path, folder)

    def _named(self, name: str, path: Path, folder: str) -> str:
        for place in self._places(name, path, folder):
            found = self._known.get(place)
            if found is None:
                found = self._known[place] = self._look_at(*place)
            self._used.add(place[1])
            if isinstance(found, ImageRefused):
                raise _refused(found.reason, found.message)
            return found
        raise _refused("IMAGE_MISSING", "is an image that did not come with the rows; add it")

    def _places(self, name: str, path: Path, folder: str) -> list[tuple[Path, str]]:
        """Return where an image is: beside its rows, else by its whole path in any archive."""
        beside, whole = (posixpath.normpath(posixpath.join(top, name)) for top in (folder, "."))
        own = [one for one in self._files.archives if one[0] == path]
        others = [one for one in self._files.archives if one[0] != path]
        asked = [(own, beside), (own, whole), (others, whole)]
        places = [
            (archive, wanted)
            for archives, wanted in asked
            for archive, names in archives
            if wanted in names
        ]
        loose = [(self._loose[whole], whole)] if whole in self._loose else []
        return (places + loose)[:1]

    def _look_at(self, path: Path, name: str) -> str | ImageRefused:
        try:
            return self._kept(self._read(path, name))
        except ImageRefused as refused:
            return refused
        except (zipfile.BadZipFile, OSError, EOFError, ValueError) as error:
            return _refused("IMAGE_UNREADABLE", f"is damaged in its archive ({error})")

    def _read(self, path: Path, name: str) -> bytes:
        if name in self._loose and self._loose[name] == path:
            with path.open("rb") as file:
                return file.read(IMAGE_BYTES_MAX + 1)
        archive = self._archives.get(path)
        if archive is None:
            archive = self._archives[path] = zipfile.ZipFile(path)
        with archive.open(name) as member:
            return member.read(IMAGE_BYTES_MAX + 1)

    def _kept(self, raw: bytes) -> str:
        name = f"{hashlib.sha256(raw).hexdigest()}.{_format_of(raw)}"
        path = self._folder / name
        if not path.exists():
            # Another process may write the same image; each writes its own file, the last stays.
            part = path.with_name(f".{name}.{os.getpid()}")
            part.write_bytes(raw)
            part.replace(path)
        return name


def pack(folder: Path, archive: Path, *, heartbeat: Callable[[], None]) -> None:
    """Move the images of a folder into an archive; the same images make the same bytes."""
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_STORED) as packed:
        for path in sorted(folder.iterdir()):
            packed.writestr(zipfile.ZipInfo(path.name), path.read_bytes())
            path.unlink()
            heartbeat()
    folder.rmdir()


def _format_of(raw: bytes) -> str:
    """Return png, jpeg, webp or gif; reads headers and checksums, not every pixel.

    Raises:
        ImageRefused: it is none of these, damaged, or too large.
    """
    from PIL import Image  # noqa: PLC0415 - only a process of the pool holds it

    if len(raw) > IMAGE_BYTES_MAX:
        raise _refused("IMAGE_TOO_LARGE", f"is larger than {IMAGE_BYTES_MAX} bytes")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # sizes are judged here
            with Image.open(io.BytesIO(raw), formats=FORMATS) as image:
                width, height, kind = image.width, image.height, str(image.format)
                _check_size(width, height)
                image.verify()
            if kind == "JPEG":
                # Its check looks at nothing; at an eighth of the size, reading it all is cheap.
                with Image.open(io.BytesIO(raw), formats=FORMATS) as image:
                    image.draft("RGB", (1, 1))
                    image.load()
    except (ImageRefused, MemoryError):
        raise
    except Image.DecompressionBombError:
        raise _too_many_pixels() from None
    except Exception as error:
        # The library raises whatever its parts raise; none of it may end the examination.
        told = str(error).split("<")[0].strip()[:80]
        raise _refused(
            "IMAGE_UNREADABLE", f"is no readable png, jpeg, webp or gif ({told})"
        ) from None
    return kind.lower()


def _check_size(width: int, height: int) -> None:
    if width * height > PIXELS_MAX or max(width, height) > SIDE_MAX:
        raise _too_many_pixels()


def _too_many_pixels() -> ImageRefused:
    return _refused(
        "IMAGE_TOO_LARGE",
        f"has more than {PIXELS_MAX} pixels, or {SIDE_MAX} on one side; make it smaller",
    )


def _data_of(url: str) -> bytes:
    head, comma, data = url.partition(",")
    if not comma or not head.lower().endswith(";base64"):
        raise _refused("IMAGE_UNREADABLE", "is a data: address that is not base64")
    try:
        return base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        raise _refused("IMAGE_UNREADABLE", "is a data: address with broken base64") from None


def _refused(reason: str, what: str) -> ImageRefused:
    return ImageRefused(what, reason=reason)
