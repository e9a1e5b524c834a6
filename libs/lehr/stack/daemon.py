"""The supervisor's process: one installation from its first server to its last service."""

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable
from dataclasses import replace

from lehr.errors import PlatformError
from lehr.logs import get_logger
from lehr.stack import control
from lehr.stack.layout import Layout
from lehr.stack.ports import Ports
from lehr.stack.preparation import Preparation
from lehr.stack.processes import ProcessMark
from lehr.stack.secrets import Secrets
from lehr.stack.servers import Servers
from lehr.stack.services import Services
from lehr.stack.settings import RUNNER, SERVICES, Options
from lehr.stack.state import PartStatus, Phase, StackState
from lehr.stack.supervisor import Supervisor

_LOOK_AFTER_OWNER_EVERY_SECONDS = 0.5

_log = get_logger()


class Daemon:
    """Runs one installation until it is told to stop, and keeps its state file true."""

    def __init__(
        self,
        layout: Layout,
        options: Options,
        *,
        progress: Callable[[StackState], None] | None = None,
    ) -> None:
        self._layout = layout
        self._options = options
        self._progress = progress
        self._stop = asyncio.Event()
        self._state = StackState()
        self._supervisor = Supervisor(log=layout.log, changed=self._changed)

    async def run(self, *, owner: ProcessMark | None = None) -> None:
        """Start all, keep it running, and stop it on SIGTERM, SIGINT or the death of ``owner``.

        Raises:
            StackRuns: another supervisor has the installation.
            PlatformError: a part did not start; everything is stopped again.
        """
        # What is copied for the database's account must stay readable for it.
        os.umask(0o022)
        loop = asyncio.get_running_loop()
        for sent in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(sent, self._stop.set)
        with self._layout.held():
            self._layout.sign()
            self._options.write(self._layout.options)
            watch = asyncio.create_task(self._watch(owner), name="watch owner")
            try:
                await self._run()
            except Exception as error:
                failure = str(error) if isinstance(error, PlatformError) else repr(error)
                _log.error("stack_failed", failure=failure)
                self._write(phase=Phase.FAILED, failure=failure, supervisor=None, control=None)
                raise
            finally:
                watch.cancel()
            self._write(phase=Phase.DOWN, supervisor=None, control=None)

    async def _run(self) -> None:
        former = StackState.read(self._layout.state)
        # The former processes stay known until they are gone, whatever happens to us.
        self._state = replace(former, failure="", control=None)
        self._write(phase=Phase.STARTING, supervisor=ProcessMark.of(os.getpid()))
        stale = await asyncio.to_thread(former.end_stale)
        if stale:
            _log.warning("stale_parts_ended", parts=stale)
        self._state = replace(self._state, parts=())
        with Ports.claim(dict(former.ports)) as ports, contextlib.ExitStack() as cleanup:
            async with self._supervisor as supervisor:
                socket = self._layout.control()
                cleanup.callback(socket.unlink, missing_ok=True)
                server = await control.serve(socket, supervisor.command)
                self._write(control=str(socket))
                try:
                    await self._start_and_wait(ports)
                finally:
                    server.close()
                    self._write(phase=Phase.STOPPING, control=None)

    async def _start_and_wait(self, ports: Ports) -> None:
        start = asyncio.create_task(self._start(ports), name="start")
        stop = asyncio.create_task(self._stop.wait(), name="stop")
        try:
            await asyncio.wait({start, stop}, return_when=asyncio.FIRST_COMPLETED)
            if start.done():
                start.result()
                self._write(phase=Phase.READY)
                _log.info("stack_ready")
                await stop
        finally:
            start.cancel()
            stop.cancel()
            await asyncio.wait({start, stop})

    async def _start(self, ports: Ports) -> None:
        layout, options, base = self._layout, self._options, self._options.for_all()
        secrets = await asyncio.to_thread(
            Secrets.load, layout.secrets, roles=SERVICES, services=(*SERVICES, RUNNER)
        )
        servers = Servers.choose(layout, options, secrets, ports.port)
        services = Services(
            layout=layout, options=options, secrets=secrets, servers=servers, port=ports.port
        )
        parts = services.parts()
        self._state = replace(self._state, ports=ports.assigned)
        environment = base | services.platform(services.addresses())
        with Preparation.spawn(
            environment, folder=layout.work, log=layout.log("bootstrap")
        ) as preparation:
            await self._start_servers(servers, base)
            await preparation.run(
                {
                    "admin_url": servers.postgres_admin_url,
                    "passwords": dict(secrets.postgres),
                    "is_ours": servers.postgres is not None,
                }
            )
        await self._supervisor.start(parts)

    async def _start_servers(self, servers: Servers, base: dict[str, str]) -> None:
        async def start_postgres() -> None:
            if servers.postgres is not None:
                await asyncio.to_thread(servers.postgres.initialise, base)
                await self._supervisor.start([servers.postgres.part(base)])

        others = [server.part(base) for server in (servers.nats, servers.s3) if server is not None]
        await asyncio.gather(self._supervisor.start(others), start_postgres())

    async def _watch(self, owner: ProcessMark | None) -> None:
        """Stop when the process that we run for is gone; write a lost state file again."""
        while owner is None or owner.is_alive():
            await asyncio.sleep(_LOOK_AFTER_OWNER_EVERY_SECONDS)
            if not self._layout.state.exists():
                with contextlib.suppress(OSError):
                    self._write()
        _log.warning("owner_died", pid=owner.pid)
        self._stop.set()

    def _changed(self) -> None:
        self._write()

    def _write(self, **changes: object) -> None:
        keepers = self._supervisor.keepers
        if keepers:
            changes["parts"] = tuple(PartStatus.of(keeper) for keeper in keepers)
        self._state = replace(self._state, **changes)  # type: ignore[arg-type]
        self._state.write(self._layout.state)
        if self._progress is not None:
            self._progress(self._state)
