"""An installation on this machine, from outside: start it, look at it, stop it."""

import asyncio
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from lehr.logs import configure
from lehr.settings import ADMIN_URL_ENV
from lehr.stack import control
from lehr.stack.daemon import Daemon
from lehr.stack.errors import StackDown, StartFailed, StopFailed
from lehr.stack.launch import LOOK_EVERY_SECONDS, launch, not_ready, runs_already
from lehr.stack.layout import Layout
from lehr.stack.logfile import read_logs
from lehr.stack.part import full_name
from lehr.stack.secrets import Secrets
from lehr.stack.servers import Servers
from lehr.stack.services import Services
from lehr.stack.settings import RUNNER, SERVICES, Options, state_dir
from lehr.stack.state import StackState
from lehr.stack.status import StackStatus, describe, look

UP_SECONDS = 120.0
DOWN_SECONDS = 90.0

_KILL_SECONDS = 10.0


class Stack:
    """One installation; any number of these may look at the same folder."""

    def __init__(self, folder: Path | str | None = None, *, options: Options | None = None) -> None:
        """Name the state folder: by default that of LEHR_STATE_DIR, else ``.state`` here.

        ``options`` are for the next ``up``; by default those of the environment.

        Raises:
            FolderRefused: something else than a folder is there.
        """
        self.layout = Layout(root=state_dir(folder))
        self.layout.check()
        self._options = options

    def up(
        self,
        *,
        detach: bool = True,
        owned: bool = False,
        progress: Callable[[StackStatus], None] | None = None,
        within: float = UP_SECONDS,
    ) -> StackStatus:
        """Start everything; ``progress`` is called with every change.

        Detached, it returns when all is ready, and the stack outlives the terminal; with ``owned``
        it stops when this process ends, however that happens. Not detached, it runs until SIGINT
        or SIGTERM, must be called from the main thread, and returns when all is stopped.

        Raises:
            StackRuns: it runs already.
            StartFailed: a part did not become ready; everything is stopped again.
        """
        options = self._options or Options.from_environment()
        self.layout.make()
        if self.layout.is_held():
            raise runs_already(self.layout)
        if detach:
            try:
                return launch(self.layout, options, owned=owned, within=within, progress=progress)
            except (StartFailed, KeyboardInterrupt):
                self.down()
                raise

        def tell(state: StackState) -> None:
            if progress is not None:
                progress(describe(self.layout, state))

        configure("supervisor", "console")
        asyncio.run(Daemon(self.layout, options, progress=tell).run())
        return self.status()

    def status(self) -> StackStatus:
        """Look at all parts now, and measure their memory."""
        return look(self.layout, with_memory=True)

    def logs(
        self, part: str | None = None, *, follow: bool = False, lines: int = 100
    ) -> Iterator[str]:
        """Yield the last lines of a part's log, then with ``follow`` what is added, for ever.

        Without a part, those of all parts, each with its name in front.

        Raises:
            UnknownPart: nothing of that name ever logged.
        """
        paths = {path.stem: path for path in sorted(self.layout.logs.glob("*.log"))}
        if part is None:
            return read_logs(paths, follow=follow, lines=lines)
        name = full_name(part, paths)
        return read_logs({name: paths[name]}, follow=follow, lines=lines)

    def down(self, *, within: float = DOWN_SECONDS) -> bool:
        """Stop everything; return whether anything ran.

        Raises:
            StopFailed: a process outlived its kill.
        """
        if not self.layout.root.is_dir():
            return False
        began, ran = time.monotonic(), False
        while self.layout.is_held():
            ran, waited = True, time.monotonic() - began
            # The lock knows it even where the state file is lost.
            told = StackState.read(self.layout.state).supervisor
            supervisor = self.layout.supervisor() or told
            if supervisor is not None and waited > within:
                supervisor.kill()
            elif supervisor is not None:
                supervisor.end()
            if waited > within + _KILL_SECONDS:
                raise StopFailed(f"the supervisor of {self.layout.root} does not end")
            time.sleep(LOOK_EVERY_SECONDS)
        with self.layout.held():
            # Without a supervisor, or after its kill, some of its parts may be left.
            return bool(StackState.read(self.layout.state).end_stale()) or ran

    def remove(self) -> None:
        """Stop everything and delete the installation with all its data."""
        self.down()
        if not self.layout.options.exists():
            return
        if self.layout.postgres.is_symlink():
            shutil.rmtree(self.layout.postgres.resolve(), ignore_errors=True)
        shutil.rmtree(self.layout.root)

    def kill(self, part: str) -> None:
        """Kill a part without warning; it is restarted like after any crash.

        Raises:
            StackDown: no supervisor lives.
            UnknownPart: there is no such part.
        """
        self._ask("kill", part)

    def pause(self, part: str) -> None:
        """Freeze a part and all that it started; raises as ``kill`` does."""
        self._ask("pause", part)

    def resume(self, part: str) -> None:
        """Let a frozen part go on; raises as ``kill`` does."""
        self._ask("resume", part)

    def stop_part(self, part: str) -> None:
        """Stop a part cleanly; it stays down until it is started. Raises as ``kill`` does."""
        self._ask("stop", part)

    def start_part(self, part: str) -> None:
        """Want a part again; returns before it is ready. Raises as ``kill`` does."""
        self._ask("start", part)

    def wait_ready(self, *parts: str, within: float = 60.0) -> StackStatus:
        """Wait until these parts are ready, or all.

        Raises:
            StartFailed: they are not in time.
            UnknownPart: there is no such part.
        """
        deadline = time.monotonic() + within
        while True:
            status = look(self.layout)
            wanted = [status.part(name) for name in parts] or list(status.parts)
            late = [part for part in wanted if not part.serves()]
            if wanted and not late:
                return status
            if time.monotonic() > deadline:
                raise not_ready(self.layout, late)
            time.sleep(LOOK_EVERY_SECONDS)

    def environment(self) -> dict[str, str]:
        """Return the ``LEHR_`` variables of this installation, the administrator's included.

        Raises:
            StackDown: it was never started.
        """
        state = StackState.read(self.layout.state)
        if not state.ports:
            raise StackDown(f"there is no stack in {self.layout.root}: start it with lehr up")
        options, secrets, port = Options.read(self.layout.options), self.secrets(), state.ports
        servers = Servers.choose(self.layout, options, secrets, port.__getitem__)
        services = Services(
            layout=self.layout,
            options=options,
            secrets=secrets,
            servers=servers,
            port=port.__getitem__,
        )
        platform = services.platform(services.addresses())
        return {**platform, ADMIN_URL_ENV: servers.postgres_admin_url}

    def secrets(self) -> Secrets:
        """Return the passwords and keys of this installation."""
        return Secrets.load(self.layout.secrets, roles=SERVICES, services=(*SERVICES, RUNNER))

    def _ask(self, command: str, part: str) -> None:
        address = StackState.read(self.layout.state).control
        if address is None or not self.layout.is_held():
            raise StackDown(f"no stack runs on {self.layout.root}: start it with lehr up")
        control.ask(address, command, part)
