"""What the catalog holds: models and datasets, each at a revision that never changes."""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from services.catalog.domain.errors import UploadRefused

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}\Z")
_FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}\Z")
_SHA256 = re.compile(r"[0-9a-f]{64}\Z")
_ID = re.compile(r"[a-z]+_[0-9a-z]{26}\Z")
_REFERENCE = re.compile(r"([a-z0-9][a-z0-9._-]{0,62})(?:@([0-9a-f]{12,64}))?\Z")

#: Formats that hold data and run nothing when they are read.
SAFE_SUFFIXES = (".safetensors", ".json", ".jinja", ".txt", ".md", ".model")
NEEDED_FILES = ("config.json", "tokenizer.json")
FILE_COUNT_MAX = 500
OBJECT_BYTES_MAX = 5 * 2**30
"""Largest object of one signed upload (S3: 5 GiB)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    """One file as announced by whoever uploads it."""

    name: str
    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RowProblem:
    """One kind of problem in a dataset's rows."""

    reason: str
    description: str
    row_count: int
    lines: tuple[int, ...]
    """Line numbers of the first rows that have it, from 1."""
    is_error: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A base model at one revision."""

    model_id: str
    tenant: str
    project: str
    name: str
    revision: str
    license: str
    files: tuple[File, ...]
    is_committed: bool = False
    model_type: str = ""
    parameter_count: int = 0
    context_length: int = 0
    """Tokens; 0 where neither model nor tokenizer says."""
    create_time: datetime | None = None

    @property
    def size_bytes(self) -> int:
        """Bytes of all files."""
        return sum(file.size_bytes for file in self.files)

    def key(self, name: str) -> str:
        """Return the object that holds a file."""
        return f"models/{self.tenant}/{self.model_id}/{name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    """Rows at one revision, the SHA-256 of the uploaded bytes."""

    dataset_id: str
    tenant: str
    project: str
    name: str
    file: File
    is_committed: bool = False
    row_kind: str = ""
    row_count: int = 0
    distinct_count: int = 0
    problems: tuple[RowProblem, ...] = ()
    create_time: datetime | None = None

    @property
    def revision(self) -> str:
        """SHA-256 of the uploaded bytes, in hex."""
        return self.file.sha256

    @property
    def key(self) -> str:
        """The object that holds the rows."""
        return f"datasets/{self.tenant}/{self.dataset_id}/rows.jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """How a model or dataset is named: by id, by name, or by name at a revision."""

    entry_id: str = ""
    name: str = ""
    revision_prefix: str = ""

    @classmethod
    def parse(cls, text: str, *, noun: str, field: str) -> "Reference":
        """Read a reference; ``noun`` is the prefix of ids.

        Raises:
            UploadRefused: it is none.
        """
        if text.startswith(f"{noun}_") and _ID.match(text):
            return cls(entry_id=text)
        match = _REFERENCE.match(text)
        if match is None:
            raise UploadRefused(
                field,
                f"is {text[:80]!r}; give a name, name@revision (12 to 64 hex digits) or an id",
            )
        return cls(name=match[1], revision_prefix=match[2] or "")


def check_name(name: str) -> str:
    """Return a catalog name.

    Raises:
        UploadRefused: it is none.
    """
    if not _NAME.match(name):
        raise UploadRefused(
            "name",
            f"is {name[:80]!r}; use 1 to 63 lower-case letters, digits, dot, dash and underscore",
        )
    return name


def check_model_files(files: Sequence[File]) -> tuple[File, ...]:
    """Return announced files of a model by name.

    Raises:
        UploadRefused: a needed one is missing, or one could run code.
    """
    names = [file.name for file in files]
    if len(set(names)) != len(names) or not 0 < len(names) <= FILE_COUNT_MAX:
        raise UploadRefused("files", f"must be 1 to {FILE_COUNT_MAX} files of different names")
    for file in files:
        check_file(file)
        if not file.name.endswith(SAFE_SUFFIXES):
            kinds = ", ".join(SAFE_SUFFIXES)
            raise UploadRefused(
                file.name, f"only {kinds} are taken; save weights as safetensors, leave code out"
            )
    for needed in NEEDED_FILES:
        if needed not in names:
            raise UploadRefused(needed, "is missing; a model needs it")
    if not any(name.endswith(".safetensors") for name in names):
        raise UploadRefused("files", "hold no weights; add *.safetensors")
    return tuple(sorted(files, key=lambda file: file.name))


def check_file(file: File) -> File:
    """Return an announced file.

    Raises:
        UploadRefused: its name, size or digest is impossible.
    """
    if not _FILE_NAME.match(file.name):
        raise UploadRefused(
            "file.name", f"is {file.name[:80]!r}; use letters, digits, dot, dash, underscore"
        )
    if not 0 < file.size_bytes <= OBJECT_BYTES_MAX:
        raise UploadRefused(
            file.name, f"has {file.size_bytes} bytes; a file has 1 to {OBJECT_BYTES_MAX}"
        )
    if not _SHA256.match(file.sha256):
        raise UploadRefused(file.name, "needs its SHA-256 as 64 hex digits")
    return file


def model_revision(files: Sequence[File]) -> str:
    """Return the revision of a model: SHA-256 over the names and digests of its files."""
    listing = "".join(f"{file.sha256}  {file.name}\n" for file in files)
    return hashlib.sha256(listing.encode()).hexdigest()
