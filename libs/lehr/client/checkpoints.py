"""Checkpoints: list, download, pin, delete."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lehr.api.checkpoint_store.v1 import checkpoint_store_pb2 as pb
from lehr.api.checkpoint_store.v1 import checkpoint_store_pb2_grpc
from lehr.client import transfer
from lehr.client.connection import Connection
from lehr.errors import InvalidArgument

#: Files that only a trainer needs, to go on where it was.
TRAINING_STATE = frozenset(
    {
        "optimizer.safetensors",
        "optimizer.json",
        "rng.safetensors",
        "rng.json",
        "trainer_state.json",
        "series.jsonl",
    }
)


class Checkpoints:
    """Checkpoints of the key's jobs."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._stub = checkpoint_store_pb2_grpc.CheckpointStoreServiceStub(connection.channel)

    async def list(self, job_id: str) -> Sequence[pb.Checkpoint]:
        """Return the visible checkpoints of a job by step."""
        request = pb.ListCheckpointsRequest(job_id=job_id)
        answer = await self._connection.call(self._stub.ListCheckpoints, request)
        return answer.checkpoints

    async def get(self, checkpoint_id: str) -> pb.Checkpoint:
        """Return one checkpoint."""
        request = pb.GetCheckpointRequest(checkpoint_id=checkpoint_id)
        return (await self._connection.call(self._stub.GetCheckpoint, request)).checkpoint

    async def find(self, which: str) -> pb.Checkpoint:
        """Return a checkpoint by id, ``<job id>:best`` or ``<job id>:final``."""
        answer = await self._connection.call(self._stub.DownloadCheckpoint, _which(which))
        return answer.checkpoint

    async def download(
        self,
        which: str,
        folder: Path,
        *,
        names: Sequence[str] = (),
        with_training_state: bool = False,
        progress: transfer.Progress | None = None,
    ) -> pb.Checkpoint:
        """Download a checkpoint: an id, ``<job id>:best`` or ``<job id>:final``.

        Without ``names``, everything that is needed to use it; the optimiser's state comes only
        ``with_training_state``.
        """
        request = _which(which)
        request.names.extend(names)
        answer = await self._connection.call(self._stub.DownloadCheckpoint, request)
        skipped = frozenset() if with_training_state or names else TRAINING_STATE
        links = [link for link in answer.files if link.name not in skipped]
        await transfer.download(links, folder, progress=progress)
        return answer.checkpoint

    async def delete(self, checkpoint_id: str, *, allow_best_or_final: bool = False) -> None:
        """Delete a checkpoint; twice is the same as once."""
        request = pb.DeleteCheckpointRequest(
            checkpoint_id=checkpoint_id, allow_best_or_final=allow_best_or_final
        )
        await self._connection.call(self._stub.DeleteCheckpoint, request)

    async def pin(self, checkpoint_id: str, *, is_pinned: bool = True) -> pb.Checkpoint:
        """Keep a checkpoint from being pruned, or no longer."""
        request = pb.PinCheckpointRequest(checkpoint_id=checkpoint_id, is_pinned=is_pinned)
        return (await self._connection.call(self._stub.PinCheckpoint, request)).checkpoint


def _which(which: str) -> pb.DownloadCheckpointRequest:
    name, colon, role = which.partition(":")
    if not colon:
        return pb.DownloadCheckpointRequest(checkpoint_id=which)
    if role == "best":
        return pb.DownloadCheckpointRequest(best_of_job_id=name)
    if role == "final":
        return pb.DownloadCheckpointRequest(final_of_job_id=name)
    raise InvalidArgument(f"{which!r} is no checkpoint; use its id, JOB:best or JOB:final")
