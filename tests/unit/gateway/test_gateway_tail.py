"""Reading live events leaves nothing behind in NATS."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import nats.errors
import pytest

from services.gateway.events import EventsUnavailable, Tail


class Subscription:
    """One that counts itself."""

    def __init__(self, client: FewStreams) -> None:
        self._client = client
        client.open_count += 1

    async def unsubscribe(self) -> None:
        self._client.open_count -= 1


class FewStreams:
    """As much of a NATS client as a tail uses; the third stream is away."""

    is_connected = True

    def __init__(self) -> None:
        self.open_count = 0
        self.made_count = 0

    def jetstream(self) -> FewStreams:
        return self

    async def subscribe(self, subject: str, **how: Any) -> Subscription:
        if self.made_count == 2:
            raise nats.errors.TimeoutError
        self.made_count += 1
        return Subscription(self)


async def test_a_tail_that_cannot_begin_gives_back_what_it_had() -> None:
    client = FewStreams()
    events = Tail(client).watch(  # type: ignore[arg-type]  # as much of one as is needed
        "acme", types=(), job_id="", from_time=datetime.now(UTC), shows=lambda event: None
    )

    with pytest.raises(EventsUnavailable):
        await anext(events)

    assert (client.made_count, client.open_count) == (2, 0)
