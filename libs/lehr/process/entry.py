"""The command line of a service: run it, or only check its settings."""

import asyncio
import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from lehr.errors import PlatformError
from lehr.settings import ServiceSettings, SettingsRefused

S = TypeVar("S", bound=ServiceSettings)


def run(
    settings_class: type[S],
    main: Callable[[S], Awaitable[None]],
    arguments: Sequence[str] | None = None,
) -> int:
    """Read the settings and run ``main`` with them; return the exit status.

    With ``--check`` nothing runs: 0 says that the settings are good, 2 that they are not.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given not in ([], ["--check"]):
        print("usage: python -m services.<name> [--check]", file=sys.stderr)
        return 2
    try:
        settings = settings_class.load()
    except SettingsRefused as problem:
        print(problem, file=sys.stderr)
        return 2
    if given:
        print("settings are good")
        return 0
    try:
        asyncio.run(_awaited(main, settings))
    except PlatformError as problem:
        # Something outside is not as this process needs it; the message says what to do.
        print(problem, file=sys.stderr)
        return 1
    return 0


async def _awaited(main: Callable[[S], Awaitable[None]], settings: S) -> None:
    await main(settings)
