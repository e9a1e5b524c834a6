"""Files that do not fit in memory: the examination of one stays far below its size."""

from pathlib import Path

import pytest

from tests.bench.validate import EXAMINE, measure, write_chats


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_two_gigabytes_are_examined_in_less_than_700_megabytes_a_process(tmp_path: Path) -> None:
    path = tmp_path / "chats.jsonl"
    write_chats(path, 2 * 10**9)

    found = measure(EXAMINE, path, 2)

    path.unlink()
    assert found.row_count > 500_000
    assert found.peak_bytes < 700 * 10**6
