"""Zip archives: what is in them, and what no archive of rows has."""

import stat
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO

from services.catalog.formats.errors import Broken
from services.catalog.formats.expansion import Budget, Expanded, Plain, Stream
from services.catalog.formats.source import CHUNK_BYTES, Limits

ZIP_MAGICS = (b"PK\x03\x04", b"PK\x05\x06")
_READ_ERRORS = (zipfile.BadZipFile, zlib.error, EOFError, OSError, NotImplementedError, ValueError)


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A file in an archive."""

    name: str
    packed_bytes: int
    size_bytes: int


def members(what: tuple[Path, Limits]) -> tuple[Member, ...]:
    """Return the files of an archive by name.

    Raises:
        Broken: it is damaged, or holds what could harm whoever unpacks it.
    """
    path, limits = what
    try:
        with zipfile.ZipFile(path) as archive:
            infos = [info for info in archive.infolist() if not info.is_dir()]
    except _READ_ERRORS as error:
        raise _refused(f"is damaged ({error}); pack it again") from None
    if len(infos) > limits.members:
        raise _refused(f"holds {len(infos)} files; at most {limits.members} are taken")
    for info in infos:
        _check(info)
    names = [info.filename for info in infos]
    if len(set(names)) != len(names):
        raise _refused("holds two files of one name; pack it again")
    found = (
        Member(name=one.filename, packed_bytes=one.compress_size, size_bytes=one.file_size)
        for one in infos
        if not _is_litter(one.filename)
    )
    return tuple(sorted(found, key=lambda member: member.name))


def open_member(archive: zipfile.ZipFile, member: Member, budget: Budget) -> Stream:
    """Return the content of a file in an archive; its position counts packed bytes."""
    try:
        file = archive.open(member.name)
    except (*_READ_ERRORS, RuntimeError) as error:
        raise _refused(f"holds {member.name!r}, which is damaged ({error})") from None
    return Expanded(_Packed(file, member), _pieces(file, member.name), budget)


def _pieces(file: IO[bytes], name: str) -> Iterator[bytes]:
    try:
        while data := file.read(CHUNK_BYTES):
            yield data
    except _READ_ERRORS as error:
        raise _refused(f"holds {name!r}, which is damaged ({error})") from None


class _Packed(Plain):
    """Where a file in an archive is read, in packed bytes."""

    def __init__(self, file: IO[bytes], member: Member) -> None:
        super().__init__(file)
        self._file = file
        self._share = member.packed_bytes / max(1, member.size_bytes)

    @property
    def position(self) -> int:
        """Packed bytes that went through."""
        return int(self._file.tell() * self._share)


def _check(info: zipfile.ZipInfo) -> None:
    name, shown = info.filename, repr(info.filename[:80])
    parts = PurePosixPath(name).parts
    if info.flag_bits & 1:
        raise _refused(f"is encrypted ({shown}); pack it without a password")
    if stat.S_ISLNK(info.external_attr >> 16):
        raise _refused(f"holds a link ({shown}); pack the file itself")
    if ".." in parts or name.startswith("/") or "\\" in name or ":" in parts[0] or "\0" in name:
        raise _refused(f"holds a path that leads out of it ({shown}); pack a folder")
    if name.lower().endswith(".zip"):
        raise _refused(f"holds another archive ({shown}); unpack that one first")
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise _refused(f"packs {shown} in an unusual way; use deflate")


def _is_litter(name: str) -> bool:
    """Tell whether a file is what systems leave in folders, not what a person put there."""
    path = PurePosixPath(name)
    return path.parts[0] == "__MACOSX" or any(part.startswith(".") for part in path.parts)


def _refused(what: str) -> Broken:
    return Broken("ARCHIVE_REFUSED", what)
