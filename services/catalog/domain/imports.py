"""Imports: what a caller may name, how long a source is asked, and what was found there."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Self

from lehr.errors import (
    FailedPrecondition,
    FieldViolation,
    InvalidArgument,
    NotFound,
    Unavailable,
)

_COMMIT = re.compile(r"[0-9a-f]{40}\Z")
_REPO_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}(/[A-Za-z0-9][A-Za-z0-9._-]{0,95})?\Z")
_REVISION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,199}\Z")
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,62}\Z")
_WORD_CHARACTERS_MAX = 500

REMOTE_FILE_COUNT_MAX = 100_000
"""Most files of a repository or prefix that are looked through."""


TRIES = 6
"""How often in a row a source is asked in vain before an import is refused."""
WAIT_FACTOR = 4
WAIT_MAX = timedelta(minutes=10)
ASK_LATER = "see whether the source works, and import it again; what has arrived must come again"


class ImportRefused(InvalidArgument):
    """What the request names cannot be imported."""

    reason = "IMPORT_REFUSED"

    def __init__(self, field: str, description: str, *, reason: str | None = None) -> None:
        super().__init__(
            f"{field}: {description}",
            reason=reason,
            fields=[FieldViolation(field=field, description=description)],
        )


class CredentialNotFound(NotFound):
    """The project has no such secret."""

    reason = "CREDENTIAL_NOT_FOUND"

    def __init__(self, name: str) -> None:
        super().__init__(
            f"there is no credential {name}; store it with `lehr credentials put {name}`", name=name
        )


class SourceNotFound(NotFound):
    """The hub or bucket has no such thing, or does not show it."""

    reason = "SOURCE_NOT_FOUND"


class SourceGated(FailedPrecondition):
    """The hub wants to know who asks, or that he agreed to terms."""

    reason = "SOURCE_GATED"


class SourceAway(Unavailable):
    """A source does not give now what it listed; it is asked again by itself."""

    reason = "SOURCE_AWAY"


class SourceCorrupt(FailedPrecondition):
    """What arrived is not what was listed."""

    reason = "SOURCE_CORRUPT"


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteFile:
    """One file as the source lists it."""

    path: str
    """With folders, as the source writes it."""
    name: str = ""
    """In the catalog, without folders."""
    size_bytes: int
    digest: str = ""
    """How the source proves the content: ``sha256:<hex>``, ``git:<hex>`` or ``etag:<text>``."""
    pack: str = ""
    """Zip that it comes into under its path; empty where it comes by itself."""

    @property
    def arrives_as(self) -> str:
        """Name of the catalog's file that it is, or is in."""
        return self.pack or self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class HubRepo:
    """A repository of the hub, as a caller names it."""

    repo_id: str
    revision: str = ""
    config: str = ""
    split: str = ""
    credential: str = ""

    @property
    def what(self) -> str:
        """In words."""
        return f"{self.repo_id} of the hub"

    @property
    def origin(self) -> str:
        """For the record."""
        return self.repo_id

    def checked(self) -> dict[str, str]:
        """Return what the child is asked with.

        Raises:
            ImportRefused: a field cannot be what it should.
        """
        for field, text in (("hub.config", self.config), ("hub.split", self.split)):
            _check_word(field, text)
        return {
            "repo_id": check_repo_id(self.repo_id),
            "revision": check_revision(self.revision),
            "config": self.config,
            "split": self.split or "train",
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Prefix:
    """Objects below a prefix of a bucket, as a caller names them."""

    endpoint: str
    bucket: str
    prefix: str = ""
    region: str = ""
    credential: str = ""

    @property
    def what(self) -> str:
        """In words."""
        return f"s3://{self.bucket}/{self.prefix}"

    @property
    def origin(self) -> str:
        """For the record."""
        return f"{self.endpoint.rstrip('/')}/{self.bucket}/{self.prefix}"

    def checked(self) -> dict[str, str]:
        """Return what the child is asked with.

        Raises:
            ImportRefused: a field cannot be what it should.
        """
        if not _BUCKET.match(self.bucket):
            raise ImportRefused("s3.bucket", f"is {self.bucket[:80]!r}; give the name of a bucket")
        for field, text in (
            ("s3.endpoint", self.endpoint),
            ("s3.prefix", self.prefix),
            ("s3.region", self.region),
        ):
            _check_word(field, text)
        return {
            "endpoint": self.endpoint,
            "bucket": self.bucket,
            "prefix": self.prefix,
            "region": self.region,
        }


def _check_word(field: str, text: str) -> None:
    if len(text) > _WORD_CHARACTERS_MAX or not text.isprintable():
        raise ImportRefused(
            field, f"must be printable text of at most {_WORD_CHARACTERS_MAX} characters"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportPlan:
    """What an import has to fetch; it holds no secret."""

    kind: str
    """hub or s3."""
    what: str
    """In words, for messages."""
    source: Mapping[str, str]
    """Repository and commit, or server, bucket and region."""
    credential: str
    """Name of the stored secret; empty for none."""
    files: tuple[RemoteFile, ...]

    @classmethod
    def read(cls, plan: Mapping[str, Any]) -> Self:
        """Read a plan as it was stored."""
        files = tuple(RemoteFile(**file) for file in plan["files"])
        return cls(**{**plan, "files": files})


def wait_before(tries: int, first: timedelta) -> timedelta | None:
    """Return how long a source is left alone after ``tries`` in vain; None: it is asked no more."""
    return None if tries >= TRIES else min(first * WAIT_FACTOR ** (tries - 1), WAIT_MAX)


def check_repo_id(repo_id: str) -> str:
    """Return the id of a repository.

    Raises:
        ImportRefused: it is none.
    """
    if not _REPO_ID.match(repo_id) or ".." in repo_id or "--" in repo_id:
        raise ImportRefused("hub.repo_id", f"is {repo_id[:80]!r}; give owner/name")
    return repo_id


def check_revision(revision: str) -> str:
    """Return a branch, tag or commit; ``main`` where none is given.

    Raises:
        ImportRefused: it is none.
    """
    if revision and (not _REVISION.match(revision) or ".." in revision):
        raise ImportRefused(
            "hub.revision", f"is {revision[:80]!r}; give a branch, a tag or a commit"
        )
    return revision or "main"


def check_commit(commit: object) -> str:
    """Return what a hub fixed a reference to.

    Raises:
        SourceCorrupt: no commit of 40 hex digits.
    """
    if not isinstance(commit, str) or not _COMMIT.match(commit):
        raise SourceCorrupt("the hub names no commit of 40 hex digits; nothing can be pinned")
    return commit
