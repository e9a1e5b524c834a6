"""A second process of a service of a whole stack, with the same settings and ports of its own."""

import contextlib
import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import psutil

from lehr.stack.part import Part
from lehr.stack.ports import LOOPBACK, Ports
from lehr.stack.probes import http_get
from tests.support.servers import RunningPart
from tests.support.stack import StackUnderTest

ADDRESSES = "LEHR_ADDRESSES"


@dataclass(frozen=True, kw_only=True)
class Replica:
    """One more process of a service; nobody restarts it but the test."""

    control: RunningPart
    address: str


@contextlib.contextmanager
def a_replica(
    stack: StackUnderTest, service: str, *, addresses: Mapping[str, str] | None = None
) -> Iterator[Replica]:
    """Run ``service`` a second time until the block ends; ``addresses`` is whom it calls instead.

    Its log lies beside those of the stack.
    """
    process = psutil.Process(stack.pid(service))
    prefix = service.upper()
    with Ports.claim({}) as ports:
        port, metrics_port = ports.port("grpc"), ports.port("metrics")
        environment = {
            **process.environ(),
            f"{prefix}_LISTEN": f"{LOOPBACK}:{port}",
            f"{prefix}_METRICS_LISTEN": f"{LOOPBACK}:{metrics_port}",
            # Only a gateway listens here too.
            f"{prefix}_REST_LISTEN": f"{LOOPBACK}:{ports.port('rest')}",
        }
        known = json.loads(environment[ADDRESSES])
        environment[ADDRESSES] = json.dumps({**known, **(addresses or {})})

        async def probe() -> None:
            await http_get(metrics_port, "/readyz")

        part = Part(
            name=f"{service}-2",
            argv=(sys.executable, "-P", "-m", f"services.{service}"),
            environment=environment,
            folder=stack.stack.layout.work,
            port=port,
            probe=probe,
        )
        control = RunningPart(part, stack.stack.layout.logs)
        try:
            control.start()
            yield Replica(control=control, address=f"{LOOPBACK}:{port}")
        finally:
            control.kill()
