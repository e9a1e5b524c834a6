"""What tellings of a lease add up to."""

import pytest

from services.billing.domain.errors import LeaseImpossible
from services.billing.domain.lease import Lease
from services.billing.domain.usage import news
from tests.support.billing import a_hold, a_lease, at


def test_a_new_lease_gets_the_hold_under_which_it_was_granted() -> None:
    found = news([], [a_lease(grant_time=at(60))], [a_hold(1), a_hold(2, placed=50)])

    assert [lease.hold_ordinal for lease in found] == [2]


def test_a_lease_keeps_its_hold_when_later_ones_are_placed() -> None:
    known = a_lease(grant_time=at(60), hold_ordinal=1)

    found = news([known], [a_lease(grant_time=at(60), version=2)], [a_hold(2, placed=50)])

    assert [lease.hold_ordinal for lease in found] == [1]


def test_the_same_and_older_versions_tell_nothing() -> None:
    known = a_lease(0, 30, version=5, alive=30)

    assert news([known], [known, a_lease(0, version=4, alive=20)], [a_hold()]) == []


def test_a_gap_in_the_versions_loses_nothing() -> None:
    found = news([a_lease(None, version=1)], [a_lease(0, 30, version=9, alive=31)], [a_hold()])

    assert (found[0].version, found[0].end_time) == (9, at(30))


def test_a_sign_of_life_counts_without_a_new_version() -> None:
    found = news([a_lease(0, alive=10)], [a_lease(0, alive=12)], [a_hold()])

    assert found[0].alive_time == at(12)


def test_an_older_sign_of_life_is_not_taken_back() -> None:
    found = news([a_lease(0, alive=10)], [a_lease(0, alive=8, version=2)], [a_hold()])

    assert (found[0].alive_time, found[0].version) == (at(10), 2)


@pytest.mark.parametrize(
    "wrong",
    [
        a_lease(10, 9),
        a_lease(None, 9),
        a_lease(gpu_count=0),
        a_lease(version=0),
        a_lease(epoch=0),
        a_lease(tenant=""),
    ],
)
def test_a_lease_that_contradicts_itself_is_refused(wrong: Lease) -> None:
    with pytest.raises(LeaseImpossible):
        news([], [wrong], [a_hold()])
