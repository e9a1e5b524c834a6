"""One real service process against the servers of a test, and callers that it believes."""

import contextlib
import json
import os
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import grpc.aio
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from lehr.rpc.auth import Identity, acting_for
from lehr.rpc.client import channel
from lehr.stack import SERVICES
from lehr.stack.part import Part
from lehr.stack.ports import LOOPBACK, Ports
from lehr.stack.probes import http_get
from tests.support.servers import RunningPart, a_folder


def _key_pair() -> tuple[str, str]:
    key = Ed25519PrivateKey.generate()
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    public = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    return private.decode(), public.decode()


KEYS: Mapping[str, tuple[str, str]] = {
    name: _key_pair() for name in sorted({*SERVICES, "gateway", "trainer_runner"})
}
"""A private and a public key of every service, for this test session."""

TRUSTED = {name: public for name, (_, public) in KEYS.items()}


@dataclass(frozen=True, kw_only=True)
class OneService:
    """A service as a process that a test may stop, kill and start again on the same ports."""

    name: str
    control: RunningPart
    port: int
    metrics_port: int
    rest_port: int
    """Of HTTP for outside callers, which only a gateway serves."""
    faults: Path
    log: Path

    @property
    def rest(self) -> str:
        """Address of HTTP for outside callers."""
        return f"http://{LOOPBACK}:{self.rest_port}"

    @contextlib.asynccontextmanager
    async def called_by(
        self, caller: str, *, tenant: str = "acme", project: str = "default"
    ) -> AsyncIterator[grpc.aio.Channel]:
        """Give a channel on which ``caller`` calls for a tenant."""
        identity = Identity(caller, KEYS[caller][0])
        with acting_for(tenant, project, principal="somebody"):
            async with channel(f"{LOOPBACK}:{self.port}", identity) as opened:
                yield opened


@contextlib.contextmanager
def a_service(
    name: str, environment: Mapping[str, str], *, addresses: Mapping[str, str] | None = None
) -> Iterator[OneService]:
    """Run ``python -m services.<name>`` until the block ends."""
    with a_folder() as folder, Ports.claim({}) as ports:
        port, metrics_port = ports.port("grpc"), ports.port("metrics")
        rest_port = ports.port("rest")
        faults = folder / "faults.json"

        async def probe() -> None:
            await http_get(metrics_port, "/readyz")

        prefix = name.upper()
        part = Part(
            name=name,
            argv=(sys.executable, "-m", f"services.{name}"),
            environment={
                "PATH": os.environ["PATH"],
                "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
                f"{prefix}_LISTEN": f"{LOOPBACK}:{port}",
                f"{prefix}_METRICS_LISTEN": f"{LOOPBACK}:{metrics_port}",
                f"{prefix}_REST_LISTEN": f"{LOOPBACK}:{rest_port}",
                f"{prefix}_IDENTITY_KEY": KEYS[name][0],
                "LEHR_TRUSTED_KEYS": json.dumps(TRUSTED),
                "LEHR_ADDRESSES": json.dumps(dict(addresses or {})),
                "LEHR_TEST_HOOKS": "true",
                "LEHR_FAULTS_FILE": str(faults),
                **environment,
            },
            folder=Path.cwd(),
            port=port,
            probe=probe,
        )
        control = RunningPart(part, folder)
        try:
            control.start()
            yield OneService(
                name=name,
                control=control,
                port=port,
                metrics_port=metrics_port,
                rest_port=rest_port,
                faults=faults,
                log=folder / f"{name}.log",
            )
        finally:
            control.kill()
