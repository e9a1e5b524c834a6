"""The child: reads one request, answers it, and ends.

Nothing of the client libraries is imported before the guard is in force; their settings are in the
environment that the parent made.
"""

import contextlib
import ctypes
import os
import resource
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, BinaryIO

from lehr.egress import Guard, enforce
from lehr.errors import PlatformError
from services.catalog.hub import wire

_PR_SET_PDEATHSIG = 1
_AHEAD = 2
"""Files that may lie here while the parent puts them away."""
_TELL_BYTES = 8 << 20
_SPARE_BYTES = 64 << 20
"""What a file may be longer than the longest of the listing: caches, cards."""


class Child:
    """Answers one request."""

    def __init__(self, request: dict[str, Any], guard: Guard, out: BinaryIO) -> None:
        self._request = request
        self._guard = guard
        self._out = out
        self._secret: dict[str, str] = request.get("secret") or {}
        self._untold = 0
        self._ahead = 0

    @property
    def hidden(self) -> tuple[str, ...]:
        """What no message may hold."""
        return tuple(self._secret.values())

    def say(self, **message: Any) -> None:
        """Tell the parent something."""
        self._out.write(wire.encode(message))
        self._out.flush()

    def answer(self) -> None:
        """Do what was asked for."""
        from services.catalog.hub.failures import told  # noqa: PLC0415 - see the module.

        operations: dict[str, Callable[[], None]] = {
            "resolve_model": self._resolve_model,
            "resolve_dataset": self._resolve_dataset,
            "resolve_bucket": self._resolve_bucket,
            "fetch_repository": self._fetch_repository,
            "fetch_bucket": self._fetch_bucket,
            "search": self._search,
        }
        with told(self._request["what"], credential=self._request["credential"]):
            operations[self._request["operation"]]()

    def _api(self) -> Any:
        from huggingface_hub import HfApi  # noqa: PLC0415 - see the module.

        # Without a token of the request there is none: nothing of the machine's own is looked for.
        return HfApi(token=self._secret.get("token") or False)

    def _look(self, repo_type: str) -> tuple[Any, dict[str, Any]]:
        from services.catalog.hub import repositories  # noqa: PLC0415 - see the module.

        source = self._request["source"]
        info = repositories.look(
            self._api(), source["repo_id"], repo_type=repo_type, revision=source["revision"]
        )
        found = {
            "commit": repositories.commit_of(info),
            "license": repositories.license_of(info),
        }
        return repositories.files_of(info), found

    def _resolve_model(self) -> None:
        from services.catalog.domain.choosing import model_files  # noqa: PLC0415 - see the module.

        files, found = self._look("model")
        version = f"{self._request['source']['repo_id']}@{found['commit']}"
        chosen = model_files(files, allow_pickle=version in self._request["allow_pickle"])
        self.say(answer={**found, "files": [asdict(one) for one in chosen]})

    def _resolve_dataset(self) -> None:
        from services.catalog.hub.splits import files_of_split  # noqa: PLC0415 - see the module.

        listed, found = self._look("dataset")
        source = self._request["source"]
        files = files_of_split(
            source["repo_id"],
            found["commit"],
            config=source["config"],
            split=source["split"],
            token=self._secret.get("token"),
            listed=listed,
        )
        self.say(answer={**found, "files": [asdict(one) for one in files]})

    def _resolve_bucket(self) -> None:
        from services.catalog.domain.choosing import dataset_files  # noqa: PLC0415
        from services.catalog.hub import buckets  # noqa: PLC0415 - see the module.

        source = self._request["source"]
        files = buckets.listed(buckets.client(source, self._secret, self._guard), source)
        self.say(answer={"files": [asdict(one) for one in dataset_files(files)]})

    def _fetch_repository(self) -> None:
        from services.catalog.hub import downloads  # noqa: PLC0415 - see the module.

        api = self._api()
        source = self._request["source"]
        repo = {name: source[name] for name in ("repo_id", "repo_type", "revision")}
        self._fetch(
            lambda file, folder: _safe(
                downloads.fetch(api, repo, file, folder, tell=self._tell), file.path
            )
        )

    def _fetch_bucket(self) -> None:
        from services.catalog.hub import buckets  # noqa: PLC0415 - see the module.

        source = self._request["source"]
        server = buckets.client(source, self._secret, self._guard)
        self._fetch(
            lambda file, folder: buckets.fetch(
                server, source["bucket"], file, folder, tell=self._tell
            )
        )

    def _fetch(self, get: Callable[[Any, Path], tuple[Path, str]]) -> None:
        from services.catalog.domain.choosing import arrivals  # noqa: PLC0415 - see the module.
        from services.catalog.hub.downloads import by_path  # noqa: PLC0415 - see the module.
        from services.catalog.hub.packing import Pack  # noqa: PLC0415 - see the module.

        files = by_path(self._request["files"])
        # Tensors that shared memory in a pickle are written one by one.
        longest = 2 * max(arrivals(files).values()) + _SPARE_BYTES
        # A server that sends without end fills no disk.
        resource.setrlimit(resource.RLIMIT_FSIZE, (longest, longest))
        folder = Path.cwd() / "files"
        folder.mkdir()
        with Pack(Path.cwd() / "pack.zip") as pack:
            for file in files:
                if file.pack:
                    pack.add(file.path, get(file, folder)[0])
                else:
                    self._hand_over(file.name, *get(file, folder))
        if pack.is_used:
            self._hand_over(files[-1].pack, pack.path, pack.sha256())
        while self._ahead:
            self._await_parent()
        self.say(answer={})

    def _hand_over(self, name: str, path: Path, sha256: str) -> None:
        size = path.stat().st_size
        self.say(file={"name": name, "path": str(path), "sha256": sha256, "size_bytes": size})
        self._ahead += 1
        if self._ahead == _AHEAD:
            self._await_parent()

    def _await_parent(self) -> None:
        if sys.stdin.buffer.readline() != wire.MORE:
            sys.exit(1)
        self._ahead -= 1

    def _tell(self, count: int) -> None:
        self._untold += count
        if abs(self._untold) >= _TELL_BYTES:
            self.say(progress=self._untold)
            self._untold = 0

    def _search(self) -> None:
        from services.catalog.hub import repositories  # noqa: PLC0415 - see the module.

        found = repositories.search(
            self._api(),
            text=self._request["text"],
            kind=self._request["kind"],
            limit=self._request["limit"],
        )
        self.say(answer={"entries": found})


def _safe(fetched: tuple[Path, str], path: str) -> tuple[Path, str]:
    """Return a fetched file, or what it was turned into where it is a pickle."""
    from services.catalog.domain.choosing import is_pickled  # noqa: PLC0415 - see the module.
    from services.catalog.hub.downloads import digests_of  # noqa: PLC0415 - see the module.
    from services.catalog.hub.pickles import to_safetensors  # noqa: PLC0415 - see the module.

    if not is_pickled(path):
        return fetched
    turned = to_safetensors(fetched[0])
    fetched[0].unlink()
    return turned, digests_of(turned)[0].removeprefix("sha256:")


def main() -> None:
    """Answer one request."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # A dump of this process would hold the secret.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # Libraries print; what the parent reads is ours alone.
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    request = wire.decode(sys.stdin.buffer.readline())
    guard = Guard.parse(request["allowed"])
    _prepare_for(request.get("files", ()))
    enforce(guard)
    child = Child(request, guard, out)
    try:
        _connect_through(guard)
        child.answer()
    except PlatformError as error:
        with contextlib.suppress(BrokenPipeError):
            out.write(wire.encode(wire.refusal(error, hidden=child.hidden)))
            out.flush()


def _prepare_for(files: Sequence[Mapping[str, Any]]) -> None:
    from services.catalog.domain.choosing import is_pickled  # noqa: PLC0415 - see the module.
    from services.catalog.hub.pickles import load_reader  # noqa: PLC0415 - see the module.

    if any(is_pickled(file["path"]) for file in files):
        load_reader()


def _connect_through(guard: Guard) -> None:
    import httpx2  # noqa: PLC0415 - see the module.
    from huggingface_hub import set_client_factory  # noqa: PLC0415 - see the module.
    from huggingface_hub.utils._http import hf_request_event_hook  # noqa: PLC0415

    from lehr.egress import guarded  # noqa: PLC0415 - see the module.

    def factory() -> httpx2.Client:
        return httpx2.Client(
            transport=guarded(httpx2.HTTPTransport(), guard),
            event_hooks={"request": [hf_request_event_hook]},
            follow_redirects=True,
            timeout=30.0,
            trust_env=False,
        )

    set_client_factory(factory)


if __name__ == "__main__":
    main()
