"""Instants and lengths of time that no caller should send."""

from datetime import UTC, datetime, timedelta

import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from lehr.errors import InvalidArgument
from lehr.rpc.times import duration_of, instant_of


@pytest.mark.parametrize(
    ("seconds", "nanos"),
    [(2**62, 0), (-(2**62), 0), (253_402_300_800, 0), (0, -1), (0, 1_000_000_000)],
)
def test_an_instant_that_is_none_is_refused_by_its_field(seconds: int, nanos: int) -> None:
    with pytest.raises(InvalidArgument, match="from_time must be") as refused:
        instant_of(Timestamp(seconds=seconds, nanos=nanos), field="from_time")

    assert [one.field for one in refused.value.fields] == ["from_time"]


@pytest.mark.parametrize(
    ("seconds", "nanos"), [(2**62, 0), (-(2**62), 0), (315_576_000_001, 0), (0, 1_000_000_000)]
)
def test_a_length_that_is_none_is_refused_by_its_field(seconds: int, nanos: int) -> None:
    with pytest.raises(InvalidArgument, match="max_duration must be"):
        duration_of(Duration(seconds=seconds, nanos=nanos), field="max_duration")


def test_all_others_are_read_to_the_microsecond() -> None:
    stamp, length = Timestamp(seconds=-1, nanos=1_500), Duration(seconds=-1, nanos=-500_000_000)

    assert instant_of(stamp, field="x") == datetime(1969, 12, 31, 23, 59, 59, 1, tzinfo=UTC)
    assert duration_of(length, field="x") == timedelta(seconds=-1.5)
    assert duration_of(Duration(seconds=315_576_000_000), field="x").days == 3_652_500
