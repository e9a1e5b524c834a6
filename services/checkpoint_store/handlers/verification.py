"""Compare what is stored with what a checkpoint's manifest says; no transaction is open here."""

from lehr.objects import ObjectStore
from lehr.objects.failures import ObjectNotFound
from services.checkpoint_store.domain.checkpoint import Checkpoint
from services.checkpoint_store.domain.errors import ChecksumMismatch, FileMissing
from services.checkpoint_store.domain.manifest import (
    MANIFEST,
    digest,
    hashed_within,
    mismatch,
)


async def verify_upload(checkpoint: Checkpoint, objects: ObjectStore) -> None:
    """Read every byte of every file.

    Raises:
        FileMissing, ChecksumMismatch: with the first wrong file.
        ObjectStoreUnavailable: it is not known.
    """
    names = frozenset(file.name for file in checkpoint.files)
    await _verify_files(checkpoint, objects, hashed=names)


async def verify_resume_point(
    checkpoint: Checkpoint, objects: ObjectStore, *, hash_bytes_max: int
) -> None:
    """Check manifest and sizes, and the hashes of as many files as fit in ``hash_bytes_max``.

    Raises: as for ``verify_upload``.
    """
    try:
        content = await objects.get_bytes(checkpoint.key(MANIFEST))
    except ObjectNotFound:
        raise FileMissing(checkpoint.checkpoint_id, MANIFEST) from None
    if digest(content) != checkpoint.manifest_sha256:
        raise ChecksumMismatch(checkpoint.checkpoint_id, MANIFEST, "its SHA-256 is another")
    hashed = hashed_within(checkpoint.files, budget_bytes=hash_bytes_max)
    await _verify_files(checkpoint, objects, hashed=hashed)


async def _verify_files(
    checkpoint: Checkpoint, objects: ObjectStore, *, hashed: frozenset[str]
) -> None:
    # All sizes first: the cheap look finds most of what can be wrong.
    for file in checkpoint.files:
        size_bytes = await objects.stat(checkpoint.key(file.name))
        if size_bytes is None:
            raise FileMissing(checkpoint.checkpoint_id, file.name)
        if wrong := mismatch(file, size_bytes=size_bytes):
            raise ChecksumMismatch(checkpoint.checkpoint_id, file.name, wrong)
    for file in checkpoint.files:
        if file.name not in hashed:
            continue
        try:
            found = await objects.sha256(checkpoint.key(file.name))
        except ObjectNotFound:
            raise FileMissing(checkpoint.checkpoint_id, file.name) from None
        if wrong := mismatch(file, size_bytes=found.size_bytes, sha256=found.sha256):
            raise ChecksumMismatch(checkpoint.checkpoint_id, file.name, wrong)
