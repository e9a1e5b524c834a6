"""Signing and believing tokens."""

import json
from time import monotonic, time
from typing import Any

import jwt
import pytest

from lehr.errors import PermissionDenied, Unauthenticated
from lehr.rpc import auth
from lehr.rpc.auth import ActingFor, Caller, Identity, Verifier, acting_for, check_policy
from tests.unit.lehr_rpc.keys import key_pair

PRIVATE, PUBLIC = key_pair()
STRANGER_PRIVATE, STRANGER_PUBLIC = key_pair()
FOR_ANA = ActingFor(principal="ana", tenant="acme", project="default", role="member")


def a_verifier() -> Verifier:
    return Verifier({"gateway": PUBLIC})


def signed(private: str = PRIVATE, **changes: Any) -> str:
    claims = {
        "iss": "gateway",
        "sub": "ana",
        "tenant": "acme",
        "project": "default",
        "role": "member",
        # Signed when tests are collected, and believed an hour of other tests later.
        "exp": int(time()) + 86_400,
    }
    kept = {name: value for name, value in (claims | changes).items() if value is not None}
    # Not jwt.encode, which would refuse to sign what we must refuse to believe.
    return jwt.PyJWS().encode(json.dumps(kept).encode(), private, algorithm="EdDSA")


def test_a_token_tells_who_calls_and_for_whom() -> None:
    token = Identity("gateway", PRIVATE).token(FOR_ANA)

    assert a_verifier().verify(token) == Caller(
        service="gateway", principal="ana", tenant="acme", project="default", role="member"
    )


def test_a_token_is_signed_once_for_each_on_whose_behalf_it_speaks() -> None:
    identity = Identity("gateway", PRIVATE)
    for_ben = ActingFor(principal="ben", tenant="acme", project="default", role="member")

    assert identity.token(FOR_ANA) is identity.token(FOR_ANA)
    assert identity.token(FOR_ANA) != identity.token(for_ben)


def test_an_old_token_is_signed_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    identity = Identity("gateway", PRIVATE)
    first = identity.token(FOR_ANA)
    later = monotonic() + 31
    monkeypatch.setattr(auth, "monotonic", lambda: later)

    assert identity.token(FOR_ANA) is not first


@pytest.mark.parametrize(
    ("token", "told"),
    [
        (None, "carries no x-lehr-context"),
        ("", "carries no x-lehr-context"),
        ("no.token.atall", "malformed"),
        (signed(exp=int(time()) - 60), "expired"),
        (signed(exp=None), "malformed"),
        (signed(private=STRANGER_PRIVATE), "not signed by its issuer"),
        (signed(private=STRANGER_PRIVATE, iss="stranger"), "not trusted here"),
        (signed(iss=None), "not trusted here"),
        (signed(iss=["gateway"]), "not trusted here"),
        (signed(tenant=None), "must carry"),
        (signed(role=7), "must carry"),
        (jwt.encode({"iss": "gateway", "sub": "x"}, "", algorithm="none"), "malformed"),
        (jwt.encode({"iss": "gateway"}, "x" * 64, algorithm="HS256"), "malformed"),
        (signed()[:-2], "malformed"),
    ],
)
def test_a_token_that_does_not_convince_is_refused(token: str | None, told: str) -> None:
    with pytest.raises(Unauthenticated, match=told) as refused:
        a_verifier().verify(token)

    assert refused.value.reason == "TOKEN_REFUSED"


def test_a_method_without_a_policy_is_for_the_gateway_alone() -> None:
    billing = Caller(service="billing", principal="b", tenant="", project="default", role="service")

    with pytest.raises(PermissionDenied, match="billing may not call CreateJob"):
        check_policy(billing, "CreateJob", {"StopJob": frozenset({"billing"})})


def test_a_policy_names_who_may_call_and_nobody_else_may() -> None:
    gateway = Caller(service="gateway", principal="a", tenant="t", project="default", role="member")

    with pytest.raises(PermissionDenied, match="gateway may not call StopJob"):
        check_policy(gateway, "StopJob", {"StopJob": frozenset({"billing"})})


def test_without_a_call_there_is_no_caller() -> None:
    auth.set_caller(None)

    with pytest.raises(Unauthenticated, match="nobody is calling"):
        auth.caller()


def test_a_call_for_the_platform_has_no_tenant() -> None:
    auth.set_caller(
        Caller(service="scheduler", principal="s", tenant="", project="default", role="service")
    )

    with pytest.raises(PermissionDenied) as refused:
        auth.tenant_of_caller()

    assert refused.value.reason == "TENANT_REQUIRED"


def test_a_call_made_within_a_call_is_for_the_same_tenant() -> None:
    auth.set_caller(
        Caller(service="gateway", principal="ana", tenant="acme", project="p", role="member")
    )

    assert auth.outgoing() == ActingFor(principal="ana", tenant="acme", project="p", role="member")


def test_acting_for_another_tenant_ends_with_its_block() -> None:
    auth.set_caller(None)

    with acting_for("acme", principal="sweep"):
        inside = auth.outgoing()

    assert (inside.tenant, inside.principal) == ("acme", "sweep")
    assert auth.outgoing().tenant == ""


def test_a_service_that_acts_for_nobody_acts_for_itself() -> None:
    auth.set_caller(None)

    caller = a_verifier().verify(Identity("gateway", PRIVATE).token(auth.outgoing()))

    assert (caller.principal, caller.tenant, caller.role) == ("gateway", "", "service")


@pytest.mark.parametrize("pem", ["", "no key", PUBLIC])
def test_a_wrong_private_key_is_refused_without_being_quoted(pem: str) -> None:
    with pytest.raises(ValueError, match="identity key of gateway must be an Ed25519") as refused:
        Identity("gateway", pem)

    assert not pem or pem not in str(refused.value)


def test_a_wrong_public_key_is_refused_by_the_service_it_stands_for() -> None:
    with pytest.raises(ValueError, match="trusted key of billing"):
        Verifier({"billing": PRIVATE})
