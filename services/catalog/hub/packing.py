"""A folder of single files, packed into one zip whose bytes depend on paths and contents alone."""

import hashlib
import shutil
import zipfile
from pathlib import Path
from typing import Self


class Pack:
    """A zip that files are moved into, one after the other and not compressed; to be closed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._archive = zipfile.ZipFile(self.path, "w", zipfile.ZIP_STORED)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *told: object) -> None:
        self._archive.close()

    @property
    def is_used(self) -> bool:
        """Something is in it."""
        return bool(self._archive.namelist())

    def add(self, name: str, path: Path) -> None:
        """Move a file into it."""
        # It gets no time of its own, so that the same files make the same zip.
        entry = zipfile.ZipInfo(name)
        entry.file_size = path.stat().st_size
        with path.open("rb") as source, self._archive.open(entry, "w") as target:
            shutil.copyfileobj(source, target)
        path.unlink()

    def sha256(self) -> str:
        """Return the digest of the closed zip."""
        with self.path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
