"""Which addresses belong to the public internet.

Sources: the IANA special-purpose address registries (RFC 6890) as Python's ``ipaddress`` knows
them, and what those leave open: multicast, transition mechanisms, and services of clouds.
"""

import ipaddress
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

#: Looks public and is not: protocol assignments (RFC 6890), relays of 6to4 (RFC 7526), and the host
#: agent of one cloud.
_INTERNAL_V4 = (
    IPv4Network("192.0.0.0/24"),
    IPv4Network("192.88.99.0/24"),
    IPv4Network("168.63.129.16/32"),
)

#: The one block that global unicast is given from (RFC 4291).
_UNICAST_V6 = IPv6Network("2000::/3")

#: Inside it, and never a host on the internet: 6to4, Teredo, documentation.
_INTERNAL_V6 = (
    IPv6Network("2002::/16"),
    IPv6Network("2001::/32"),
    IPv6Network("2001:db8::/32"),
    IPv6Network("3fff::/20"),
)

#: An IPv4 address in the last 32 bits (RFC 6052), which a translator of the network goes to.
_NAT64 = IPv6Network("64:ff9b::/96")


def is_public(address: str) -> bool:
    """Return whether ``address``, a literal without brackets, is one of the public internet."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return False
    if isinstance(parsed, IPv4Address):
        return _is_public_v4(parsed)
    return _is_public_v6(parsed)


def _is_public_v4(address: IPv4Address) -> bool:
    return (
        address.is_global
        and not address.is_multicast
        and not address.is_reserved
        and not any(address in network for network in _INTERNAL_V4)
    )


def _is_public_v6(address: IPv6Address) -> bool:
    if address.scope_id is not None:
        return False
    if address.ipv4_mapped is not None:
        return _is_public_v4(address.ipv4_mapped)
    if address in _NAT64:
        return _is_public_v4(IPv4Address(int(address) & 0xFFFFFFFF))
    return (
        address in _UNICAST_V6
        and address.is_global
        and not any(address in network for network in _INTERNAL_V6)
    )
