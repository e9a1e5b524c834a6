"""Which addresses may be connected to for a user."""

import socket
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lehr.egress import EgressRefused, Guard
from lehr.egress.addresses import is_public

INTERNAL = [
    "0.0.0.0",  # noqa: S104 - nothing is bound.
    "0.1.2.3",
    "10.0.0.1",
    "100.64.0.1",
    "100.100.100.200",
    "127.0.0.1",
    "127.255.255.254",
    "168.63.129.16",
    "169.254.169.254",
    "172.16.0.1",
    "172.31.255.255",
    "192.0.0.192",
    "192.0.2.1",
    "192.88.99.1",
    "192.168.1.1",
    "198.18.0.1",
    "198.51.100.7",
    "203.0.113.9",
    "224.0.0.1",
    "239.255.255.250",
    "240.0.0.1",
    "255.255.255.255",
    "::",
    "::1",
    "::127.0.0.1",
    "::ffff:127.0.0.1",
    "::ffff:10.0.0.1",
    "::ffff:169.254.169.254",
    "64:ff9b::127.0.0.1",
    "64:ff9b::a00:1",
    "64:ff9b:1::8.8.8.8",
    "100::1",
    "2001::1",
    "2001:db8::1",
    "2002:7f00:1::",
    "2002:808:808::1",
    "3fff::1",
    "fc00::1",
    "fd00:ec2::254",
    "fe80::1",
    "fe80::1%1",
    "fec0::1",
    "ff02::1",
    "no address",
    "",
]
PUBLIC = ["8.8.8.8", "1.1.1.1", "100.63.255.255", "100.128.0.1", "172.32.0.1", "2606:4700::1111"]


@pytest.mark.parametrize("address", INTERNAL)
def test_an_internal_address_is_not_public(address: str) -> None:
    assert not is_public(address)


@pytest.mark.parametrize("address", [*PUBLIC, "::ffff:8.8.8.8", "64:ff9b::8.8.8.8"])
def test_a_public_address_is_public(address: str) -> None:
    assert is_public(address)


@given(st.ip_addresses(v=4))
def test_an_ipv4_address_is_as_public_as_its_mapped_and_translated_form(address: Any) -> None:
    assert is_public(f"::ffff:{address}") == is_public(str(address))
    assert is_public(f"64:ff9b::{address}") == is_public(str(address))
    assert not is_public(f"::{address}")


def answers(*addresses: str) -> Any:
    def resolve(host: str, port: int, **_: Any) -> list[Any]:
        return [
            (socket.AF_INET6 if ":" in one else socket.AF_INET, 1, 6, "", (one, port))
            for one in addresses
        ]

    return resolve


@pytest.mark.parametrize(
    "url",
    [
        "http://169.254.169.254/latest/meta-data/",
        "http://127.0.0.1:8222/",
        "http://[::1]/",
        "http://[::ffff:127.0.0.1]/",
        "http://0x7f000001/",
        "http://2130706433/",
        "http://017700000001/",
        "http://127.1/",
        "http://0/",
        "http://localhost/",
        "http://LOCALHOST./",
        "file:///etc/passwd",
        "gopher://8.8.8.8/",
        "ftp://8.8.8.8/",
        "//8.8.8.8/",
        "8.8.8.8",
        "http:///",
        "http://[fe80::1%25eth0]/",
        "http://user@8.8.8.8/",
        "http://8.8.8.8@127.0.0.1/",
        "http://8.8.8.8:99999/",
        "http://[::1",
        "http://a\0b/",
        "",
    ],
)
def test_every_refused_url_gets_one_and_the_same_message(url: str) -> None:
    with pytest.raises(EgressRefused) as refused:
        Guard().check_url(url)
    assert str(refused.value) == str(EgressRefused())
    assert refused.value.facts == {}


def test_a_public_url_is_taken() -> None:
    Guard(resolve=answers("8.8.8.8")).check_url("https://hub.test/path")
    Guard().check_url("http://8.8.8.8:8080/")


def test_a_name_with_one_internal_address_among_public_ones_is_refused() -> None:
    with pytest.raises(EgressRefused):
        Guard(resolve=answers("8.8.8.8", "10.0.0.1")).addresses("hub.test", 443)


def unknown(host: str, port: int, **_: Any) -> list[Any]:
    raise socket.gaierror("name or service not known")


@pytest.mark.parametrize("resolve", [answers(), unknown])
def test_a_name_without_addresses_is_refused_like_an_internal_one(resolve: Any) -> None:
    with pytest.raises(EgressRefused):
        Guard(resolve=resolve).addresses("hub.test", 443)


def test_an_allowed_host_is_taken_on_its_port_alone() -> None:
    guard = Guard.parse("127.0.0.1:9000, hub.internal:443 ,[::1]:80")
    assert guard.addresses("127.0.0.1", 9000) == ("127.0.0.1",)
    assert guard.addresses("::1", 80) == ("::1",)
    with pytest.raises(EgressRefused):
        guard.addresses("127.0.0.1", 9001)


def test_the_addresses_of_an_allowed_name_are_good_once_they_are_known() -> None:
    guard = Guard([("hub.internal", 443)], resolve=answers("10.0.0.5"))
    assert not guard.is_good("10.0.0.5", 443)
    assert guard.addresses("Hub.internal.", 443) == ("10.0.0.5",)
    assert guard.is_good("10.0.0.5", 443)
    assert not guard.is_good("10.0.0.5", 80)


@pytest.mark.parametrize(
    "text", ["127.0.0.1", "hub:x", ":80", "http://hub:80", "a@hub:80", "hub:0"]
)
def test_a_list_of_allowed_hosts_that_is_none_is_told(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        Guard.parse(text)


@pytest.mark.parametrize(
    ("family", "peer"),
    [
        (socket.AF_INET, ("127.0.0.1", 80)),
        (socket.AF_INET, ("hub.test", 80)),
        (socket.AF_INET6, ("::1", 80, 0, 0)),
        (socket.AF_UNIX, "/run/bus"),
        (socket.AF_INET, "text"),
    ],
)
def test_a_socket_may_not_connect_to_a_name_or_an_internal_address(
    family: int, peer: object
) -> None:
    with pytest.raises(EgressRefused):
        Guard().check_peer(family, peer)


def test_a_socket_may_connect_to_a_public_address() -> None:
    Guard().check_peer(socket.AF_INET, ("8.8.8.8", 443))
