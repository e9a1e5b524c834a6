"""What a stack costs that does nothing."""

from tests.support.stack import StackUnderTest

MEMORY_BYTES_MAX = int(1.2 * 2**30)


def test_everything_together_fits_into_a_small_machine(stack: StackUnderTest) -> None:
    status = stack.status()

    assert len(status.parts) == 11
    assert status.memory_bytes < MEMORY_BYTES_MAX
