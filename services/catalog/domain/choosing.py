"""Which files of a hub or a bucket are taken, which are refused, and under which names."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import PurePosixPath

from services.catalog.domain.announcing import (
    FILE_BYTES_MAX,
    FILE_COUNT_MAX,
    IMAGE_SUFFIXES,
    PACKED_SUFFIXES,
    TABLE_SUFFIXES,
    holds_rows,
)
from services.catalog.domain.imports import ImportRefused, RemoteFile

_NAME_CHARACTERS = re.compile(r"[^A-Za-z0-9._-]")
_NAME_LENGTH_MAX = 128

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

PACK = "folder.zip"
"""Name of the zip that a folder with images comes as."""
PACKED_COUNT_MAX = 20_000
"""Most files that are fetched one by one into it."""
_METADATA = re.compile(r"metadata\.(jsonl|csv|parquet)\Z")


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
    return dataset_files(found)


def dataset_files(files: Sequence[RemoteFile]) -> list[RemoteFile]:
    """Return files of rows with their names in the catalog.

    Where there are images beside them, rows and images come in one zip under their paths, as a
    person would upload the folder.

    Raises:
        ImportRefused: no rows, a file of another kind, or more images than are fetched one by one.
    """
    images = [file for file in files if is_image(file)]
    tables = check_tables([file for file in files if not is_image(file)])
    if not images:
        return named(tables)
    # A hub lists what describes another split's images too.
    tables = [file for file in tables if not _describes_others(file, images)]
    loose = [file for file in tables if not file.path.lower().endswith(".zip")]
    if not loose:
        raise ImportRefused("source", "holds images and no rows that name them (metadata.jsonl)")
    if len(images) + len(loose) > PACKED_COUNT_MAX:
        raise ImportRefused(
            "source",
            f"has {len(images)} images as single files; at most {PACKED_COUNT_MAX} are fetched one"
            " by one: put them into zip archives or parquet files",
        )
    whole = named([file for file in tables if file not in loose])
    if any(file.name == PACK for file in whole):
        raise ImportRefused("source", f"holds {PACK} beside single images; rename it")
    return [*whole, *(replace(file, name=file.path, pack=PACK) for file in (*loose, *images))]


def is_image(file: RemoteFile) -> bool:
    """Return whether a file is an image by its name."""
    return file.path.lower().endswith(IMAGE_SUFFIXES)


def _describes_others(file: RemoteFile, images: Sequence[RemoteFile]) -> bool:
    path = PurePosixPath(file.path)
    is_metadata = _METADATA.match(path.name) is not None
    return is_metadata and not any(
        PurePosixPath(image.path).is_relative_to(path.parent) for image in images
    )


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
                f" packed as {', '.join(PACKED_SUFFIXES)} or not,"
                f" images from {', '.join(IMAGE_SUFFIXES)}",
            )
    return list(files)


def check_sizes(files: Sequence[RemoteFile], *, bytes_max: int) -> None:
    """Look whether so many and so large files are taken.

    Raises:
        ImportRefused: they are not.
    """
    sizes = arrivals(files)
    total = sum(sizes.values())
    if len(sizes) > FILE_COUNT_MAX:
        raise ImportRefused("source", f"has {len(sizes)} files; at most {FILE_COUNT_MAX} are taken")
    if total > bytes_max:
        raise ImportRefused("source", f"has {total} bytes; at most {bytes_max} are taken")
    if sizes[PACK] > FILE_BYTES_MAX:
        raise ImportRefused(
            "source",
            f"has {sizes[PACK]} bytes in single images; at most {FILE_BYTES_MAX} are taken",
        )
    empty = [file.path for file in files if file.size_bytes <= 0]
    if empty:
        raise ImportRefused("source", f"holds an empty file, {empty[0][:120]!r}")


def arrivals(files: Iterable[RemoteFile]) -> Counter[str]:
    """Return the bytes of the catalog's files, by name; what is packed makes one of them."""
    sizes = Counter[str]()
    for file in files:
        sizes[file.arrives_as] += file.size_bytes
    return sizes


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
        found[text] = replace(file, name=text)
    return list(found.values())
