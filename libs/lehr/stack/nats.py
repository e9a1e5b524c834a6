"""The embedded NATS server: every acknowledged message is on disk."""

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from lehr.logs import get_logger
from lehr.stack.errors import ProgramMissing, UnsafeServer
from lehr.stack.part import Part, PartStuck
from lehr.stack.ports import LOOPBACK
from lehr.stack.probes import UnexpectedAnswerError, http_get, http_get_json

USER = "lehr"

_PASSWORD_VARIABLE = "LEHR_NATS_PASSWORD"  # noqa: S105 - the name of a variable

# What NATS writes of a stream, in this order; a message can come only after both.
_DESCRIPTION = ("meta.inf", "meta.sum")

# Streams are bounded by their own limits (deploy/nats); these bound the server.
_CONFIG = """\
server_name: lehr
listen: {listen}
http: {http}
max_connections: 512
max_payload: 1MB
max_pending: 64MB
write_deadline: "10s"
jetstream {{
  store_dir: {store}
  sync_interval: always
  max_memory_store: 64MB
  max_file_store: 16GB
}}
authorization {{
  user: {user}
  password: ${password_variable}
}}
"""

_log = get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class NatsServer:
    """One server with JetStream, on loopback."""

    folder: Path
    """Holds its configuration and its streams."""

    port: int
    """For clients."""

    monitor_port: int
    """For ``/healthz``, ``/varz``, ``/jsz``."""

    password: str = field(repr=False)
    """Of the platform's one user."""

    room_bytes: int = 32 * 1024 * 1024
    """Free space from which on a stream that failed to write is worth another try."""

    @property
    def url(self) -> str:
        """Address without user and password."""
        return f"nats://{LOOPBACK}:{self.port}"

    @property
    def monitor_url(self) -> str:
        """Address of the monitoring pages."""
        return f"http://{LOOPBACK}:{self.monitor_port}"

    def part(self, base: Mapping[str, str]) -> Part:
        """Return the process; ``base`` is the environment that every part gets."""
        config = self.folder / "server.conf"
        return Part(
            name="nats",
            argv=(str(program("nats-server")), "--config", str(config)),
            environment={
                **base,
                _PASSWORD_VARIABLE: self.password,
                "GOMEMLIMIT": "256MiB",
            },
            folder=self.folder,
            port=self.port,
            prepare=self._prepare,
            probe=self._probe,
        )

    def _prepare(self) -> None:
        self._write_config()
        for stream in self.folder.glob("streams/jetstream/*/streams/*"):
            if not all((stream / name).exists() for name in _DESCRIPTION):
                self._drop_half_made(stream)

    def _drop_half_made(self, stream: Path) -> None:
        """Take away a stream whose description was not written to its end.

        NATS 2.15.1, killed while it makes a stream, finds the folder at its next start and never
        becomes healthy. Nobody was told that such a stream exists, so it can be made again.
        """
        if any(block.stat().st_size for block in stream.glob("msgs/*.blk")):
            aside = Path(tempfile.mkdtemp(prefix=f"unreadable-{stream.name}-", dir=self.folder))
            stream.rename(aside / stream.name)
            _log.error("stream_unreadable", stream=stream.name, kept=str(aside))
        else:
            shutil.rmtree(stream)

    def _write_config(self) -> None:
        text = _CONFIG.format(
            listen=f"{LOOPBACK}:{self.port}",
            http=f"{LOOPBACK}:{self.monitor_port}",
            store=json.dumps(str(self.folder / "streams")),
            user=USER,
            password_variable=_PASSWORD_VARIABLE,
        )
        (self.folder / "server.conf").write_text(text)

    async def _probe(self) -> None:
        try:
            await http_get(self.monitor_port, "/healthz")
        except UnexpectedAnswerError as unhealthy:
            # NATS 2.15.1 takes nothing more for a stream that once failed to write, until it is
            # started anew; on a full disk that would not help.
            has_room = shutil.disk_usage(self.folder).free >= self.room_bytes
            if "write error" in str(unhealthy) and has_room:
                raise PartStuck(str(unhealthy)) from None
            raise
        report = await http_get_json(self.monitor_port, "/jsz")
        if report["config"].get("sync_always") is not True:
            raise UnsafeServer(
                f"NATS at {self.url} does not sync every message: set sync_interval to always",
                url=self.url,
            )


def program(name: str) -> Path:
    """Return a program that a wheel put beside this Python.

    Raises:
        ProgramMissing: it is not installed.
    """
    # Not resolved: in a virtual environment Python itself is a link to somewhere else.
    path = Path(os.path.abspath(sys.executable)).parent / name
    if not path.is_file():
        raise ProgramMissing(f"{path} is missing: install lehr again, with all it needs")
    return path
