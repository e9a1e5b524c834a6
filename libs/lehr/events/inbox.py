"""Take each event in once: the first statement of every event handler's transaction."""

from lehr.events.outbox import sql
from lehr.postgres import Connection


async def first_time(conn: Connection, consumer: str, event_id: str) -> bool:
    """Tell whether ``consumer`` sees the event for the first time, and remember that it did.

    Call it inside the transaction of the effect: if that rolls back, the event counts as unseen. A
    second delivery that arrives at the same time waits here for the first one's commit.
    """
    return await conn.fetchval(sql()["take_event"], consumer, event_id) is not None
