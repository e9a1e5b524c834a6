"""Ids say what they name and sort by time of birth."""

import uuid
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lehr.errors import InvalidArgument
from lehr.ids import ALPHABET, derived_id, event_uuid, new_id, parse_id

nouns = st.from_regex(r"[a-z][a-z0-9]{0,8}(_[a-z0-9]{1,8}){0,2}", fullmatch=True)


@given(nouns)
def test_a_new_id_is_one_of_its_noun(noun: str) -> None:
    fresh = new_id(noun)

    assert parse_id(fresh, noun) == fresh
    assert len(fresh) == len(noun) + 1 + 26


def test_later_ids_sort_after_earlier_ones() -> None:
    first, second = new_id("job"), new_id("job")

    # A busy machine may give both the same quarter of a microsecond.
    assert first[:18] <= second[:18]
    assert first != second


def test_ids_are_not_repeated() -> None:
    assert len({new_id("job") for _ in range(10_000)}) == 10_000


@given(nouns, st.text(), st.text())
def test_a_derived_id_is_the_same_at_every_call(noun: str, tenant: str, key: str) -> None:
    derived = derived_id(noun, tenant, key)

    assert derived == derived_id(noun, tenant, key) == parse_id(derived, noun)


@given(st.text(max_size=4), st.text(max_size=4), st.text(max_size=4), st.text(max_size=4))
def test_different_tenants_and_keys_have_different_ids(
    tenant: str, key: str, other_tenant: str, other_key: str
) -> None:
    same_input = (tenant, key) == (other_tenant, other_key)

    same_id = derived_id("job", tenant, key) == derived_id("job", other_tenant, other_key)

    assert same_id == same_input


@pytest.mark.parametrize(
    ("first", "second"), [(("ab", "c"), ("a", "bc")), (("1:a", "b"), ("1", "a:b"))]
)
def test_the_border_between_tenant_and_key_counts(
    first: tuple[str, str], second: tuple[str, str]
) -> None:
    assert derived_id("job", *first) != derived_id("job", *second)


def test_the_same_key_names_different_things_of_different_nouns() -> None:
    assert derived_id("job", "t", "k")[4:] != derived_id("run", "t", "k")[4:]


@pytest.mark.parametrize(
    "wrong",
    [
        "",
        "job",
        "job_",
        "run_" + "0" * 26,
        "job_" + "0" * 25,
        "job_" + "0" * 27,
        "job_8" + "0" * 25,
        "job_" + "i" * 26,
        "JOB_" + "0" * 26,
        "job_" + "A" * 26,
        "job_" + "0" * 26 + "\n",
        " job_" + "0" * 26,
        "../job_" + "0" * 26,
    ],
)
def test_what_is_not_an_id_is_refused_by_field(wrong: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        parse_id(wrong, "job")

    assert caught.value.reason == "ID_MALFORMED"
    assert [violation.field for violation in caught.value.fields] == ["job_id"]


@given(st.text())
def test_any_text_is_an_id_or_refused(text: str) -> None:
    with pytest.raises(InvalidArgument):
        parse_id(text, "job")


def test_an_id_is_safe_in_a_subject_and_a_path() -> None:
    assert set(new_id("base_model")) <= set(ALPHABET) | set("base_model")


def test_a_noun_that_is_none_is_our_mistake() -> None:
    with pytest.raises(ValueError, match="not a noun"):
        new_id("Job.x")


def test_an_event_uuid_is_of_version_seven_and_ordered() -> None:
    made = [event_uuid() for _ in range(100)]

    assert {(value.version, value.variant) for value in made} == {(7, uuid.RFC_4122)}
    assert all(a.int >> 64 <= b.int >> 64 for a, b in pairwise(made))
