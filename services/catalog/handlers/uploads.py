"""What uploads of models and datasets share: signed addresses, verification, removal."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

from lehr.errors import NotFound
from lehr.objects import ObjectStore
from lehr.postgres import Database
from services.catalog.cache import FileCache
from services.catalog.domain.entries import File
from services.catalog.domain.errors import UploadIncomplete


@dataclass(frozen=True, slots=True, kw_only=True)
class Shelves:
    """Where the catalog keeps things."""

    db: Database
    objects: ObjectStore
    cache: FileCache
    link_lifetime: timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A file with a signed address; an empty one where there is nothing to do."""

    file: File
    url: str


async def verify(objects: ObjectStore, files: Mapping[str, File]) -> None:
    """Read every object (key to file) and compare size and SHA-256.

    Raises:
        UploadIncomplete: one is missing or differs.
    """
    for key, file in files.items():
        try:
            found = await objects.sha256(key)
        except NotFound:
            raise UploadIncomplete(file.name, "has not arrived") from None
        if found.size_bytes != file.size_bytes:
            raise UploadIncomplete(
                file.name, f"has {found.size_bytes} bytes instead of {file.size_bytes}"
            )
        if found.sha256 != file.sha256:
            raise UploadIncomplete(file.name, "does not have the announced SHA-256")
