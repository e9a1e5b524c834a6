"""A small service as a real process."""

import asyncio
import json
import os
import sys
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from lehr.rpc.auth import Identity
from lehr.rpc.client import channel
from tests.integration.lehr_events.nats_server import NatsServer, free_port
from tests.integration.lehr_events.stories import until
from tests.integration.lehr_rpc.words import KEYS, WordsStub

PROGRAM = "tests.integration.lehr_process.small_service"


@dataclass
class SmallService:
    """One process; may be started again after it ended."""

    folder: Path
    database_url: str
    nats: NatsServer
    port: int = field(default_factory=free_port)
    metrics_port: int = field(default_factory=free_port)
    process: asyncio.subprocess.Process | None = None

    @property
    def faults(self) -> Path:
        return self.folder / "faults.json"

    @property
    def log(self) -> str:
        return (self.folder / "service.log").read_text(encoding="utf-8")

    async def start(self, *arguments: str, **extra: str) -> None:
        environment = {
            "SCHEDULER_DATABASE_URL": self.database_url,
            "SCHEDULER_LISTEN": f"127.0.0.1:{self.port}",
            "SCHEDULER_METRICS_LISTEN": f"127.0.0.1:{self.metrics_port}",
            "SCHEDULER_IDENTITY_KEY": KEYS["gateway"][0],
            "LEHR_NATS_URL": self.nats.url,
            "LEHR_NATS_USER": self.nats.user,
            "LEHR_NATS_PASSWORD": self.nats.password,
            "LEHR_TRUSTED_KEYS": json.dumps({"gateway": KEYS["gateway"][1]}),
            "LEHR_TEST_HOOKS": "true",
            "LEHR_FAULTS_FILE": str(self.faults),
            "PYTHONPATH": ":".join(sys.path),
            "PATH": os.environ["PATH"],
        }
        with (self.folder / "service.log").open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", PROGRAM, *arguments,
                env=environment | extra, stdout=log, stderr=log,
            )  # fmt: skip

    async def ask(self, request: str, *, timeout: float = 20) -> str:  # noqa: ASYNC109
        identity = Identity("gateway", KEYS["gateway"][0])
        async with channel(f"127.0.0.1:{self.port}", identity) as opened:
            told: str = await WordsStub(opened).Say(request, timeout=timeout, wait_for_ready=True)
        return told

    async def probe(self, path: str) -> tuple[int, str]:
        try:
            async with httpx.AsyncClient(timeout=20) as http:
                answer = await http.get(f"http://127.0.0.1:{self.metrics_port}{path}")
        except httpx.TransportError as problem:
            return 0, repr(problem)
        return answer.status_code, answer.text

    async def until_ready(self, *, ready: bool = True) -> None:
        """Wait until /readyz says so."""

        async def is_so() -> bool:
            return (await self.probe("/readyz"))[0] == (200 if ready else 503)

        await until(is_so)

    async def ended(self) -> int:
        """Wait for the end; return the exit status."""
        assert self.process is not None
        async with asyncio.timeout(60):
            return await self.process.wait()

    def signal(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)
