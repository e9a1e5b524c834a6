"""A NATS server with JetStream on a free loopback port."""

import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from tests.integration.lehr.lib_servers import PATIENCE_SECONDS


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@dataclass
class NatsServer:
    """The wheel's server; its store survives a restart."""

    folder: Path
    port: int = field(default_factory=free_port)
    user: str = "tester"
    password: str = "secret"
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    def start(self) -> None:
        settings = self.folder / "nats.conf"
        settings.write_text(
            f'listen: "127.0.0.1:{self.port}"\n'
            f'jetstream {{ store_dir: "{self.folder}/store", sync_interval: always }}\n'
            f"authorization {{ user: {self.user}, password: {self.password} }}\n",
            encoding="utf-8",
        )
        with (self.folder / "nats.log").open("ab") as log:
            self.process = subprocess.Popen(
                [Path(sys.executable).with_name("nats-server"), "-c", settings],
                stdout=log,
                stderr=log,
            )
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not self._listens():
            assert self.process.poll() is None, (self.folder / "nats.log").read_text()
            assert time.monotonic() < deadline, "nats-server does not listen"
            time.sleep(0.02)

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait(PATIENCE_SECONDS)

    def _listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0
