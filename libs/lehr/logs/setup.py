"""One way of logging for our code and for libraries: structlog, on standard error."""

import logging
import sys
from collections.abc import Mapping
from contextvars import Token
from types import TracebackType
from typing import Any, Literal

import structlog
from structlog.contextvars import bind_contextvars, merge_contextvars, reset_contextvars
from structlog.types import EventDict, Processor, WrappedLogger

from lehr.logs.redaction import redact

Logger = structlog.stdlib.BoundLogger

# Libraries that tell every request or reconnect attempt.
_NOISY = ("asyncio", "grpc", "httpx", "httpcore", "urllib3", "nats", "faststream")


def configure(service: str, format: Literal["json", "console"] = "json") -> None:  # noqa: A002
    """Send everything of this process to standard error; call it once, first of all.

    Every entry carries ``service``, what ``bind_context`` holds, a level and a UTC time.
    """
    shared: list[Processor] = [
        merge_contextvars,
        _ServiceName(service),
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.ExtraAdder(),
        structlog.stdlib.PositionalArgumentsFormatter(),
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="time"),
        structlog.processors.StackInfoRenderer(),
        # Tracebacks become text before masking, for they quote values.
        structlog.processors.format_exc_info,
        redact,
    ]
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=Logger,
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                _renderer(format),
            ],
        )
    )
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(logging.INFO)
    for name in _NOISY:
        logging.getLogger(name).setLevel(logging.WARNING)
    # It tells each attempt to reach a lost server with a traceback; callers tell it once.
    logging.getLogger("asyncpg").setLevel(logging.ERROR)


def get_logger(name: str = "lehr") -> Logger:
    """Return a logger; the name tells the part of the service that speaks."""
    logger: Logger = structlog.stdlib.get_logger(name)
    return logger


class bind_context:  # noqa: N801 - it is called like a function, and is one to its readers
    """Add fields to every entry of this task, from now on or for the length of a ``with``."""

    def __init__(self, **values: object) -> None:
        self._tokens: Mapping[str, Token[Any]] = bind_contextvars(**values)

    def __enter__(self) -> None:
        return None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        reset_contextvars(**self._tokens)


class _ServiceName:
    """Puts the service's name on an entry."""

    def __init__(self, service: str) -> None:
        self._service = service

    def __call__(self, _logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
        event.setdefault("service", self._service)
        return event


def _renderer(format: Literal["json", "console"]) -> Processor:  # noqa: A002
    if format == "console":
        return structlog.dev.ConsoleRenderer(
            event_key="event", timestamp_key="time", colors=sys.stderr.isatty()
        )
    return structlog.processors.JSONRenderer(default=str)
