"""Rows, images and tokens of a dataset on this disk."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lehr.errors import FailedPrecondition, InvalidArgument, PlatformError
from lehr.logs import get_logger
from lehr.samples.tokens import SampleTokenizer
from lehr.training.spec import JobSpec
from services.trainer_runner.agent.leases import Grant
from services.trainer_runner.agent.peers import FileLink, Peers
from services.trainer_runner.agent.transfer import Transfer

ROWS, IMAGES, TABLE = "rows.jsonl.zst", "images.zip", ".safetensors"


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetFiles:
    """What a trainer reads of a dataset."""

    rows: Path
    images: Path | None
    tokens: Path | None
    """None where the catalog has no table that this node's own code would make."""


class Datasets:
    """Downloads datasets into a run's folder."""

    def __init__(
        self, peers: Peers, transfer: Transfer, folder: Path, *, tokens: str | None
    ) -> None:
        self._peers = peers
        self._transfer = transfer
        self._folder = folder
        self._tokens = tokens

    async def get(self, grant: Grant, dataset_id: str, revision: str, prefix: str) -> DatasetFiles:
        """Download one dataset; names on this disk begin with ``prefix``.

        Raises:
            FailedPrecondition: it is at another revision.
            InvalidArgument: it has no canonical rows.
            TransferFailed, FileMissing: the object store does not give it.
        """
        have, files = await self._peers.dataset_files(grant, dataset_id)
        check_revision("dataset", dataset_id, have, revision)
        rows = await self._download(files, ROWS, prefix)
        if rows is None:
            raise InvalidArgument(f"dataset {dataset_id} has no {ROWS}; upload it again")
        images = await self._download(files, IMAGES, prefix)
        tokens = await self._table(files, prefix)
        get_logger().info("dataset_ready", dataset_id=dataset_id, has_tokens=tokens is not None)
        return DatasetFiles(rows=rows, images=images, tokens=tokens)

    async def _table(self, files: Sequence[FileLink], prefix: str) -> Path | None:
        if self._tokens is None:
            return None
        try:
            return await self._download(files, self._tokens, prefix)
        except PlatformError as error:
            # It saves time and no more: the trainer makes the same table from the rows.
            get_logger().warning("tokens_not_downloaded", error=str(error))
            return None

    async def _download(self, files: Sequence[FileLink], name: str, prefix: str) -> Path | None:
        link = next((one for one in files if one.name == name), None)
        if link is None:
            return None
        suffix = TABLE if name == self._tokens else f".{name}"
        return await self._transfer.download(link, self._folder, name=f"{prefix}{suffix}")


def tokens_name(model_dir: Path, spec: JobSpec) -> str | None:
    """Return the name of the token table that this node's own code would make for a job.

    None where there can be none: its template prints dates, or it has no tokenizer that we read.
    """
    try:
        tokenizer = SampleTokenizer.load_bundled(model_dir, spec.data.chat_template)
    except InvalidArgument:
        # The trainer says why, in words for a person.
        return None
    return None if tokenizer.prints_dates else f"{tokenizer.digest}{TABLE}"


def check_revision(kind: str, name: str, have: str, want: str) -> None:
    """Refuse what is not the revision that a job was launched with.

    Raises:
        FailedPrecondition: it is another one.
    """
    if have != want:
        raise FailedPrecondition(
            f"{kind} {name} is at revision {have[:12]}, the job was launched with {want[:12]}",
            reason="REVISION_DIFFERS",
        )
