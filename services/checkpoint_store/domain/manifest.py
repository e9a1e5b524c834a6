"""The list of a checkpoint's files: what may be in it, its bytes, and whether storage agrees."""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence

from lehr.errors import FieldViolation, InvalidArgument
from services.checkpoint_store.domain.checkpoint import Checkpoint, File

#: Name of the object that is written last and deleted first.
MANIFEST = "manifest.json"

FILES_MAX = 1000
FILE_BYTES_MAX = 5 << 40
"""Largest object of S3: 5 TiB."""

#: Endings that load without executing anything.
ENDINGS = ("safetensors", "json", "jsonl", "txt", "md", "model", "jinja")

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_WEIGHTS = re.compile(r"(adapter_)?model(-\d+-of-\d+)?\.safetensors")
_OPTIMIZER = "optimizer.safetensors"


def check_files(files: Sequence[File]) -> None:
    """Refuse a list of files that no checkpoint may have.

    Raises:
        InvalidArgument: with every wrong file.
    """
    problems = [
        FieldViolation(field=f"files[{index}].{field}", description=description)
        for index, file in enumerate(files)
        for field, description in _problems(file)
    ]
    counts = Counter(file.name for file in files)
    problems += [
        FieldViolation(field="files", description=f"names {name} {count} times")
        for name, count in counts.items()
        if count > 1
    ]
    if not 1 <= len(files) <= FILES_MAX:
        problems.append(
            FieldViolation(field="files", description=f"must be 1 to {FILES_MAX}, not {len(files)}")
        )
    if problems:
        lines = "; ".join(f"{one.field} {one.description}" for one in problems[:20])
        raise InvalidArgument(f"these files cannot be a checkpoint: {lines}", fields=problems)


def holds_whole_state(files: Iterable[File], *, claimed: bool) -> bool:
    """Tell whether training can go on from the files as if it had never stopped.

    Weights without the state of their optimizer are good for use only, whatever the runner says.
    """
    names = {file.name for file in files}
    only_weights = any(_WEIGHTS.fullmatch(name) for name in names) and _OPTIMIZER not in names
    return claimed and not only_weights


def difference(files: Iterable[File], others: Iterable[File]) -> str | None:
    """Return the name of the first file in which two lists differ, or None where they agree."""
    differing = set(files) ^ set(others)
    return min((file.name for file in differing), default=None)


def body(checkpoint: Checkpoint) -> bytes:
    """Return the manifest; the same checkpoint gives the same bytes at every attempt."""
    content = {
        "checkpoint_id": checkpoint.checkpoint_id,
        "job_id": checkpoint.job_id,
        "epoch": checkpoint.epoch,
        "step": checkpoint.step,
        "is_resumable": checkpoint.is_resumable,
        "files": [
            {"name": file.name, "size_bytes": file.size_bytes, "sha256": file.sha256}
            for file in sorted(checkpoint.files, key=lambda file: file.name)
        ],
    }
    return json.dumps(content, separators=(",", ":"), allow_nan=False).encode() + b"\n"


def digest(content: bytes) -> str:
    """Return SHA-256 in hex."""
    return hashlib.sha256(content).hexdigest()


def mismatch(file: File, *, size_bytes: int, sha256: str | None = None) -> str | None:
    """Say in words how what is stored differs from the manifest; None where it agrees.

    ``sha256`` None compares the size alone.
    """
    if size_bytes != file.size_bytes:
        return f"it has {size_bytes} bytes instead of {file.size_bytes}"
    if sha256 is not None and sha256 != file.sha256:
        return f"its SHA-256 is {sha256} instead of {file.sha256}"
    return None


def hashed_within(files: Iterable[File], *, budget_bytes: int) -> frozenset[str]:
    """Choose the files that are hashed when a resume point is checked: the smallest first.

    Resume state is small and many files; weights beyond the budget are checked by size.
    """
    chosen: set[str] = set()
    for file in sorted(files, key=lambda file: (file.size_bytes, file.name)):
        budget_bytes -= file.size_bytes
        if budget_bytes < 0:
            break
        chosen.add(file.name)
    return frozenset(chosen)


def _problems(file: File) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    shown = repr(file.name[:80])
    if not _NAME.fullmatch(file.name):
        found.append(("name", f"{shown} must be letters, digits and . _ - without folders"))
    elif file.name.rpartition(".")[2] not in ENDINGS:
        found.append(("name", f"{shown} must end in one of {', '.join(ENDINGS)}"))
    elif file.name == MANIFEST:
        found.append(("name", f"{MANIFEST} is written by the store itself"))
    if not 0 <= file.size_bytes <= FILE_BYTES_MAX:
        found.append(("size_bytes", f"must be 0 to {FILE_BYTES_MAX}, not {file.size_bytes}"))
    if not _SHA256.fullmatch(file.sha256):
        found.append(("sha256", "must be 64 lower-case hex digits"))
    return found
