"""A stack that runs and whose state file somebody deleted."""

from collections.abc import Iterator

import pytest

from lehr.stack import Options, Stack
from tests.support.servers import a_folder


@pytest.fixture
def bare() -> Iterator[Stack]:
    """A stopped stack with the three servers alone."""
    with a_folder() as folder:
        stack = Stack(folder / "state", options=Options.from_environment(services=(), nodes=()))
        yield stack
        stack.down()


def test_a_stack_whose_state_file_is_lost_is_stopped_all_the_same(bare: Stack) -> None:
    bare.up()
    bare.layout.state.unlink()

    # At once, before it could be written again.
    assert bare.down(within=30)
    assert not bare.layout.is_held()


def test_a_lost_state_file_is_written_again(bare: Stack) -> None:
    before = bare.up()
    bare.layout.state.unlink()

    bare.wait_ready()

    assert bare.status().supervisor_pid == before.supervisor_pid
