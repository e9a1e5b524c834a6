"""Configurations and splits of a dataset, resolved by the library ``datasets`` without its data."""

from collections.abc import Sequence
from pathlib import Path

from services.catalog.domain.choosing import split_files
from services.catalog.domain.imports import ImportRefused, RemoteFile
from services.catalog.hub.failures import is_about_access


def files_of_split(
    repo_id: str,
    commit: str,
    *,
    config: str,
    split: str,
    token: str | None,
    listed: Sequence[RemoteFile],
) -> list[RemoteFile]:
    """Return the files that hold a split at a commit.

    Raises:
        ImportRefused: the repository brings code, or has no such configuration or split.
    """
    _refuse_scripts(repo_id, listed)
    try:
        import datasets  # noqa: PLC0415 - takes more than a second, and models need none of it.
    except ImportError:
        raise ImportRefused(
            "source", "datasets of a hub need the package `datasets`, which is not installed here"
        ) from None
    ask = {"revision": commit, "token": token}
    try:
        configs = datasets.get_dataset_config_names(repo_id, **ask)
        if config and config not in configs:
            raise ImportRefused(
                "hub.config", f"is {config!r}; this dataset has: {', '.join(sorted(configs))}"
            )
        builder = datasets.load_dataset_builder(repo_id, config or None, **ask)
    except (ValueError, FileNotFoundError) as error:
        if is_about_access(error):
            raise
        raise ImportRefused("hub.config", _first_line(error)) from None
    except ImportError:
        raise ImportRefused(
            "hub.repo_id", "names data files that are not its own, or of a kind that is not read"
        ) from None
    splits = {str(name): list(files) for name, files in (builder.config.data_files or {}).items()}
    root = f"hf://datasets/{repo_id}@{commit}/"
    return split_files(splits, split=split, root=root, listed=listed)


def _refuse_scripts(repo_id: str, listed: Sequence[RemoteFile]) -> None:
    script = f"{Path(repo_id).name}.py"
    if any(file.path == script for file in listed):
        raise ImportRefused(
            "hub.repo_id",
            f"loads its rows by code ({script}), which is not run; choose a revision with plain"
            " data files, such as refs/convert/parquet",
            reason="CODE_REFUSED",
        )


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return " ".join(lines[:2])[:500] or type(error).__name__
