"""Without a single event, and with NATS away, every job still comes right."""

from __future__ import annotations

import pytest

from lehr.ids import new_id
from tests.integration.scheduler.story import Story, until


@pytest.fixture(scope="module")
def variables() -> dict[str, str]:
    """A scheduler that sweeps all the time."""
    return {"SCHEDULER_CYCLE_SECONDS": "0.2", "SCHEDULER_SWEEP_SECONDS": "0.2"}


async def test_a_job_lives_its_life_by_the_sweep_alone(story: Story) -> None:
    job, lease = await story.started()

    story.peers.allocator.move(lease.lease_id, "RUNNING", running=True)
    await story.comes_to(job.job_id, "RUNNING")
    story.peers.allocator.move(lease.lease_id, "CLOSED", reason="COMPLETED")
    # It is in no list of open ones: it is asked for by name, once its run is old enough.
    async with story.admin.connection() as conn:
        await conn.execute("UPDATE clock.shift SET amount = '1 minute'")

    done = await story.comes_to(job.job_id, "SUCCEEDED")
    assert done.end_reason == "COMPLETED"


async def test_a_lease_that_no_job_waits_for_is_stopped(story: Story) -> None:
    _, lease = await story.started()
    orphan = type(story.peers.allocator.asked[0])()
    orphan.CopyFrom(story.peers.allocator.asked[0])
    orphan.job_id, orphan.tiers[0].tier = new_id("job"), "l"
    story.peers.allocator._grant("lease_orphan", orphan, "l")

    async def stopped() -> bool:
        return bool(story.peers.allocator.stops)

    await until(stopped)
    assert {lease_id for lease_id, _, _ in story.peers.allocator.stops} == {"lease_orphan"}
    assert story.peers.allocator.leases[lease.lease_id].phase == 1
