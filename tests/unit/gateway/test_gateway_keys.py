"""API keys: what a secret is, when a key works, and who may make which."""

import hashlib
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.gateway.domain.keys import (
    ROLES,
    SECRET_PREFIX,
    SHOWN_CHARACTERS,
    ApiKey,
    KeyFieldRefused,
    KeyRefused,
    RoleRequired,
    RoleUnknown,
    check_key_name,
    check_scope,
    digest,
    grantable,
    require,
    secret_of,
)

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SECOND = timedelta(seconds=1)
PAIRS = [(low, high) for at, low in enumerate(ROLES) for high in ROLES[at + 1 :]]
NOT_ABOVE = [(low, high) for at, high in enumerate(ROLES) for low in ROLES[: at + 1]]


def a_key(**fields: Any) -> ApiKey:
    """Return a key that works."""
    least = {"key_id": "key_1", "tenant": "t", "project": "p", "name": "n", "role": "member"}
    return ApiKey(**{**least, "prefix": "lehr_sk_abcd", "create_time": NOW, **fields})


def test_only_a_digest_of_a_secret_is_kept() -> None:
    assert digest("lehr_sk_x") == hashlib.sha256(b"lehr_sk_x").hexdigest()


def test_what_is_shown_of_a_secret_is_far_from_all_of_it() -> None:
    assert SHOWN_CHARACTERS - len(SECRET_PREFIX) == 4


@pytest.mark.parametrize(
    "header", ["Bearer lehr_sk_x", "bearer lehr_sk_x", "BEARER   lehr_sk_x ", "Bearer lehr_sk_x\t"]
)
def test_a_secret_is_taken_out_of_its_header(header: str) -> None:
    assert secret_of(header) == "lehr_sk_x"


@pytest.mark.parametrize("header", [None, "", "Bearer", "Bearer ", "lehr_sk_x", "Basic lehr_sk_x"])
def test_a_header_without_a_secret_is_told_how_to_send_one(header: str | None) -> None:
    with pytest.raises(KeyRefused, match="Bearer lehr_sk_"):
        secret_of(header)


def test_a_key_works_until_the_instant_of_its_end() -> None:
    key = a_key(expire_time=NOW)

    assert [key.works_at(NOW - SECOND), key.works_at(NOW), key.works_at(NOW + SECOND)] == [
        True,
        False,
        False,
    ]


def test_a_revoked_key_never_works_whatever_its_end() -> None:
    key = a_key(revoke_time=NOW, expire_time=NOW + 9 * SECOND)

    assert not any(key.works_at(NOW + at * SECOND) for at in (-5, 0, 5))


def test_a_key_without_an_end_works() -> None:
    assert a_key().works_at(NOW + timedelta(days=36_500))


@pytest.mark.parametrize(("low", "high"), PAIRS)
def test_a_lower_role_is_not_enough(low: str, high: str) -> None:
    with pytest.raises(RoleRequired, match=f"role {high}; yours is {low}"):
        require(low, needed=high)


@pytest.mark.parametrize(("low", "high"), NOT_ABOVE)
def test_a_role_may_do_what_those_below_it_may(low: str, high: str) -> None:
    require(high, needed=low)

    assert grantable(low, by=high) == low


@pytest.mark.parametrize("role", ["", "king", "OPERATOR", "operator "])
def test_a_role_that_is_none_may_do_nothing(role: str) -> None:
    with pytest.raises(RoleRequired):
        require(role, needed="member")


@pytest.mark.parametrize(("low", "high"), PAIRS)
def test_nobody_grants_more_than_they_have(low: str, high: str) -> None:
    with pytest.raises(RoleRequired):
        grantable(high, by=low)


def test_a_new_key_is_a_member_unless_it_is_said() -> None:
    assert grantable("", by="admin") == "member"


@given(st.text(max_size=10).filter(lambda text: text not in ("", *ROLES)))
def test_a_role_that_is_none_is_refused_with_those_there_are(role: str) -> None:
    with pytest.raises(RoleUnknown, match="member, admin, operator"):
        grantable(role, by="operator")


@pytest.mark.parametrize("scope", ["default", "a", "acme-eu_1", "0", "a" * 63])
def test_a_tenant_or_project_is_a_plain_word(scope: str) -> None:
    assert check_scope(scope, field="tenant") == scope


@pytest.mark.parametrize("scope", ["", "*", ">", "a.b", "_", "-a", "a/b", "A", "a\0", "a" * 64])
def test_a_scope_that_subjects_or_keys_would_read_otherwise_is_refused(scope: str) -> None:
    with pytest.raises(KeyFieldRefused) as refusal:
        check_scope(scope, field="tenant")

    assert refusal.value.fields[0].field == "tenant"


@pytest.mark.parametrize("name", ["", "a\0b", "a\nb", "x" * 101, "\x1b[31m"])
def test_a_key_is_named_in_printable_words(name: str) -> None:
    with pytest.raises(KeyFieldRefused, match="printable"):
        check_key_name(name)
