"""The services and runners as parts: what each is told, and nothing more."""

import json
import shutil
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import quote, urlsplit

from lehr.settings import FAULTS_FILE_ENV, MODE_ENV, TEST_HOOKS_ENV
from lehr.stack.layout import Layout
from lehr.stack.part import Part
from lehr.stack.ports import LOOPBACK
from lehr.stack.probes import http_get
from lehr.stack.secrets import Secrets
from lehr.stack.servers import Servers
from lehr.stack.settings import RUNNER, SERVICES, Node, Options

CATALOG = "catalog"
CACHE_DIR_ENV = "CATALOG_CACHE_DIR"

REST = "gateway_rest"
"""What the gateway's port of HTTP is called."""

SERVICE_RANK = 1
RUNNER_RANK = 2

# glibc gives each thread an arena of its own; two are enough for processes that mostly wait.
_PYTHON = {"PYTHONUNBUFFERED": "1", "MALLOC_ARENA_MAX": "2"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """Builds the parts of one installation."""

    layout: Layout
    options: Options
    secrets: Secrets
    servers: Servers
    port: Callable[[str], int]
    """Gives a port for a purpose, always the same."""

    def parts(self) -> list[Part]:
        """Return the services, then the runners; all may be started at the same time."""
        # All ports first, for every service is told the addresses of all.
        addresses = self.addresses()
        services = [self._service(name, addresses) for name in self.options.services]
        return services + [self._runner(node, addresses) for node in self.options.nodes]

    def addresses(self) -> dict[str, str]:
        """Return the gRPC address of every service."""
        return {name: f"{LOOPBACK}:{self.port(name)}" for name in SERVICES}

    def database_url(self, service: str) -> str:
        """Return the database as the role of a service."""
        url = urlsplit(self.servers.postgres_admin_url)
        place = url.netloc.rpartition("@")[2]
        login = f"{service}:{quote(self.secrets.postgres[service], safe='')}"
        return url._replace(netloc=f"{login}@{place}").geturl()

    def platform(self, addresses: dict[str, str]) -> dict[str, str]:
        """Return the ``LEHR_`` variables that all share."""
        shared = {
            **self.servers.variables,
            "LEHR_ADDRESSES": json.dumps(addresses),
            "LEHR_TRUSTED_KEYS": json.dumps(self.secrets.trusted_keys),
            MODE_ENV: self.options.mode,
        }
        if self.options.test_hooks:
            shared |= {TEST_HOOKS_ENV: "true", FAULTS_FILE_ENV: str(self.layout.faults)}
        return shared

    def _service(self, name: str, addresses: dict[str, str]) -> Part:
        own = {
            "LISTEN": addresses[name],
            "DATABASE_URL": self.database_url(name),
        }
        if name == "gateway":
            own["REST_LISTEN"] = f"{LOOPBACK}:{self.port(REST)}"
            own["BOOTSTRAP_KEY_SHA256"] = self.secrets.api_key_sha256
        if name == CATALOG:
            own["SECRET_KEY"] = self.secrets.catalog
        if name == CATALOG and CACHE_DIR_ENV not in self.options.for_service(name):
            cache = self.layout.cache(name)
            own["CACHE_DIR"] = str(cache)
            return replace(self._part(name, name, own, addresses), prepare=lambda: _empty(cache))
        return self._part(name, name, own, addresses)

    def _runner(self, node: Node, addresses: dict[str, str]) -> Part:
        folder = self.layout.node(node.name)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        own = {
            "NODE_NAME": node.name,
            "STATE_DIR": str(folder),
            "CPU_SLOTS": str(node.cpu_slots),
        }
        if node.pretend_gpus is not None:
            own["PRETEND_GPUS"] = node.pretend_gpus
        return self._part(f"{RUNNER}@{node.name}", RUNNER, own, addresses)

    def _part(
        self, name: str, service: str, own: dict[str, str], addresses: dict[str, str]
    ) -> Part:
        metrics_port = self.port(f"{name}_metrics")
        own |= {
            "METRICS_LISTEN": f"{LOOPBACK}:{metrics_port}",
            "IDENTITY_KEY": self.secrets.identity[service],
        }
        is_runner = service == RUNNER
        return Part(
            name=name,
            argv=(sys.executable, "-P", "-m", f"services.{service}"),
            environment={
                **_PYTHON,
                **self.options.for_service(service),
                **self.platform(addresses),
                **{f"{service.upper()}_{key}": value for key, value in own.items()},
                **self.options.more_for(service),
            },
            folder=self.layout.work,
            port=None if is_runner else self.port(name),
            probe=_ready(metrics_port),
            # A runner may have a checkpoint to hand over before it goes.
            stop_seconds=30.0 if is_runner else 15.0,
            rank=RUNNER_RANK if is_runner else SERVICE_RANK,
        )


def _empty(folder: Path) -> None:
    """Clear what a killed predecessor left: it may be half written."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)


def _ready(metrics_port: int) -> Callable[[], Awaitable[None]]:
    async def probe() -> None:
        await http_get(metrics_port, "/readyz")

    return probe
