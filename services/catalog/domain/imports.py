"""What is taken from a hub or a bucket, and what is refused; decisions only."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Any, Self

from lehr.errors import FailedPrecondition, FieldViolation, InvalidArgument, NotFound
from services.catalog.domain.announcing import PACKED_SUFFIXES, TABLE_SUFFIXES, holds_rows

_COMMIT = re.compile(r"[0-9a-f]{40}\Z")
_REPO_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}(/[A-Za-z0-9][A-Za-z0-9._-]{0,95})?\Z")
_REVISION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,199}\Z")
_NAME_CHARACTERS = re.compile(r"[^A-Za-z0-9._-]")
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,62}\Z")
_NAME_LENGTH_MAX = 128
_WORD_CHARACTERS_MAX = 500

#: Files of a model beside its weights, of the top folder: config, tokenizer, templates, processors.
MODEL_FILES = frozenset(
    {
        "config.json",
        "generation_config.json",
        "model.safetensors.index.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "tokenizer.model",
        "spiece.model",
        "sentencepiece.bpe.model",
        "special_tokens_map.json",
        "added_tokens.json",
        "vocab.json",
        "vocab.txt",
        "merges.txt",
        "chat_template.json",
        "chat_template.jinja",
        "processor_config.json",
        "preprocessor_config.json",
        "image_processor_config.json",
        "video_preprocessor_config.json",
        "README.md",
    }
)
_PICKLED = re.compile(r"pytorch_model(-\d+-of-\d+)?\.bin\Z|pytorch_model\.bin\.index\.json\Z")
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")
REMOTE_FILE_COUNT_MAX = 100_000
"""Most files of a repository or prefix that are looked through."""


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


def model_files(files: Sequence[RemoteFile], *, allow_pickle: bool = False) -> list[RemoteFile]:
    """Return what is fetched of a model: weights that run nothing, and what describes them.

    With ``allow_pickle`` also pickled weights, where there are no others; they get the names of
    the safetensors that they are turned into.

    Raises:
        ImportRefused: no config, or no weights as safetensors.
    """
    top = {file.path: file for file in files if "/" not in file.path}
    if "config.json" not in top:
        raise ImportRefused("hub.repo_id", "holds no config.json; give a whole transformers model")
    weights = [path for path in top if path.endswith(".safetensors")]
    if not weights and allow_pickle:
        pickled = {path: safe_name(path) for path in top if is_pickled(path)}
        if pickled:
            described = [top[path] for path in sorted(top) if path in MODEL_FILES]
            found = [replace(top[path], name=name) for path, name in sorted(pickled.items())]
            return [*named(described), *found]
    if not weights:
        raise _no_weights(top)
    # Some repositories hold their weights a second time, under the names of another library.
    usual = [path for path in weights if re.match(r"model(-\d+-of-\d+)?\.safetensors\Z", path)]
    chosen = {path for path in top if path in MODEL_FILES}
    if "model.safetensors" in top:
        # What transformers loads where there are shards too.
        chosen = chosen - {"model.safetensors.index.json"} | {"model.safetensors"}
    else:
        chosen |= set(usual or weights)
    return named([top[path] for path in sorted(chosen)])


def is_pickled(path: str) -> bool:
    """Return whether a file is pickled weights of the usual name, or their index."""
    return _PICKLED.match(path) is not None


def safe_name(path: str) -> str:
    """Return the name of the safetensors that a file of pickled weights is turned into."""
    return path.replace("pytorch_model", "model").replace(".bin", ".safetensors")


def _no_weights(names: Iterable[str]) -> ImportRefused:
    pickles = sorted(name for name in names if name.endswith(PICKLES))
    if not pickles:
        return ImportRefused("hub.repo_id", "holds no weights as *.safetensors in its top folder")
    return ImportRefused(
        "hub.repo_id",
        f"holds weights as pickles only ({pickles[0]}), which can run code when they are loaded;"
        " choose a revision with *.safetensors, convert them and use `lehr models add`, or ask an"
        " administrator to allow this commit (CATALOG_ALLOW_PICKLE)",
        reason="PICKLE_WEIGHTS",
    )


def split_files(
    splits: Mapping[str, Sequence[str]], *, split: str, root: str, listed: Sequence[RemoteFile]
) -> list[RemoteFile]:
    """Return the files of a split, of addresses below ``root`` in ``listed``.

    Raises:
        ImportRefused: no such split, or files that are not of this repository or no rows.
    """
    if split not in splits:
        names = ", ".join(sorted(splits)) or "none"
        raise ImportRefused("hub.split", f"is {split!r}; this configuration has: {names}")
    by_path = {file.path: file for file in listed}
    found = []
    for address in splits[split]:
        path = address.removeprefix(root)
        if path == address or path not in by_path:
            raise ImportRefused(
                "hub.repo_id", "names data files outside its own commit, which are not fetched"
            )
        found.append(by_path[path])
    return named(check_tables(found))


def check_tables(files: Sequence[RemoteFile]) -> list[RemoteFile]:
    """Return files whose names say that they hold rows.

    Raises:
        ImportRefused: there is none, or one of another kind.
    """
    if not files:
        raise ImportRefused("source", "has no data files")
    for file in files:
        if not holds_rows(file.path.lower()):
            raise ImportRefused(
                "source",
                f"holds {file.path[:120]!r}; rows are read from {', '.join(TABLE_SUFFIXES)},"
                f" packed as {', '.join(PACKED_SUFFIXES)} or not;"
                " upload a folder with images as one zip",
            )
    return list(files)


def check_sizes(files: Sequence[RemoteFile], *, count_max: int, bytes_max: int) -> int:
    """Return the bytes of all files.

    Raises:
        ImportRefused: too many or too large.
    """
    total = sum(file.size_bytes for file in files)
    if len(files) > count_max:
        raise ImportRefused("source", f"has {len(files)} files; at most {count_max} are taken")
    if total > bytes_max:
        raise ImportRefused("source", f"has {total} bytes; at most {bytes_max} are taken")
    empty = [file.path for file in files if file.size_bytes <= 0]
    if empty:
        raise ImportRefused("source", f"holds an empty file, {empty[0][:120]!r}")
    return total


def named(files: Sequence[RemoteFile]) -> list[RemoteFile]:
    """Give each file a name without folders, its own where no two have the same."""
    last = [PurePosixPath(file.path).name for file in files]
    are_unique = len(set(last)) == len(last)
    found: dict[str, RemoteFile] = {}
    for file, short in zip(files, last, strict=True):
        text = short if are_unique else file.path.replace("/", "--")
        text = _NAME_CHARACTERS.sub("_", text).lstrip("._-")[-_NAME_LENGTH_MAX:].lstrip("._-")
        if not text or text in found:
            raise ImportRefused("source", f"holds {file.path[:120]!r}, which has no usable name")
        found[text] = RemoteFile(
            path=file.path, name=text, size_bytes=file.size_bytes, digest=file.digest
        )
    return list(found.values())
