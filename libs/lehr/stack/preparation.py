"""Running the program that makes servers ready, from the supervisor's side."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from lehr.stack.errors import StartFailed
from lehr.stack.logfile import last_lines
from lehr.stack.processes import die_with_parent

_LOG_LINES_SHOWN = 20
_SECONDS = 90.0


class Preparation:
    """A process that loads its libraries at once and waits for the order to begin."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self._process = process
        self._log = log

    @classmethod
    def spawn(cls, environment: Mapping[str, str], *, folder: Path, log: Path) -> Self:
        """Start the process; must be called from the main thread."""
        with log.open("ab") as output:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "lehr.stack.bootstrap"],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=folder,
                env=dict(environment),
                start_new_session=True,
                preexec_fn=die_with_parent(),  # noqa: PLW1509 - see the function
            )
        return cls(process, log)

    async def run(self, order: Mapping[str, object]) -> None:
        """Give the order and wait until it is done.

        Raises:
            StartFailed: it could not be done.
        """
        text = json.dumps(order).encode()
        try:
            await asyncio.to_thread(self._process.communicate, text, _SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
        code = await asyncio.to_thread(self._process.wait)
        if code != 0:
            lines = "\n".join(last_lines(self._log, _LOG_LINES_SHOWN))
            raise StartFailed(
                f"the servers run but could not be prepared:\n{lines}", part="bootstrap"
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.wait()
        if self._process.stdin is not None:
            self._process.stdin.close()
