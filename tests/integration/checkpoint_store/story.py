"""A job, its runner and its owner, as the checkpoint store meets them."""

import asyncio
import contextlib
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import grpc.aio
import httpx

from lehr.api.checkpoint_store.v1 import checkpoint_store_pb2 as pb
from lehr.api.checkpoint_store.v1.checkpoint_store_pb2_grpc import CheckpointStoreServiceStub
from lehr.api.common.v1.common_pb2 import FileLink
from lehr.ids import new_id
from lehr.objects import ObjectStore
from lehr.postgres import Database
from lehr.rpc.client import raises_platform_errors
from tests.support.one_service import OneService

if TYPE_CHECKING:
    from lehr.api.checkpoint_store.v1.checkpoint_store_pb2_grpc import (
        CheckpointStoreServiceAsyncStub,
    )

FILES = {
    "adapter_model.safetensors": b"weights" * 100,
    "adapter_config.json": b"{}",
    "optimizer.safetensors": b"moments" * 200,
    "trainer_state.json": b'{"step": 1}',
}
WEIGHTS_ONLY = {name: FILES[name] for name in ("adapter_model.safetensors", "adapter_config.json")}


async def until(true: Callable[[], Awaitable[bool]], *, within: float = 20.0) -> None:
    """Wait until something is so."""
    async with asyncio.timeout(within):
        while not await true():
            await asyncio.sleep(0.05)


def links(files: dict[str, bytes]) -> list[FileLink]:
    """Announce files."""
    return [
        FileLink(name=name, size_bytes=len(content), sha256=hashlib.sha256(content).hexdigest())
        for name, content in files.items()
    ]


@dataclass(frozen=True, kw_only=True)
class Story:
    """One job with the two who call about it."""

    job_id: str
    service: OneService
    runner: "CheckpointStoreServiceAsyncStub"
    """The agent that holds the job's lease."""
    person: "CheckpointStoreServiceAsyncStub"
    """Somebody of the tenant, through the gateway."""
    scheduler: "CheckpointStoreServiceAsyncStub"
    channels: tuple[grpc.aio.Channel, ...]
    http: httpx.AsyncClient
    objects: ObjectStore
    admin: Database

    @classmethod
    @contextlib.asynccontextmanager
    async def begin(
        cls, service: OneService, objects: ObjectStore, admin: Database
    ) -> "AsyncIterator[Story]":
        """Open the channels."""
        async with (
            service.called_by("trainer_runner") as runner,
            service.called_by("gateway") as person,
            service.called_by("scheduler") as scheduler,
            httpx.AsyncClient(timeout=20) as http,
        ):
            yield cls(
                job_id=new_id("job"),
                service=service,
                runner=CheckpointStoreServiceStub(runner),
                person=CheckpointStoreServiceStub(person),
                scheduler=CheckpointStoreServiceStub(scheduler),
                channels=(runner, person, scheduler),
                http=http,
                objects=objects,
                admin=admin,
            )

    async def restart(self) -> None:
        """Kill the store, if it still lives, and wait until a new one serves."""
        self.service.control.kill()
        self.service.control.start()
        for channel in self.channels:
            await channel.channel_ready()

    async def open(self, epoch: int = 1) -> pb.OpenResponse:
        """Start a run."""
        with raises_platform_errors():
            return await self.runner.Open(pb.OpenRequest(job_id=self.job_id, epoch=epoch))

    async def find(self) -> pb.FindResumableResponse:
        """Ask what a resume would continue from."""
        request = pb.FindResumableRequest(job_id=self.job_id)
        with raises_platform_errors():
            return await self.scheduler.FindResumable(request, timeout=30)

    async def spoil(self, saved: pb.Checkpoint, name: str, how: str) -> None:
        """Let a stored file be gone, shorter, or another in one byte."""
        key = self.key(saved.checkpoint_id, name)
        content = await self.objects.get_bytes(key)
        if how == "gone":
            await self.objects.delete([key])
        elif how == "shorter":
            await self.objects.put_bytes(key, content[:-1])
        else:
            await self.objects.put_bytes(key, bytes([content[0] ^ 1]) + content[1:])

    async def announce(
        self,
        step: int,
        *,
        epoch: int = 1,
        loss: str = "",
        files: dict[str, bytes] = FILES,
        is_final: bool = False,
        is_resumable: bool = True,
        keep: int = 2,
    ) -> pb.BeginResponse:
        """Begin an upload."""
        request = pb.BeginRequest(
            job_id=self.job_id,
            epoch=epoch,
            step=step,
            is_ordinary=not is_final,
            is_final=is_final,
            is_resumable=is_resumable,
            eval_loss=loss,
            files=links(files),
            max_checkpoints=keep,
        )
        with raises_platform_errors():
            return await self.runner.Begin(request)

    async def put(self, begun: pb.BeginResponse, files: dict[str, bytes] = FILES) -> None:
        """Upload by plain HTTP to the signed addresses."""
        for file in begun.files:
            answer = await self.http.put(file.url, content=files[file.name])
            assert answer.status_code == 200, answer.text

    async def commit(self, checkpoint_id: str, *, epoch: int = 1) -> pb.Checkpoint:
        """Commit an upload."""
        request = pb.CommitRequest(checkpoint_id=checkpoint_id, epoch=epoch)
        with raises_platform_errors():
            return (await self.runner.Commit(request, timeout=30)).checkpoint

    async def save(
        self,
        step: int,
        *,
        epoch: int = 1,
        loss: str = "",
        files: dict[str, bytes] = FILES,
        is_final: bool = False,
        is_resumable: bool = True,
        keep: int = 2,
    ) -> pb.Checkpoint:
        """Announce, upload and commit."""
        begun = await self.announce(
            step,
            epoch=epoch,
            loss=loss,
            files=files,
            is_final=is_final,
            is_resumable=is_resumable,
            keep=keep,
        )
        await self.put(begun, files)
        return await self.commit(begun.checkpoint_id, epoch=epoch)

    async def abort(self, checkpoint_id: str, *, epoch: int = 1) -> None:
        """Give an upload up."""
        with raises_platform_errors():
            await self.runner.Abort(pb.AbortRequest(checkpoint_id=checkpoint_id, epoch=epoch))

    async def listed(self) -> pb.ListCheckpointsResponse:
        """Return what the tenant sees."""
        with raises_platform_errors():
            return await self.person.ListCheckpoints(pb.ListCheckpointsRequest(job_id=self.job_id))

    async def steps(self) -> list[int]:
        """Return the visible steps."""
        return [one.step for one in (await self.listed()).checkpoints]

    async def best(self) -> list[int]:
        """Return the steps that are flagged Best."""
        return [one.step for one in (await self.listed()).checkpoints if one.is_best]

    async def get(self, checkpoint_id: str) -> pb.Checkpoint:
        """Return one checkpoint."""
        with raises_platform_errors():
            request = pb.GetCheckpointRequest(checkpoint_id=checkpoint_id)
            return (await self.person.GetCheckpoint(request)).checkpoint

    async def delete(self, checkpoint_id: str, *, allow: bool = False) -> None:
        """Delete by hand."""
        with raises_platform_errors():
            await self.person.DeleteCheckpoint(
                pb.DeleteCheckpointRequest(checkpoint_id=checkpoint_id, allow_best_or_final=allow)
            )

    async def pin(self, checkpoint_id: str, *, is_pinned: bool = True) -> pb.Checkpoint:
        """Pin or unpin."""
        with raises_platform_errors():
            request = pb.PinCheckpointRequest(checkpoint_id=checkpoint_id, is_pinned=is_pinned)
            return (await self.person.PinCheckpoint(request)).checkpoint

    async def download(self, request: pb.DownloadCheckpointRequest) -> dict[str, bytes]:
        """Read the files by plain HTTP."""
        with raises_platform_errors():
            told = await self.person.DownloadCheckpoint(request)
        read = {}
        for file in told.files:
            answer = await self.http.get(file.url)
            assert answer.status_code == 200, answer.text
            read[file.name] = answer.content
        return read

    def key(self, checkpoint_id: str, name: str = "") -> str:
        """Return where a file lies."""
        return f"checkpoints/acme/{self.job_id}/{checkpoint_id}/{name}"

    async def stored(self, checkpoint_id: str) -> list[str]:
        """Return the names of what is stored of a checkpoint."""
        found = await self.objects.list(self.key(checkpoint_id))
        return [one.key.rpartition("/")[2] for one in found]

    async def until_removed(self, checkpoint_id: str) -> None:
        """Wait until the bytes are gone and the row says so."""

        async def is_deleted() -> bool:
            found = await self.get(checkpoint_id)
            return found.state == pb.CHECKPOINT_STATE_DELETED

        await until(is_deleted)
        assert await self.stored(checkpoint_id) == []

    async def events(self, past: str) -> list[dict[str, object]]:
        """Return the data of the events that the store has written about the job, oldest first."""
        async with self.admin.connection() as conn:
            rows = await conn.fetch(
                "SELECT body::jsonb AS body FROM checkpoint_store.outbox"
                " WHERE body::jsonb #>> '{data,job_id}' = $1 AND body::jsonb ->> 'type' = $2"
                " ORDER BY outbox_id",
                self.job_id,
                f"lehr.checkpoint.{past}.v1",
            )
        return [row["body"]["data"] for row in rows]
