"""What may be announced for an upload: names, sizes, kinds of files, column maps."""

import re
from collections.abc import Mapping, Sequence

from lehr.samples.columns import FIELDS
from lehr.samples.columns import check_columns as kind_of_map
from services.catalog.domain.entries import File
from services.catalog.domain.errors import UploadRefused

_FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}\Z")
_SHA256 = re.compile(r"[0-9a-f]{64}\Z")

#: Formats of models that hold data and run nothing when they are read.
SAFE_SUFFIXES = (".safetensors", ".json", ".jinja", ".txt", ".md", ".model")
NEEDED_FILES = ("config.json", "tokenizer.json")

_WEIGHTS = "model.safetensors"
DESCRIPTION_BYTES_MAX = 256 * 2**20
"""Largest file of a model beside its weights; tokenizers have up to 40 MB."""

_SAVE_AGAIN = "save the model with save_pretrained, which writes *.safetensors, and leave this out"
#: What is refused by the end of its name, and what to do.
_UNSAFE: tuple[tuple[tuple[str, ...], str], ...] = (
    (
        (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle", ".joblib"),
        f"is a pickle, which can run code when it is loaded; {_SAVE_AGAIN}",
    ),
    (
        (
            ".h5",
            ".hdf5",
            ".keras",
            ".msgpack",
            ".onnx",
            ".tflite",
            ".pb",
            ".npz",
            ".npy",
            ".mlmodel",
        ),
        f"holds weights of another framework, which are not loaded here; {_SAVE_AGAIN}",
    ),
    (
        (".py", ".pyc", ".ipynb", ".so", ".dll", ".dylib", ".sh", ".js", ".exe", ".jar", ".wasm"),
        "is code, and code that comes with a model is never run; leave it out, and use a model"
        " that transformers knows by itself",
    ),
    (
        (".gguf", ".ggml", ".ggjt"),
        "holds packed weights that nothing is trained from as they are;"
        " `lehr models add FILE.gguf` unpacks them first",
    ),
    (
        (".zip", ".tar", ".gz", ".tgz", ".xz", ".zst", ".7z"),
        "is packed; give the files of the model one by one",
    ),
)

TABLE_SUFFIXES = (
    ".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".parquet", ".arrow", ".feather",
)  # fmt: skip
"""Formats of rows."""
PACKED_SUFFIXES = (".gz", ".zst", ".zip")
"""What one of these may be packed in; a zip may also be a folder."""
IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".gif")
"""Formats of images that rows may name."""

FILE_COUNT_MAX = 500
FILE_BYTES_MAX = 50 * 2**30
"""Largest file."""
ENTRY_BYTES_MAX = 2**40
"""Largest sum of files: the answer that lists all parts of an upload stays below 16 MiB."""
COLUMN_CHARACTERS_MAX = 200
ORIGIN_CHARACTERS_MAX = 500


def check_model_files(files: Sequence[File]) -> tuple[File, ...]:
    """Return announced files of a model by name.

    Raises:
        UploadRefused: a needed one is missing, or one could run code.
    """
    checked = _check_files(files)
    names = [file.name for file in checked]
    for file in checked:
        _check_kind(file)
    for needed in NEEDED_FILES:
        if needed not in names:
            raise UploadRefused(needed, "is missing; a model needs it")
    _check_weights(names)
    return checked


def _check_kind(file: File) -> None:
    name = file.name.lower()
    for suffixes, why in _UNSAFE:
        if name.endswith(suffixes):
            raise UploadRefused(file.name, why)
    if name in ("adapter_config.json", "adapter_model.safetensors"):
        raise UploadRefused(
            file.name, "is of an adapter, which is no model; merge it into its base model first"
        )
    if not file.name.endswith(SAFE_SUFFIXES):
        kinds = ", ".join(SAFE_SUFFIXES)
        raise UploadRefused(
            file.name, f"only {kinds} are taken; save weights as safetensors, leave the rest out"
        )
    if not name.endswith(".safetensors") and file.size_bytes > DESCRIPTION_BYTES_MAX:
        raise UploadRefused(
            file.name,
            f"has {file.size_bytes} bytes; beside weights a file has at most"
            f" {DESCRIPTION_BYTES_MAX}",
        )


def _check_weights(names: Sequence[str]) -> None:
    """Make sure that the weights are those that transformers loads, and no others."""
    found = [name for name in names if name.endswith(".safetensors")]
    if not found:
        raise UploadRefused("files", "hold no weights; add *.safetensors")
    if _WEIGHTS in found and len(found) > 1:
        other = next(name for name in found if name != _WEIGHTS)
        raise UploadRefused(other, f"would not be loaded, because {_WEIGHTS} is; leave one out")
    if _WEIGHTS not in found and f"{_WEIGHTS}.index.json" not in names:
        raise UploadRefused(
            found[0],
            f"would not be loaded: call it {_WEIGHTS}, or add {_WEIGHTS}.index.json, which says"
            " what lies in which file",
        )


def check_dataset_files(files: Sequence[File]) -> tuple[File, ...]:
    """Return announced files of a dataset by name.

    Raises:
        UploadRefused: one is of a kind that holds no rows.
    """
    checked = _check_files(files)
    for file in checked:
        if not holds_rows(file.name.lower()):
            kinds = ", ".join(TABLE_SUFFIXES)
            raise UploadRefused(
                "file.name",
                f"is {file.name!r}; give {kinds}, one of these as .gz, .zst or .zip,"
                " or a .zip of a folder",
            )
    return checked


def check_columns(columns: Mapping[str, str]) -> dict[str, str]:
    """Return a column map by canonical field.

    Raises:
        UploadRefused: it maps what there is not, or one column twice.
        InvalidArgument: the mapped fields make no row.
    """
    for field, column in columns.items():
        if field not in FIELDS:
            known = ", ".join(sorted(FIELDS))
            raise UploadRefused("columns", f"map {field[:80]!r}; a column can be one of {known}")
        if not column or len(column) > COLUMN_CHARACTERS_MAX or not column.isprintable():
            raise UploadRefused(
                f"columns.{field}",
                f"is {column[:80]!r}; give the name of a column,"
                f" at most {COLUMN_CHARACTERS_MAX} printable characters",
            )
    if len(set(columns.values())) != len(columns):
        raise UploadRefused("columns", "name one column twice; map each to one field")
    if columns:
        kind_of_map(columns)
    return dict(sorted(columns.items()))


def check_origin(origin: str) -> str:
    """Return the words in which an uploader says where something comes from.

    Raises:
        UploadRefused: they are too long, or not text.
    """
    if len(origin) > ORIGIN_CHARACTERS_MAX or not origin.isprintable():
        raise UploadRefused(
            "origin", f"must be printable text of at most {ORIGIN_CHARACTERS_MAX} characters"
        )
    return origin


def check_file(file: File) -> File:
    """Return an announced file.

    Raises:
        UploadRefused: its name, size or digest is impossible.
    """
    if not _FILE_NAME.match(file.name):
        raise UploadRefused(
            "file.name", f"is {file.name[:80]!r}; use letters, digits, dot, dash, underscore"
        )
    if not 0 < file.size_bytes <= FILE_BYTES_MAX:
        raise UploadRefused(
            file.name, f"has {file.size_bytes} bytes; a file has 1 to {FILE_BYTES_MAX}"
        )
    if not _SHA256.match(file.sha256):
        raise UploadRefused(file.name, "needs its SHA-256 as 64 hex digits")
    return file


def _check_files(files: Sequence[File]) -> tuple[File, ...]:
    names = {file.name for file in files}
    if len(names) != len(files) or not 0 < len(names) <= FILE_COUNT_MAX:
        raise UploadRefused("files", f"must be 1 to {FILE_COUNT_MAX} files of different names")
    for file in files:
        check_file(file)
    size_bytes = sum(file.size_bytes for file in files)
    if size_bytes > ENTRY_BYTES_MAX:
        raise UploadRefused("files", f"have {size_bytes} bytes in all; at most {ENTRY_BYTES_MAX}")
    return tuple(sorted(files, key=lambda file: file.name))


def holds_rows(name: str) -> bool:
    """Return whether a file of this name, in lower case, may hold rows."""
    if name.endswith(".zip"):
        return True
    for suffix in PACKED_SUFFIXES:
        name = name.removesuffix(suffix)
    return name.endswith(TABLE_SUFFIXES)
