"""The examination of a dataset: every row of every file, in order, in bounded memory."""

import contextlib
import hashlib
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from lehr.samples.columns import check_columns
from services.catalog.domain.entries import File, RowProblem
from services.catalog.domain.report import ANY_FILE, Report
from services.catalog.examination.copies import KeyFile
from services.catalog.examination.images import ImagesNeedPool, ImageStore, pack
from services.catalog.examination.look import Looked, Looker, Piece, look
from services.catalog.examination.pool import Pool, ReaderDied
from services.catalog.formats.columnar import is_columnar
from services.catalog.formats.errors import Broken
from services.catalog.formats.expansion import is_compressed
from services.catalog.formats.naming import is_zip
from services.catalog.formats.source import CHUNK_BYTES, Limits, SourceFile
from services.catalog.formats.sources import Sources, Survey

ROWS, IMAGES, KEYS = "rows.jsonl.zst", "images.zip", "keys.npy"
INLINE_BYTES_MAX = 2**20
"""Text up to this size is looked at without processes of its own."""

Progress = Callable[[int, int], None]
"""Gets bytes that went through and rows; what it raises ends the examination."""

_ROWS_MAX = 2**32 - 1
_SCRATCH = ".scratch"
_NO_COLUMNS: Mapping[str, str] = MappingProxyType({})
_LIMITS = Limits()


@dataclass(frozen=True, slots=True, kw_only=True)
class Examination:
    """What a dataset is, and what was written for it."""

    row_kind: str
    """Kind of most rows; of all, where it is accepted."""
    row_count: int
    """Rows that can be read."""
    distinct_count: int
    """Rows that are not copies of an earlier one."""
    image_row_count: int
    layouts: Mapping[str, int]
    """Rows of each layout."""
    problems: tuple[RowProblem, ...]
    files: tuple[str, ...]
    """Names of the files that hold rows, by the number that canonical rows give."""
    rows_file: File
    keys_file: File
    images_file: File | None
    """None where no row has an image."""

    @property
    def is_accepted(self) -> bool:
        """Whether nothing was found that forbids training on the rows."""
        return not any(problem.is_error for problem in self.problems)


def examine(
    files: Sequence[SourceFile],
    *,
    columns: Mapping[str, str] = _NO_COLUMNS,
    out_dir: Path,
    processes: int,
    progress: Progress,
    limits: Limits = _LIMITS,
) -> Examination:
    """Look at every row of ``files`` and write rows, keys and images into the empty ``out_dir``.

    The same files give the same bytes. Whatever the files hold, the answer is an examination;
    ``progress`` is called at least every few seconds.

    Raises:
        InvalidArgument: ``columns`` is no map of columns (COLUMNS_INVALID).
    """
    if columns:
        check_columns(columns)
    out_dir.joinpath(_SCRATCH).mkdir()
    job = _Job(files=files, columns=columns, out_dir=out_dir, progress=progress, limits=limits)
    try:
        if _is_small(files):
            with contextlib.suppress(ImagesNeedPool):
                return _Run(job, processes=0).examine()
        try:
            return _Run(job, processes=processes).examine()
        except ReaderDied:
            # It may have been the machine that had no memory left; once more with a single one.
            return _Run(job, processes=1, is_last=True).examine()
    finally:
        shutil.rmtree(out_dir / _SCRATCH, ignore_errors=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    files: Sequence[SourceFile]
    columns: Mapping[str, str]
    out_dir: Path
    progress: Progress
    limits: Limits

    @property
    def scratch(self) -> Path:
        return self.out_dir / _SCRATCH


class _Run:
    """One go at a dataset."""

    def __init__(self, job: _Job, *, processes: int, is_last: bool = False) -> None:
        self._job = job
        self._is_inline = processes == 0
        self._is_last = is_last
        self._report = Report()
        self._done_bytes = 0
        self._late: list[tuple[int, Broken]] = []
        self._rows_of: Counter[int] = Counter()
        self._used_images: set[str] = set()
        self._image_folder = job.scratch / "images"
        self._pool = Pool(max(1, processes), heartbeat=self._tell)

    def examine(self) -> Examination:
        job = self._job
        heads = (column.split(".")[0] for column in job.columns.values())
        used = frozenset({*job.columns.values(), *heads})
        with (
            self._pool,
            Sources(
                job.files, scratch=job.scratch, limits=job.limits, call=self._ask, used=used
            ) as sources,
            KeyFile(job.out_dir / KEYS) as keys,
        ):
            survey = sources.survey()
            names = self._tell_faults(survey)
            self._look_at_all(sources, survey, keys)
            self._tell_late(survey)
            keys.finish()
            copies, copied_rows, distinct_count = keys.copies()
        report = self._report
        return Examination(
            row_kind=report.row_kind,
            row_count=report.row_count,
            distinct_count=distinct_count,
            image_row_count=report.image_row_count,
            layouts=report.layouts,
            problems=report.finish(files=names, copies=copies, copied_rows=copied_rows),
            files=tuple(data.name for data in survey.data),
            rows_file=self._described(ROWS),
            keys_file=self._described(KEYS),
            images_file=self._images(),
        )

    def _look_at_all(self, sources: Sources, survey: Survey, keys: KeyFile) -> None:
        self._image_folder.mkdir(exist_ok=True)
        images = None if self._is_inline else ImageStore(survey.images, self._image_folder)
        looker = Looker(columns=self._job.columns, images=images)
        size = 0
        with (self._job.out_dir / ROWS).open("wb") as rows:
            for piece, looked in self._looked(looker, self._pieces(sources, survey)):
                rows.write(looked.frame)
                keys.append(looked.keys, np.frombuffer(looked.lines, np.int64), file=piece.file)
                self._report.merge(looked.report)
                self._rows_of[piece.file] += len(looked.lines)
                self._used_images |= looked.used_images
                self._done_bytes = piece.done_bytes
                self._tell()
                size += looked.size_bytes
                if self._is_too_much(size, piece):
                    return

    def _looked(self, looker: Looker, pieces: Iterator[Piece]) -> Iterator[tuple[Piece, Looked]]:
        if self._is_inline:
            for piece in pieces:
                for looked in looker.look(piece):
                    yield piece, looked
            return
        self._pool.context = looker
        try:
            yield from self._pool.each(look, pieces)
        except ReaderDied as death:
            if not self._is_last:
                raise
            first, last = death.item.chunk.first, death.item.chunk.last
            what = f"rows {first} to {last} made their reader crash; write them anew"
            self._report.add("READER_DIED", what, file=death.item.file, line=first, is_error=True)

    def _pieces(self, sources: Sources, survey: Survey) -> Iterator[Piece]:
        for number, data in enumerate(survey.data):
            try:
                for chunk, done_bytes in sources.chunks(data):
                    yield Piece(
                        file=number,
                        name=data.name,
                        path=data.path,
                        folder=data.folder,
                        chunk=chunk,
                        done_bytes=done_bytes,
                    )
            except Broken as broken:
                # Rows before it are still being looked at; they are told first.
                self._late.append((number, broken))

    def _is_too_much(self, size: int, piece: Piece) -> bool:
        """Refuse what columnar files, which are small on the disk, may become."""
        most = self._job.limits.expanded_bytes
        if size <= most and self._report.row_count <= _ROWS_MAX:
            return False
        what = f"expands to more than {most} bytes or {_ROWS_MAX} rows; split the dataset"
        self._report.add("EXPANDS_TOO_MUCH", what, file=piece.file, line=None, is_error=True)
        return True

    def _tell_faults(self, survey: Survey) -> list[str]:
        """Report what was found in whole files; returns names of all files by number."""
        names = [data.name for data in survey.data]
        for name, fault in survey.faults:
            if name not in names:
                names.append(name)
            self._report.add(
                fault.reason, fault.what, file=names.index(name), line=None, is_error=fault.is_error
            )
        return names

    def _tell_late(self, survey: Survey) -> None:
        for number, broken in self._late:
            self._report.add(
                broken.reason, broken.what, file=number, line=broken.line, is_error=True
            )
        for number in range(len(survey.data)):
            is_empty = not self._rows_of[number] and not self._report.has_problems(number)
            if is_empty and len(survey.data) > 1:
                self._report.add("FILE_WITHOUT_ROWS", "has no rows", file=number, line=None)
        self._tell_unused(survey)

    def _tell_unused(self, survey: Survey) -> None:
        there = {name for _, names in survey.images.archives for name in names}
        unused = sorted(there.union(dict(survey.images.loose)) - self._used_images)
        if unused:
            more = f" and {len(unused) - 5} more" if len(unused) > 5 else ""
            what = f"no row has the images {', '.join(unused[:5])}{more}; they are left out"
            self._report.add("IMAGE_UNUSED", what, file=ANY_FILE, line=None, count=len(unused))

    def _ask(self, function: Callable[[Any], Any], argument: Any) -> Any:
        try:
            return self._pool.call(function, argument)
        except (ReaderDied, MemoryError):
            raise Broken("READER_DIED", "made its reader crash; write the file anew") from None

    def _tell(self) -> None:
        self._job.progress(self._done_bytes, self._report.row_count)

    def _images(self) -> File | None:
        if not any(self._image_folder.iterdir()):
            return None
        pack(self._image_folder, self._job.out_dir / IMAGES, heartbeat=self._tell)
        return self._described(IMAGES)

    def _described(self, name: str) -> File:
        digest = hashlib.sha256()
        with (self._job.out_dir / name).open("rb") as file:
            while data := file.read(CHUNK_BYTES):
                digest.update(data)
                self._tell()
            return File(name=name, size_bytes=file.tell(), sha256=digest.hexdigest())


def _is_small(files: Sequence[SourceFile]) -> bool:
    """Tell whether all is text and little of it, so that the calling process may read it."""
    if sum(file.path.stat().st_size for file in files) >= INLINE_BYTES_MAX:
        return False
    heads = (file.path.read_bytes() for file in files)
    return not any(is_zip(head) or is_compressed(head) or is_columnar(head) for head in heads)
