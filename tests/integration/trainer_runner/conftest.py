"""One agent with two CPU slots, fake peers, a real NATS and a real S3 server."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from tests.integration.trainer_runner.story import AgentFactory, AgentUnderTest
from tests.support.fakes_trainer_runner import FakePeers, fake_peers
from tests.support.one_service import OneService, a_service
from tests.support.servers import NatsForTests, ObjectsForTests, a_folder

QUICK = {
    "SYNC_INTERVAL": "0.2",
    "STOP_GRACE": "5",
    "KILL_AFTER": "1",
    "UNCONFIRMED_AFTER": "3",
    "PREPARE_LIMIT": "3",
    "CPU_SLOTS": "2",
}


@pytest.fixture
def peers(nats_server: NatsForTests, s3: ObjectsForTests) -> Iterator[FakePeers]:
    """Services that know nothing yet; the streams keep what tests before have said."""
    with fake_peers(nats_server, s3) as served:
        yield served


@pytest.fixture
def agent_factory(peers: FakePeers, nats_server: NatsForTests) -> Iterator[AgentFactory]:
    """Agents with settings of a test."""
    with contextlib.ExitStack() as cleanup:

        def start(**settings: str) -> AgentUnderTest:
            state_dir = cleanup.enter_context(a_folder()) / "state"
            given = QUICK | {"NODE_NAME": "alpha", "STATE_DIR": str(state_dir)} | settings
            environment = {f"TRAINER_RUNNER_{name}": value for name, value in given.items()}
            service = cleanup.enter_context(
                a_service(
                    "trainer_runner",
                    environment | nats_server.variables,
                    addresses=peers.addresses,
                )
            )
            cleanup.callback(_show_log, service)
            return AgentUnderTest(service=service, peers=peers, state_dir=state_dir)

        yield start


@pytest.fixture
def agent(agent_factory: AgentFactory) -> AgentUnderTest:
    """An agent with quick timers."""
    return agent_factory()


def _show_log(service: OneService) -> None:
    """Print the agent's log, which pytest shows where a test has failed."""
    print(service.log.read_text(encoding="utf-8")[-20_000:])
