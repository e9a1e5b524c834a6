"""Files of a repository, fetched at a commit and proven against the listing."""

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi
from huggingface_hub.utils import tqdm

from services.catalog.domain.imports import RemoteFile, SourceCorrupt

_CHUNK_BYTES = 1 << 20

Told = Callable[[int], None]
"""Called with bytes that arrived, and with less than none when they have to come again."""


def fetch(
    api: HfApi, repo: dict[str, str], file: RemoteFile, folder: Path, *, tell: Told
) -> tuple[Path, str]:
    """Return where a file lies and its SHA-256; ``repo`` has repo_id, repo_type and revision.

    Raises:
        SourceCorrupt: it is not what was listed, twice in a row.
    """
    path = folder / file.path
    for is_again in (False, True):
        api.hf_hub_download(
            filename=file.path,
            local_dir=folder,
            force_download=is_again,
            tqdm_class=_bar(tell),
            **repo,
        )
        digests = digests_of(path)
        if path.stat().st_size == file.size_bytes and file.digest in digests:
            return path, digests[0].removeprefix("sha256:")
        tell(-path.stat().st_size)
    raise SourceCorrupt(
        f"{file.path} is not the file that the hub lists; nothing of it is kept", file=file.path
    )


def digests_of(path: Path) -> tuple[str, str]:
    """Return ``sha256:<hex>`` and ``git:<hex>`` of a file.

    Git names a blob by the SHA-1 over "blob <size>", a NUL, and the content (Git book, 10.2).
    """
    plain = hashlib.sha256()
    blob = hashlib.sha1(b"blob %d\0" % path.stat().st_size, usedforsecurity=False)
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            plain.update(chunk)
            blob.update(chunk)
    return f"sha256:{plain.hexdigest()}", f"git:{blob.hexdigest()}"


def by_path(files: Sequence[dict[str, Any]]) -> list[RemoteFile]:
    """Read files of a request."""
    return [RemoteFile(**file) for file in files]


def _bar(tell: Told) -> type[tqdm]:
    class Bar(tqdm):  # type: ignore[misc]
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **{**options, "disable": True})

        def update(self, n: float | None = 1) -> None:
            tell(int(n or 0))

    return Bar
