"""How every process connects to NATS: for ever, watchful, and without a hidden buffer."""

from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Any

from lehr.logs import get_logger
from lehr.settings import PlatformSettings

SAY_AGAIN_SECONDS = 30.0
"""How often one and the same error is logged."""


def options(settings: PlatformSettings, *, name: str) -> dict[str, Any]:
    """Return the arguments of ``nats.connect`` for one connection called ``name``.

    ``pending_size=0`` makes a publish during an outage fail at once instead of filling memory: the
    outbox or the spool of its caller keeps what could not be said. ``error_cb`` is the only place
    where a forbidden subject shows.
    """
    log = get_logger()

    told: dict[str, float] = {}

    async def on_error(error: Exception) -> None:
        # A refused connection is told at every attempt, once a second.
        text, now = repr(error), monotonic()
        if now - told.get(text, -SAY_AGAIN_SECONDS) >= SAY_AGAIN_SECONDS:
            told.clear()
            told[text] = now
            log.warning("nats_error", connection=name, error=text)

    def say(event: str) -> Callable[[], Awaitable[None]]:
        async def on_change() -> None:
            log.info(event, connection=name)

        return on_change

    chosen: dict[str, Any] = {
        "servers": [settings.nats_url],
        "name": name,
        "allow_reconnect": True,
        "max_reconnect_attempts": -1,
        "reconnect_time_wait": 1,
        "connect_timeout": 5,
        "ping_interval": 10,
        "max_outstanding_pings": 2,
        "pending_size": 0,
        "error_cb": on_error,
        "disconnected_cb": say("nats_disconnected"),
        "reconnected_cb": say("nats_reconnected"),
    }
    if settings.nats_user is not None:
        chosen["user"] = settings.nats_user
    if settings.nats_password is not None:
        chosen["password"] = settings.nats_password.get_secret_value()
    return chosen
