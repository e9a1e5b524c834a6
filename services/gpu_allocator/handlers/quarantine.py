"""End the quarantine of a GPU on an operator's word, and keep whose word it was."""

from lehr.logs import get_logger
from lehr.postgres import Database
from services.gpu_allocator.domain.errors import GpuNotFound, IdempotencyKeyReused
from services.gpu_allocator.domain.gpu import Gpu, ReleaseGpu
from services.gpu_allocator.storage import nodes

_log = get_logger(__name__)


async def release_gpu(cmd: ReleaseGpu, *, db: Database) -> Gpu:
    """Return the GPU after its release; a repeated request changes nothing and is answered again.

    Raises:
        GpuNotFound: no such GPU.
        GpuNotQuarantined: it is in another state.
        IdempotencyKeyReused: the key came with another request before.
    """
    async with db.transaction() as conn:
        node_id = await nodes.node_of_gpu(conn, cmd.gpu_id)
        if node_id is None:
            raise GpuNotFound(cmd.gpu_id)
        _, now = await nodes.lock(conn, node_id)
        known = {gpu.gpu_id: gpu for gpu in await nodes.gpus_of(conn, node_id)}
        before = known[cmd.gpu_id]
        made = await nodes.release_of_request(conn, cmd.request_id)
        if made is not None:
            if made != cmd:
                raise IdempotencyKeyReused(cmd.request_id)
            return before
        after = before.released()
        await nodes.save_gpus(conn, [after], at=now)
        await nodes.add_release(conn, cmd, at=now)
    _log.warning("gpu_released", gpu_id=cmd.gpu_id, node_id=node_id, principal=cmd.principal)
    return after
