"""The files of a dataset: which hold rows, which hold images, and how each is read."""

import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any, Self

from services.catalog.formats import columnar
from services.catalog.formats.archive import Member, members, open_member
from services.catalog.formats.columnar import Groups
from services.catalog.formats.elements import Elements, split_elements
from services.catalog.formats.errors import Broken
from services.catalog.formats.expansion import (
    Budget,
    Plain,
    Rewound,
    Stream,
    expand,
    is_compressed,
    write_out,
)
from services.catalog.formats.lines import Lines, split_lines
from services.catalog.formats.naming import (
    HEAD_BYTES,
    Format,
    format_of,
    holds_data,
    is_image,
    is_misnamed,
    is_named_image,
    is_zip,
)
from services.catalog.formats.records import Records, split_records
from services.catalog.formats.source import Fault, Limits, SourceFile

Chunk = Lines | Elements | Records | Groups
Call = Callable[[Callable[..., Any], Any], Any]
"""Runs a function with an argument in another process, for what a service should not do itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFile:
    """A file that holds rows."""

    name: str
    """Name that its owner knows, that of its archive before it."""
    path: Path
    member: Member | None
    """Where it is in the archive at ``path``; None where it is the file there."""
    format: Format
    begin: int
    """Bytes of the dataset's files before it."""
    groups: tuple[Groups, ...] = ()
    """Parts of a columnar file."""

    @property
    def folder(self) -> str:
        """Folder in the archive that paths of images begin at."""
        return str(PurePosixPath(self.member.name).parent) if self.member else "."

    @property
    def is_text(self) -> bool:
        """Its rows are text that is cut here and read elsewhere."""
        return self.format not in (Format.PARQUET, Format.ARROW)


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageFiles:
    """Where images lie."""

    archives: tuple[tuple[Path, frozenset[str]], ...] = ()
    """Archives and the images in each."""
    loose: tuple[tuple[str, Path], ...] = ()
    """Images that are files of the dataset, by name."""


@dataclass(slots=True, kw_only=True)
class Survey:
    """What the files of a dataset are."""

    data: list[DataFile] = field(default_factory=list)
    images: ImageFiles = ImageFiles()
    faults: list[tuple[str, Fault]] = field(default_factory=list)
    """What was found in whole files, with the name of each."""


class Sources:
    """Reads the files of a dataset; to be closed."""

    def __init__(
        self,
        files: Sequence[SourceFile],
        *,
        scratch: Path,
        limits: Limits,
        call: Call,
        used: frozenset[str],
    ) -> None:
        self._files = files
        self._scratch = scratch
        self._limits = limits
        self._call = call
        self._used = used
        self._stack = ExitStack()
        self._archives: dict[Path, zipfile.ZipFile] = {}
        self._budgets: dict[Path, Budget] = {}
        self._survey = Survey()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *told: object) -> None:
        self._stack.close()

    def survey(self) -> Survey:
        """Look at every file; what cannot be read is told in the survey's faults."""
        begin = 0
        for file in self._files:
            size = file.path.stat().st_size
            self._budgets[file.path] = Budget(self._limits.expanded_max(size))
            try:
                self._look_at(file, begin)
            except Broken as broken:
                self._tell(file.name, Fault(what=broken.what, reason=broken.reason))
            begin += size
        return self._survey

    def chunks(self, file: DataFile) -> Iterator[tuple[Chunk, int]]:
        """Yield the pieces of a file in order, and the bytes of all files that went through.

        Raises:
            Broken: the rest of the file cannot be read.
        """
        if not file.is_text:
            yield from self._groups(file)
            return
        with ExitStack() as stack:
            budget = self._budgets[file.path]
            stream, _ = self._opened(file.path, file.member, budget, stack)
            for chunk in _split(file.format, stream):
                yield chunk, file.begin + stream.position

    def _groups(self, file: DataFile) -> Iterator[tuple[Chunk, int]]:
        rows = sum(group.count for group in file.groups) or 1
        size = file.path.stat().st_size if file.member is None else file.member.packed_bytes
        for group in file.groups:
            yield group, file.begin + size * group.last // rows

    def _look_at(self, file: SourceFile, begin: int) -> None:
        with file.path.open("rb") as raw:
            head = raw.read(HEAD_BYTES)
        if is_zip(head):
            if not file.name.lower().endswith(".zip"):
                self._tell(file.name, _misnamed("a zip archive", is_packed=False))
            self._look_into(file, begin)
        elif is_image(file.name, head):
            loose = (*self._survey.images.loose, (file.name, file.path))
            self._survey.images = replace(self._survey.images, loose=loose)
        else:
            self._add(file.name, file.path, None, begin)

    def _look_into(self, file: SourceFile, begin: int) -> None:
        found: tuple[Member, ...] = self._call(members, (file.path, self._limits))
        self._archives[file.path] = self._stack.enter_context(zipfile.ZipFile(file.path))
        # No archive gives more than it announces, so this bounds the images too.
        self._budgets[file.path].check(sum(member.size_bytes for member in found))
        images = frozenset(one.name for one in found if is_named_image(one.name))
        if images:
            archives = (*self._survey.images.archives, (file.path, images))
            self._survey.images = replace(self._survey.images, archives=archives)
        data = [one for one in found if holds_data(one.name)]
        for one in found:
            if one.name not in images and not holds_data(one.name):
                what = "is left out; it is neither rows nor an image that is read"
                self._tell(
                    f"{file.name}/{one.name}",
                    Fault(what=what, reason="FILE_LEFT_OUT", is_error=False),
                )
        if not data and not images:
            raise Broken("ARCHIVE_REFUSED", "holds no file of rows")
        for member in data:
            name = f"{file.name}/{member.name}"
            try:
                self._add(name, file.path, member, begin)
            except Broken as broken:
                self._tell(name, Fault(what=broken.what, reason=broken.reason))
            begin += member.packed_bytes

    def _add(self, name: str, path: Path, member: Member | None, begin: int) -> None:
        budget = Budget(self._limits.expanded_max(path.stat().st_size))
        with ExitStack() as stack:
            stream, is_packed = self._opened(path, member, budget, stack)
            head = stream.read(HEAD_BYTES)
        kind = format_of(name, head)
        data = DataFile(name=name, path=path, member=member, format=kind, begin=begin)
        if not data.is_text:
            whole = self._unpacked(data) if is_packed or member is not None else path
            asked = (whole, columnar.is_columnar(head), self._used)
            groups, faults = self._call(columnar.plan, asked)
            data = replace(data, groups=groups)
            for fault in faults:
                self._tell(name, fault)
        if is_misnamed(name, kind, is_packed=is_packed):
            self._tell(name, _misnamed(f"a {kind} file", is_packed=is_packed))
        self._survey.data.append(data)

    def _unpacked(self, data: DataFile) -> Path:
        """Return the path of a packed file's content; columnar files are read at any place."""
        path = self._scratch / f"table-{len(self._survey.data)}"
        with ExitStack() as stack:
            stream, _ = self._opened(data.path, data.member, self._budgets[data.path], stack)
            write_out(stream, path)
        return path

    def _opened(
        self, path: Path, member: Member | None, budget: Budget, stack: ExitStack
    ) -> tuple[Stream, bool]:
        """Return the rows' own bytes, and whether they were compressed by themselves."""
        if member is None:
            stream: Stream = Plain(stack.enter_context(path.open("rb")))
        else:
            stream = open_member(self._archives[path], member, budget)
        head = stream.read(HEAD_BYTES)
        whole = Rewound(head, stream)
        if is_compressed(head):
            return expand(whole, head, budget), True
        return whole, False

    def _tell(self, name: str, fault: Fault) -> None:
        self._survey.faults.append((name, fault))


def _misnamed(what: str, *, is_packed: bool) -> Fault:
    packed = "compressed" if is_packed else "not compressed"
    told = f"is {what}, {packed}, whatever its name says, and was read as that"
    return Fault(what=told, reason="EXTENSION_WRONG", is_error=False)


def _split(kind: Format, stream: Stream) -> Iterator[Chunk]:
    if kind is Format.LINES:
        return split_lines(stream)
    if kind is Format.ELEMENTS:
        return split_elements(stream)
    return split_records(stream, delimiter="\t" if kind is Format.TSV else ",")
