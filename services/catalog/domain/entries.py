"""What the catalog holds: models and datasets, each at a revision that never changes."""

import hashlib
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, ClassVar, Literal

from services.catalog.domain.errors import (
    DatasetNotFound,
    EntryNotFound,
    ModelNotFound,
    UploadRefused,
)

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}\Z")
_ID = re.compile(r"[a-z]+_[0-9a-z]{26}\Z")
_CHECKPOINT = re.compile(r"ckpt_[0-9a-z]{26}\Z")
_REFERENCE = re.compile(r"([a-z0-9][a-z0-9._-]{0,62})(?:@([0-9a-f]{12,64}))?\Z")


class EntryState(StrEnum):
    """Where an entry is in its life."""

    UPLOADING = "UPLOADING"
    IMPORTING = "IMPORTING"
    VALIDATING = "VALIDATING"
    READY = "READY"
    REFUSED = "REFUSED"


S = EntryState

Noun = Literal["model", "dataset"]
"""What a kind of entry is called, in messages, tables and on a hub."""

MOVES: Mapping[EntryState, frozenset[EntryState]] = {
    # What was announced may be announced again, with other sizes or another licence.
    S.UPLOADING: frozenset({S.UPLOADING, S.VALIDATING}),
    S.IMPORTING: frozenset({S.VALIDATING, S.REFUSED}),
    # Back to UPLOADING when bytes that arrived are not those that were announced.
    S.VALIDATING: frozenset({S.UPLOADING, S.READY, S.REFUSED}),
    S.READY: frozenset(),
    S.REFUSED: frozenset({S.UPLOADING, S.IMPORTING}),
}

WORKED_ON = frozenset({S.IMPORTING, S.VALIDATING})
"""States in which the catalog has work to do."""

TOLD = frozenset({S.READY, S.REFUSED})
"""States that a commit waits for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    """One file as announced by whoever uploads it, or written by the catalog."""

    name: str
    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where an entry came from."""

    kind: str = "upload"
    """upload, hub, s3 or checkpoint."""
    origin: str = ""
    """Hub id, S3 address without secrets, checkpoint id, or the uploader's words."""
    commit: str = ""
    """Commit of the hub, 40 hex digits; empty for other sources."""

    @classmethod
    def of_upload(cls, origin: str) -> "Source":
        """Return the source of what somebody uploads; what it came from is his word."""
        return cls(kind="checkpoint" if _CHECKPOINT.match(origin) else "upload", origin=origin)

    @property
    def is_uploaded(self) -> bool:
        """Its files came as parts."""
        return self.kind in ("upload", "checkpoint")


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far long work is."""

    done_bytes: int = 0
    total_bytes: int = 0
    """0 while unknown."""
    row_count: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RowProblem:
    """One kind of problem in a dataset's rows."""

    reason: str
    description: str
    row_count: int
    lines: tuple[int, ...]
    """Line numbers of the first rows that have it, from 1."""
    is_error: bool
    file: str = ""
    """File that the lines are counted in; empty where the dataset has one file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry(ABC):
    """What models and datasets share."""

    noun: ClassVar[Noun]
    id_prefix: ClassVar[str]
    """What its ids begin with."""
    not_found: ClassVar[type[EntryNotFound]]

    tenant: str
    project: str
    name: str
    revision: str
    """SHA-256 in hex of what the entry is made of."""
    files: tuple[File, ...]
    license: str = ""
    source: Source = Source()
    acknowledged_by: str = ""
    """Who answers for a licence that is unknown or non-commercial."""
    state: EntryState = S.UPLOADING
    refusal: str = ""
    """Why it was refused, is awaited once more, or was put off; empty otherwise."""
    put_off_count: int = 0
    """How often in a row its source was away."""
    put_off_until: datetime | None = None
    """When it is tried again, or was last."""
    progress: Progress = Progress()
    create_time: datetime | None = None
    change_time: datetime | None = None
    """When the state last changed, or the upload was last asked about."""

    @property
    @abstractmethod
    def entry_id(self) -> str:
        """The id."""

    @property
    def prefix(self) -> str:
        """What the keys of all its objects begin with."""
        return f"{self.noun}s/{self.tenant}/{self.entry_id}/"

    @property
    def uploads_prefix(self) -> str:
        """What the keys of its uploaded parts begin with."""
        return f"uploads/{self.tenant}/{self.entry_id}/"

    @property
    def size_bytes(self) -> int:
        """Bytes of all files."""
        return sum(file.size_bytes for file in self.files)

    @property
    def is_ready(self) -> bool:
        """It can be used."""
        return self.state is S.READY

    @property
    def prefixes(self) -> tuple[str, ...]:
        """What the keys of everything begin with that is kept for it."""
        return self.uploads_prefix, self.prefix

    @property
    def waits_for(self) -> str:
        """What it was put off for, and when it is tried again; empty where it was not."""
        if self.state not in WORKED_ON or self.put_off_until is None:
            return ""
        tries = f" (in vain {self.put_off_count} times)" if self.put_off_count else ""
        return f"{self.refusal}{tries}; next try {self.put_off_until:%Y-%m-%d %H:%M:%S} UTC"

    def key(self, name: str) -> str:
        """Return the object that holds a file; no address for uploads is ever given for it."""
        return f"{self.prefix}{name}"

    @abstractmethod
    def revision_of(self, files: Sequence[File]) -> str:
        """Return the revision that it has with these files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Model(Entry):
    """A base model at one revision."""

    noun = "model"
    id_prefix = "model"
    not_found = ModelNotFound

    model_id: str
    model_type: str = ""
    parameter_count: int = 0
    context_length: int = 0
    """Tokens; 0 where neither model nor tokenizer says."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the message ModelFacts."""

    @property
    def entry_id(self) -> str:
        """The id."""
        return self.model_id

    def revision_of(self, files: Sequence[File]) -> str:
        """Return the revision that it has with these files."""
        return model_revision(files)


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset(Entry):
    """Rows at one revision."""

    noun = "dataset"
    id_prefix = "ds"
    not_found = DatasetNotFound

    dataset_id: str
    columns: Mapping[str, str] = field(default_factory=dict)
    """Canonical field to column; empty where layouts are recognised."""
    row_kind: str = ""
    row_count: int = 0
    distinct_count: int = 0
    image_row_count: int = 0
    layouts: Mapping[str, int] = field(default_factory=dict)
    """Rows of each layout."""
    problems: tuple[RowProblem, ...] = ()
    row_files: tuple[str, ...] = ()
    """Names of the files that hold rows, by the number that canonical rows give."""
    rows_file: File | None = None
    """The canonical rows, once they are written."""
    images_file: File | None = None
    """Images of the rows, where there are any."""
    keys_file: File | None = None
    """Digests of the rows and of their prompts."""

    @property
    def entry_id(self) -> str:
        """The id."""
        return self.dataset_id

    @property
    def tokens_prefix(self) -> str:
        """What the keys of its cached tokens begin with."""
        return f"tokens/{self.tenant}/{self.dataset_id}/"

    @property
    def prefixes(self) -> tuple[str, ...]:
        """What the keys of everything begin with that is kept for it."""
        return self.uploads_prefix, self.prefix, self.tokens_prefix

    def revision_of(self, files: Sequence[File]) -> str:
        """Return the revision that it has with these files."""
        return dataset_revision(files, self.columns)

    def key(self, name: str) -> str:
        """Return the object that holds a file as it was uploaded."""
        return f"{self.prefix}files/{name}"

    def written_key(self, file: File) -> str:
        """Return the object that holds a file which the catalog wrote.

        Its content is part of the key: a worker that lost its claim and does not know it yet cannot
        overwrite what another one has committed.
        """
        return f"{self.prefix}{file.sha256[:16]}/{file.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """How a model or dataset is named: by id, by name, or by name at a revision."""

    entry_id: str = ""
    name: str = ""
    revision_prefix: str = ""

    @classmethod
    def parse(cls, text: str, kind: type[Entry], *, field: str) -> "Reference":
        """Read a reference to a model or dataset.

        Raises:
            UploadRefused: it is none.
        """
        if text.startswith(f"{kind.id_prefix}_") and _ID.match(text):
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


def model_revision(files: Sequence[File]) -> str:
    """Return the revision of a model: SHA-256 over the names and digests of its files."""
    return hashlib.sha256(_listing(files)).hexdigest()


def dataset_revision(files: Sequence[File], columns: Mapping[str, str]) -> str:
    """Return the revision of a dataset.

    A single file without a column map: the SHA-256 of its bytes. Else over the names and digests of
    the files and, where there is one, the map as JSON with sorted keys.
    """
    if len(files) == 1 and not columns:
        return files[0].sha256
    mapped = json.dumps(columns, sort_keys=True, separators=(",", ":")) if columns else ""
    return hashlib.sha256(_listing(files) + mapped.encode()).hexdigest()


def _listing(files: Sequence[File]) -> bytes:
    return "".join(f"{file.sha256}  {file.name}\n" for file in files).encode()
