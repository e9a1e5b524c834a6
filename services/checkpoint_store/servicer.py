"""gRPC in: proto to command, handler, proto."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any

import grpc.aio
from google.protobuf.timestamp_pb2 import Timestamp

from lehr.api.checkpoint_store.v1 import checkpoint_store_pb2 as pb
from lehr.api.checkpoint_store.v1.checkpoint_store_pb2_grpc import CheckpointStoreServiceServicer
from lehr.api.common.v1 import common_pb2
from lehr.errors import FieldViolation, InvalidArgument
from lehr.ids import parse_id
from lehr.objects import ObjectStore
from lehr.postgres import Database
from lehr.rpc.auth import caller, tenant_of_caller
from services.checkpoint_store.domain.checkpoint import Checkpoint, CheckpointState, File
from services.checkpoint_store.domain.commands import (
    BeginUpload,
    DeleteCheckpoint,
    EndUpload,
    OpenJob,
    Owner,
    PinCheckpoint,
)
from services.checkpoint_store.handlers import opening, reading, removal, uploads

SERVICE = "lehr.api.checkpoint_store.v1.CheckpointStoreService"
_RUNNER = frozenset({"trainer_runner"})
POLICY: Mapping[str, frozenset[str]] = {
    "Open": _RUNNER,
    "Begin": _RUNNER,
    "Commit": _RUNNER,
    "Abort": _RUNNER,
    "FindResumable": frozenset({"scheduler"}),
}

NAMES_MAX = 1000
"""Files of one checkpoint that one question may name."""

_STATES = {
    CheckpointState.UPLOADING: pb.CHECKPOINT_STATE_UPLOADING,
    CheckpointState.COMMITTED: pb.CHECKPOINT_STATE_COMMITTED,
    CheckpointState.DELETING: pb.CHECKPOINT_STATE_DELETING,
    CheckpointState.DELETED: pb.CHECKPOINT_STATE_DELETED,
}

Context = grpc.aio.ServicerContext[Any, Any]


class Servicer(CheckpointStoreServiceServicer):
    """The checkpoint store's methods."""

    def __init__(
        self,
        *,
        db: Database,
        objects: ObjectStore,
        upload_url_lifetime: timedelta,
        download_url_lifetime: timedelta,
        resume_hash_bytes_max: int,
    ) -> None:
        self._db = db
        self._objects = objects
        self._committer = uploads.Committer(db=db, objects=objects)
        self._upload_url_lifetime = upload_url_lifetime
        self._download_url_lifetime = download_url_lifetime
        self._resume_hash_bytes_max = resume_hash_bytes_max

    async def Open(self, request: pb.OpenRequest, context: Context) -> pb.OpenResponse:
        opened = await opening.open_job(
            OpenJob(
                owner=_owner(),
                job_id=parse_id(request.job_id, "job"),
                epoch=_epoch(request.epoch),
            ),
            db=self._db,
            objects=self._objects,
            hash_bytes_max=self._resume_hash_bytes_max,
            url_lifetime=self._download_url_lifetime,
        )
        point = opened.resume_from
        return pb.OpenResponse(
            resume_from=_resume_point(opened),
            files=self._read_links(point, point.files) if point else (),
            skipped=opened.skipped,
        )

    async def Begin(self, request: pb.BeginRequest, context: Context) -> pb.BeginResponse:
        begun = await uploads.begin(
            BeginUpload(
                owner=_owner(),
                job_id=parse_id(request.job_id, "job"),
                epoch=_epoch(request.epoch),
                step=request.step,
                is_final=request.is_final,
                is_resumable=request.is_resumable,
                eval_loss=request.eval_loss,
                files=tuple(
                    File(name=file.name, size_bytes=file.size_bytes, sha256=file.sha256)
                    for file in request.files
                ),
                max_checkpoints=request.max_checkpoints,
            ),
            db=self._db,
        )
        if begun.was_committed:
            return pb.BeginResponse(checkpoint_id=begun.checkpoint_id, is_committed=True)
        links = [
            _link(file, self._objects.presign_put(begun.key(file.name), self._upload_url_lifetime))
            for file in begun.files
        ]
        return pb.BeginResponse(checkpoint_id=begun.checkpoint_id, files=links)

    async def Commit(self, request: pb.CommitRequest, context: Context) -> pb.CommitResponse:
        committed = await self._committer.commit(_end_upload(request))
        shown = await reading.checkpoint_of(_owner(), committed.checkpoint_id, db=self._db)
        return pb.CommitResponse(checkpoint=_shown(shown))

    async def Abort(self, request: pb.AbortRequest, context: Context) -> pb.AbortResponse:
        await uploads.abort(
            _end_upload(request), db=self._db, url_lifetime=self._upload_url_lifetime
        )
        return pb.AbortResponse()

    async def FindResumable(
        self, request: pb.FindResumableRequest, context: Context
    ) -> pb.FindResumableResponse:
        found = await opening.find_resumable(
            _owner(),
            parse_id(request.job_id, "job"),
            db=self._db,
            objects=self._objects,
            hash_bytes_max=self._resume_hash_bytes_max,
        )
        return pb.FindResumableResponse(resume_from=_resume_point(found), skipped=found.skipped)

    async def ListCheckpoints(
        self, request: pb.ListCheckpointsRequest, context: Context
    ) -> pb.ListCheckpointsResponse:
        found = await reading.visible_checkpoints(
            _owner(), parse_id(request.job_id, "job"), db=self._db
        )
        return pb.ListCheckpointsResponse(
            checkpoints=[_shown(one) for one in found],
            size_bytes=sum(one.checkpoint.size_bytes for one in found),
        )

    async def GetCheckpoint(
        self, request: pb.GetCheckpointRequest, context: Context
    ) -> pb.GetCheckpointResponse:
        checkpoint_id = parse_id(request.checkpoint_id, "ckpt")
        shown = await reading.checkpoint_of(_owner(), checkpoint_id, db=self._db)
        return pb.GetCheckpointResponse(checkpoint=_shown(shown))

    async def DownloadCheckpoint(
        self, request: pb.DownloadCheckpointRequest, context: Context
    ) -> pb.DownloadCheckpointResponse:
        shown, files = await reading.download(
            _owner(),
            which=_which(request),
            names=_names(request),
            db=self._db,
            url_lifetime=self._download_url_lifetime,
        )
        return pb.DownloadCheckpointResponse(
            checkpoint=_shown(shown), files=self._read_links(shown.checkpoint, files)
        )

    async def DeleteCheckpoint(
        self, request: pb.DeleteCheckpointRequest, context: Context
    ) -> pb.DeleteCheckpointResponse:
        cmd = DeleteCheckpoint(
            owner=_owner(),
            checkpoint_id=parse_id(request.checkpoint_id, "ckpt"),
            allow_best_or_final=request.allow_best_or_final,
        )
        await removal.delete_checkpoint(cmd, db=self._db)
        return pb.DeleteCheckpointResponse()

    async def PinCheckpoint(
        self, request: pb.PinCheckpointRequest, context: Context
    ) -> pb.PinCheckpointResponse:
        cmd = PinCheckpoint(
            owner=_owner(),
            checkpoint_id=parse_id(request.checkpoint_id, "ckpt"),
            is_pinned=request.is_pinned,
        )
        pinned, best_id = await removal.pin_checkpoint(cmd, db=self._db)
        is_best = pinned.checkpoint_id == best_id
        return pb.PinCheckpointResponse(checkpoint=_to_proto(pinned, is_best=is_best))

    def _read_links(
        self, checkpoint: Checkpoint, files: Iterable[File]
    ) -> list[common_pb2.FileLink]:
        lifetime = self._download_url_lifetime
        return [
            _link(
                file,
                self._objects.presign_get(checkpoint.key(file.name), lifetime, filename=file.name),
            )
            for file in files
        ]


def _owner() -> Owner:
    return Owner(tenant=tenant_of_caller(), project=caller().project)


def _epoch(epoch: int) -> int:
    if epoch < 1:
        rule = "must be the positive fencing number of the lease"
        raise InvalidArgument(
            f"epoch {epoch} {rule}", fields=[FieldViolation(field="epoch", description=rule)]
        )
    return epoch


def _end_upload(request: pb.CommitRequest | pb.AbortRequest) -> EndUpload:
    return EndUpload(
        owner=_owner(),
        checkpoint_id=parse_id(request.checkpoint_id, "ckpt"),
        epoch=_epoch(request.epoch),
    )


def _which(request: pb.DownloadCheckpointRequest) -> tuple[str, str]:
    match request.WhichOneof("which"):
        case "checkpoint_id":
            return "checkpoint", parse_id(request.checkpoint_id, "ckpt")
        case "best_of_job_id":
            return "best", parse_id(request.best_of_job_id, "job")
        case "final_of_job_id":
            return "final", parse_id(request.final_of_job_id, "job")
        case _:
            rule = "give one of checkpoint_id, best_of_job_id and final_of_job_id"
            raise InvalidArgument(rule, fields=[FieldViolation(field="which", description=rule)])


def _names(request: pb.DownloadCheckpointRequest) -> Sequence[str]:
    if len(request.names) > NAMES_MAX:
        rule = f"must hold at most {NAMES_MAX}; leave it empty for all files"
        raise InvalidArgument(
            f"names {rule}", fields=[FieldViolation(field="names", description=rule)]
        )
    return request.names


def _resume_point(opened: opening.Opening) -> pb.Checkpoint | None:
    point = opened.resume_from
    if point is None:
        return None
    return _to_proto(point, is_best=point.checkpoint_id == opened.best_id)


def _shown(shown: reading.Shown) -> pb.Checkpoint:
    return _to_proto(shown.checkpoint, is_best=shown.is_best)


def _to_proto(checkpoint: Checkpoint, *, is_best: bool) -> pb.Checkpoint:
    commit_time = None
    if checkpoint.commit_time is not None:
        commit_time = Timestamp()
        commit_time.FromDatetime(checkpoint.commit_time)
    return pb.Checkpoint(
        checkpoint_id=checkpoint.checkpoint_id,
        job_id=checkpoint.job_id,
        step=checkpoint.step,
        state=_STATES[checkpoint.state],
        is_best=is_best,
        is_final=checkpoint.is_final,
        is_pinned=checkpoint.is_pinned,
        is_resumable=checkpoint.is_resumable,
        eval_loss=checkpoint.eval_loss_text,
        size_bytes=checkpoint.size_bytes,
        files=[_link(file, "") for file in checkpoint.files],
        commit_time=commit_time,
        epoch=checkpoint.epoch,
        manifest_sha256=checkpoint.manifest_sha256 or "",
    )


def _link(file: File, url: str) -> common_pb2.FileLink:
    return common_pb2.FileLink(
        name=file.name, size_bytes=file.size_bytes, sha256=file.sha256, url=url
    )
