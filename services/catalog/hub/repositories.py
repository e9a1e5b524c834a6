"""Repositories of a hub: what a reference means now, what is in it, and which there are."""

from collections.abc import Iterable
from typing import Any

from huggingface_hub import HfApi

from services.catalog.domain.imports import (
    REMOTE_FILE_COUNT_MAX,
    ImportRefused,
    RemoteFile,
    check_commit,
)

CALL_SECONDS = 30.0
"""How long the hub may take for one answer."""

_MODEL_FACTS = ["sha", "gated", "downloads", "tags", "cardData", "config", "safetensors"]
_DATASET_FACTS = ["sha", "gated", "downloads", "tags", "cardData"]


def look(api: HfApi, repo_id: str, *, repo_type: str, revision: str) -> Any:
    """Return what the hub says of a repository at a reference, its files with sizes included."""
    info = api.repo_info(
        repo_id, revision=revision, repo_type=repo_type, timeout=CALL_SECONDS, files_metadata=True
    )
    if info.gated:
        # Everybody is shown what is in a gated repository; who may have it, this call says.
        api.auth_check(repo_id, repo_type=repo_type)
    return info


def commit_of(info: Any) -> str:
    """Return the commit that a reference stands for."""
    return check_commit(info.sha)


def files_of(info: Any) -> list[RemoteFile]:
    """Return the files of a repository.

    Raises:
        ImportRefused: too many, or one without size or digest.
    """
    siblings = info.siblings or []
    if len(siblings) > REMOTE_FILE_COUNT_MAX:
        raise ImportRefused("hub.repo_id", f"holds {len(siblings)} files, more than are looked at")
    return [_file(one) for one in siblings]


def _file(sibling: Any) -> RemoteFile:
    digest = f"git:{sibling.blob_id}"
    size = sibling.size
    if sibling.lfs is not None:
        digest, size = f"sha256:{sibling.lfs.sha256}", sibling.lfs.size
    if size is None or digest.endswith(":None"):
        raise ImportRefused("hub.repo_id", f"lists {sibling.rfilename!r} without size or digest")
    return RemoteFile(path=sibling.rfilename, size_bytes=size, digest=digest)


def license_of(info: Any) -> str:
    """Return the licence that a card names; empty where it names none."""
    card = info.card_data
    named = card.get("license") if card is not None else None
    if named == "other":
        named = card.get("license_name") or named
    if named is None:
        marks = (
            tag.removeprefix("license:") for tag in info.tags or [] if tag.startswith("license:")
        )
        named = next(marks, "")
    return " and ".join(map(str, named)) if isinstance(named, list) else str(named)


def search(api: HfApi, *, text: str, kind: str, limit: int) -> list[dict[str, Any]]:
    """Return repositories whose name holds a text, most downloaded first."""
    found: Iterable[Any]
    if kind == "dataset":
        found = api.list_datasets(search=text, limit=limit, sort="downloads", expand=_DATASET_FACTS)
    else:
        found = api.list_models(search=text, limit=limit, sort="downloads", expand=_MODEL_FACTS)
    return [_entry(info) for info in found]


def _entry(info: Any) -> dict[str, Any]:
    tags = info.tags or []
    weights = getattr(info, "safetensors", None)
    config = getattr(info, "config", None) or {}
    return {
        "repo_id": info.id,
        "commit": info.sha or "",
        "license": license_of(info),
        "is_gated": bool(info.gated),
        "parameter_count": weights.total if weights is not None else 0,
        "has_safetensors": weights is not None or "safetensors" in tags,
        "has_code": "custom_code" in tags,
        "model_type": str(config.get("model_type") or ""),
        "download_count": info.downloads or 0,
    }
