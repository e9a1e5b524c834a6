"""Runs the gateway."""

import asyncio
import sys

from lehr.api.gateway.v1.gateway_pb2_grpc import add_GatewayServiceServicer_to_server
from lehr.logs import get_logger
from lehr.process import Process, run
from services.gateway import handlers
from services.gateway.admission import Admission
from services.gateway.calls import Limits
from services.gateway.events import Tail
from services.gateway.projects import Projects
from services.gateway.proxy import Proxy, PublicServer
from services.gateway.rest.app import application
from services.gateway.rest.server import RestServer
from services.gateway.servicer import Servicer
from services.gateway.settings import Settings
from services.gateway.upstream import Upstream

GRACE_SECONDS = 1
"""What calls of outside callers in progress get at the end."""


async def main(settings: Settings) -> None:
    """Serve until told to stop."""
    # The process serves the gateway's own methods; outside callers come through the proxy alone.
    process = Process("gateway", settings.model_copy(update={"listen": settings.internal_listen}))
    async with process:
        if settings.bootstrap_key_sha256:
            await handlers.ensure_first_key(process.db, settings.bootstrap_key_sha256)
        process.add_servicer(
            add_GatewayServiceServicer_to_server,
            Servicer(process.db, Tail(process.nats), Projects(process.channel)),
            service_name="lehr.api.gateway.v1.GatewayService",
            policy={},
        )

        def address_of(service: str) -> str:
            if service == "gateway":
                return f"127.0.0.1:{process.port}"
            return settings.platform.addresses[service]

        ring = handlers.KeyRing(process.db, cache_seconds=settings.key_cache_seconds)
        limits = Limits(calls_max=settings.calls_per_key, streams_max=settings.streams_per_key)
        admission = Admission(ring, limits)
        upstream = Upstream(process.identity, address_of)
        public = PublicServer(
            Proxy(admission, upstream), reflection=settings.platform.mode != "production"
        )
        rest = RestServer(
            application(admission, upstream, idle_seconds=settings.body_idle_seconds),
            settings.rest_listen,
        )
        await public.start(settings.listen)
        try:
            port = await rest.start()
            get_logger().info("rest_serving", port=port)
            await process.serve()
        finally:
            await asyncio.gather(rest.stop(grace=GRACE_SECONDS), public.stop(grace=GRACE_SECONDS))
            await upstream.close()


if __name__ == "__main__":
    sys.exit(run(Settings, main))
