"""A small hub: enough of its HTTP interface for the unmodified client libraries, and its tricks.

Repositories have branches, commits, gates and large files that lie on a second server (the CDN).
A test may make single files wrong, slow, cut short, or redirect them.
"""

import contextlib
import hashlib
import json
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

CHUNK_BYTES = 64 * 1024


def blob_id(content: bytes) -> str:
    """Return the name that git gives a content."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


@dataclass
class Repo:
    """A repository with all its commits."""

    kind: str
    """model or dataset."""
    repo_id: str
    card: dict[str, Any] = field(default_factory=dict)
    tags: list[str] = field(default_factory=list)
    config: dict[str, Any] = field(default_factory=dict)
    is_gated: bool = False
    is_private: bool = False
    downloads: int = 1
    branches: dict[str, str] = field(default_factory=dict)
    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)

    def commit(self, files: Mapping[str, bytes], *, branch: str = "main") -> str:
        """Move a branch to a new commit with exactly these files."""
        listing = "".join(f"{blob_id(body)} {path}\n" for path, body in sorted(files.items()))
        number = len(self.commits)
        text = f"{self.repo_id} {number}\n{listing}".encode()
        commit = hashlib.sha1(text, usedforsecurity=False).hexdigest()
        self.commits[commit] = dict(files)
        self.branches[branch] = commit
        return commit

    def at(self, revision: str) -> str | None:
        """Return the commit of a branch or commit."""
        commit = self.branches.get(revision, revision)
        return commit if commit in self.commits else None


@dataclass
class Seen:
    """One request that came."""

    server: str
    """hub or cdn."""
    method: str
    path: str
    authorization: str
    range: str


class HubStub:
    """The hub; ``endpoint`` and ``cdn`` are its two addresses."""

    def __init__(self) -> None:
        self.repos: dict[tuple[str, str], Repo] = {}
        self.tokens: dict[str, set[str]] = {}
        """Token to the ids of gated and private repositories that it opens."""
        self.redirects: dict[str, str] = {}
        """File to the address that it is redirected to."""
        self.wrong: dict[str, bytes] = {}
        """File to other bytes of the same length, or not, that are sent instead."""
        self.delays: dict[str, float] = {}
        """File to seconds before each chunk."""
        self.cuts: dict[str, int] = {}
        """File to how many more transfers end in the middle."""
        self.seen: list[Seen] = []
        self._servers = {name: _serve(self, name) for name in ("hub", "cdn")}

    @property
    def endpoint(self) -> str:
        """Address of the hub."""
        return f"http://{self.host}"

    @property
    def host(self) -> str:
        """Host and port of the hub."""
        return f"127.0.0.1:{self._servers['hub'].server_port}"

    @property
    def cdn(self) -> str:
        """Host and port of the server with the large files; another origin than the hub."""
        return f"127.0.0.1:{self._servers['cdn'].server_port}"

    def add(self, kind: str, repo_id: str, files: Mapping[str, bytes], **facts: Any) -> Repo:
        """Make a repository with one commit."""
        repo = self.repos[kind, repo_id] = Repo(kind, repo_id, **facts)
        repo.commit(files)
        return repo

    def requests_of(self, path: str, *, method: str = "GET") -> list[Seen]:
        """Return requests of a file's content."""
        return [one for one in self.seen if one.method == method and one.path.endswith(f"/{path}")]

    def close(self) -> None:
        """Stop both servers."""
        for server in self._servers.values():
            server.shutdown()
            server.server_close()


@contextlib.contextmanager
def a_hub() -> Iterator[HubStub]:
    """Run a hub without repositories."""
    hub = HubStub()
    try:
        yield hub
    finally:
        hub.close()


def is_large(path: str) -> bool:
    """Return whether a file lies on the CDN."""
    return path.endswith((".safetensors", ".parquet", ".bin", ".zst", ".gz", ".zip"))


def _serve(hub: HubStub, name: str) -> ThreadingHTTPServer:
    handler = type("Handler", (_Handler,), {"hub": hub, "server_name": name})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    return server


class _Refused(Exception):  # noqa: N818 - it is an answer.
    def __init__(self, status: int, code: str) -> None:
        super().__init__(code)
        self.status = status
        self.code = code


class _Handler(BaseHTTPRequestHandler):
    hub: HubStub
    server_name: str
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        pass

    def do_GET(self) -> None:
        self._answer()

    def do_HEAD(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def _answer(self) -> None:
        length = int(self.headers.get("content-length") or 0)
        self.body = self.rfile.read(length)
        path = unquote(urlsplit(self.path).path)
        self.hub.seen.append(
            Seen(
                self.server_name,
                self.command,
                path,
                self.headers.get("authorization", ""),
                self.headers.get("range", ""),
            )
        )
        with contextlib.suppress(ConnectionError):
            try:
                self._route(path)
            except _Refused as refused:
                self._json({"error": refused.code}, refused.status, {"X-Error-Code": refused.code})

    def _route(self, path: str) -> None:
        parts = path.strip("/").split("/")
        if self.server_name == "cdn":
            kind, owner, name, commit, *file = parts
            repo = self.hub.repos[kind, f"{owner}/{name}"]
            self._send(repo, commit, "/".join(file))
        elif parts[0] == "api" and len(parts) == 2:
            self._search(parts[1].removesuffix("s"))
        elif parts[0] == "api":
            self._api(parts[1].removesuffix("s"), f"{parts[2]}/{parts[3]}", parts[4:])
        else:
            kind = "dataset" if parts[0] == "datasets" else "model"
            owner, name, verb, revision, *file = parts[1:] if kind == "dataset" else parts
            if verb != "resolve":
                raise _Refused(404, "EntryNotFound")
            self._resolve(self._repo(kind, f"{owner}/{name}"), revision, "/".join(file))

    def _repo(self, kind: str, repo_id: str, *, for_content: bool = True) -> Repo:
        repo = self.hub.repos.get((kind, repo_id))
        token = self.headers.get("authorization", "").removeprefix("Bearer ")
        opens = repo_id in self.hub.tokens.get(token, set())
        if repo is None or (repo.is_private and not opens):
            raise _Refused(401 if not token else 404, "RepoNotFound")
        if repo.is_gated and for_content and not opens:
            raise _Refused(403 if token else 401, "GatedRepo")
        return repo

    def _commit(self, repo: Repo, revision: str) -> str:
        commit = repo.at(revision)
        if commit is None:
            raise _Refused(404, "RevisionNotFound")
        return commit

    def _api(self, kind: str, repo_id: str, rest: list[str]) -> None:
        # As on the real hub, anybody may look at what is in a gated repository.
        repo = self._repo(kind, repo_id, for_content=False)
        verb, revision = [*rest, "main"][:2] if rest else ("revision", "main")
        if verb == "auth-check":
            self._repo(kind, repo_id)
            self._json({})
            return
        commit = self._commit(repo, revision)
        files = repo.commits[commit]
        if verb == "revision":
            self._json(_info(repo, commit, files))
        elif verb == "tree":
            self._json(
                _tree(files, "/".join(rest[2:]), is_deep="recursive=true" in self.path.lower())
            )
        elif verb == "paths-info":
            asked = json.loads(self.body)["paths"] if self.body[:1] == b"{" else _form(self.body)
            self._json([one for path in asked for one in _path(files, path.strip("/"))])
        else:
            raise _Refused(404, "EntryNotFound")

    def _search(self, kind: str) -> None:
        query = parse_qs(urlsplit(self.path).query)
        text = query.get("search", [""])[0].lower()
        found = [
            _info(repo, repo.branches["main"], repo.commits[repo.branches["main"]])
            for (its_kind, repo_id), repo in self.hub.repos.items()
            if its_kind == kind and text in repo_id.lower() and not repo.is_private
        ]
        found.sort(key=lambda one: -one["downloads"])
        self._json(found[: int(query.get("limit", ["100"])[0])])

    def _resolve(self, repo: Repo, revision: str, path: str) -> None:
        commit = self._commit(repo, revision)
        if path not in repo.commits[commit]:
            raise _Refused(404, "EntryNotFound")
        content = repo.commits[commit][path]
        location = self.hub.redirects.get(path)
        if location is None and is_large(path):
            location = f"http://{self.hub.cdn}/{repo.kind}/{repo.repo_id}/{commit}/{path}"
        if location is None:
            self._send(repo, commit, path)
            return
        self.send_response(302)
        self.send_header("Location", location)
        self.send_header("X-Repo-Commit", commit)
        self.send_header("X-Linked-Etag", f'"{_etag(path, content)}"')
        self.send_header("X-Linked-Size", str(len(content)))
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _send(self, repo: Repo, commit: str, path: str) -> None:
        right = repo.commits[commit][path]
        content = self.hub.wrong.get(path, right)
        first = 0
        if (asked := self.headers.get("range", "")).startswith("bytes="):
            first = int(asked.removeprefix("bytes=").split("-")[0] or 0)
        self.send_response(206 if first else 200)
        self.send_header("ETag", f'"{_etag(path, right)}"')
        self.send_header("X-Repo-Commit", commit)
        self.send_header("Content-Length", str(len(content) - first))
        if first:
            self.send_header("Content-Range", f"bytes {first}-{len(content) - 1}/{len(content)}")
        self.end_headers()
        if self.command != "HEAD":
            self._write(path, content[first:])

    def _write(self, path: str, content: bytes) -> None:
        if self.hub.cuts.get(path, 0) > 0:
            self.hub.cuts[path] -= 1
            content = content[: len(content) // 2]
            self.close_connection = True
        for start in range(0, len(content), CHUNK_BYTES):
            time.sleep(self.hub.delays.get(path, 0))
            self.wfile.write(content[start : start + CHUNK_BYTES])

    def _json(
        self, value: Any, status: int = 200, headers: Mapping[str, str] | None = None
    ) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        for name, text in (headers or {}).items():
            self.send_header(name, text)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def _info(repo: Repo, commit: str, files: Mapping[str, bytes]) -> dict[str, Any]:
    weights = sum(len(body) for path, body in files.items() if path.endswith(".safetensors"))
    return {
        "id": repo.repo_id,
        "sha": commit,
        "private": repo.is_private,
        "gated": "manual" if repo.is_gated else False,
        "downloads": repo.downloads,
        "tags": repo.tags,
        "cardData": repo.card,
        "config": repo.config,
        **({"safetensors": {"parameters": {"F32": weights // 4}, "total": weights // 4}}
           if weights else {}),
        "siblings": [{"rfilename": path, **_facts(path, body)} for path, body in files.items()],
    }  # fmt: skip


def _facts(path: str, content: bytes) -> dict[str, Any]:
    facts: dict[str, Any] = {"size": len(content), "blobId": blob_id(content)}
    if is_large(path):
        sha256 = hashlib.sha256(content).hexdigest()
        facts["lfs"] = {"sha256": sha256, "size": len(content), "pointerSize": 134}
    return facts


def _path(files: Mapping[str, bytes], path: str) -> list[dict[str, Any]]:
    if path in files:
        content = files[path]
        entry: dict[str, Any] = {
            "type": "file", "path": path, "size": len(content), "oid": blob_id(content),
        }  # fmt: skip
        if is_large(path):
            sha256 = hashlib.sha256(content).hexdigest()
            entry["lfs"] = {"oid": sha256, "size": len(content), "pointerSize": 134}
        return [entry]
    if any(name.startswith(f"{path}/") for name in files):
        return [{"type": "directory", "path": path, "oid": blob_id(path.encode()), "size": 0}]
    return []


def _tree(files: Mapping[str, bytes], folder: str, *, is_deep: bool) -> list[dict[str, Any]]:
    prefix = f"{folder}/" if folder else ""
    inside = [name for name in files if name.startswith(prefix)]
    if folder and not inside:
        raise _Refused(404, "EntryNotFound")
    found: dict[str, dict[str, Any]] = {}
    for name in inside:
        steps = name.removeprefix(prefix).split("/")
        for depth in range(1, len(steps) + 1 if is_deep else 2):
            path = prefix + "/".join(steps[:depth])
            found[path] = _path(files, path)[0]
    return list(found.values())


def _etag(path: str, content: bytes) -> str:
    return hashlib.sha256(content).hexdigest() if is_large(path) else blob_id(content)


def _form(body: bytes) -> list[str]:
    return parse_qs(body.decode()).get("paths", [])
