"""How many calls and streams of one key may be in progress at once."""

import importlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta

from lehr.errors import ResourceExhausted


class TooManyCalls(ResourceExhausted):
    """The key has as many calls or streams in progress as it may have."""

    reason = "TOO_MANY_CALLS"
    retryable = True


class Limits:
    """Counts what is in progress in this process; a key that is at its limit waits for itself."""

    def __init__(self, *, calls_max: int, streams_max: int) -> None:
        """``streams_max`` is for methods whose answer has no end, ``calls_max`` for the others."""
        self._most = {"calls": calls_max, "streams": streams_max}
        self._in_progress: Counter[tuple[str, str]] = Counter()

    @contextmanager
    def one(self, key_id: str, *, is_stream: bool) -> Iterator[None]:
        """Count one call of a key for as long as the block lasts.

        Raises:
            TooManyCalls: there are as many already as there may be.
        """
        kind = "streams" if is_stream else "calls"
        most, key = self._most[kind], (key_id, kind)
        if self._in_progress[key] >= most:
            raise TooManyCalls(
                f"this key has {most} {kind} in progress, which is the limit of this gateway; end"
                " some, or use another key",
                retry_in=timedelta(seconds=1),
                limit=most,
                kind=kind,
            )
        self._in_progress[key] += 1
        try:
            yield
        finally:
            self._in_progress[key] -= 1
            if not self._in_progress[key]:
                del self._in_progress[key]


def streaming_paths(routes: Mapping[str, str]) -> frozenset[str]:
    """Return the gRPC paths of all methods that answer with a stream."""
    return frozenset(_streaming_paths(routes))


def _streaming_paths(routes: Mapping[str, str]) -> Iterable[str]:
    for service, name in routes.items():
        described = importlib.import_module(f"lehr.api.{name}.v1.{name}_pb2").DESCRIPTOR
        for method in described.services_by_name[service.rpartition(".")[2]].methods:
            if method.server_streaming:
                yield f"/{service}/{method.name}"
