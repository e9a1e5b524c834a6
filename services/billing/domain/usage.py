"""What a telling of leases adds to what is known of a job's."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from services.billing.domain.holds import Hold, hold_of
from services.billing.domain.lease import Lease


def news(known: Iterable[Lease], heard: Iterable[Lease], holds: Sequence[Hold]) -> list[Lease]:
    """Return the leases that are other than known; told twice or late, nothing is new.

    A new lease gets the hold under which it was granted and keeps it.

    Raises:
        LeaseImpossible: a lease contradicts itself.
    """
    found = {lease.lease_id: lease for lease in known}
    before = dict(found)
    for lease in heard:
        lease.check()
        old = found.get(lease.lease_id)
        if old is None:
            ordinal = hold_of(lease.grant_time, holds)
            found[lease.lease_id] = replace(lease, hold_ordinal=ordinal)
        else:
            found[lease.lease_id] = old.after(lease)
    return [lease for lease_id, lease in found.items() if lease != before.get(lease_id)]


def merged(known: Iterable[Lease], heard: Iterable[Lease], holds: Sequence[Hold]) -> list[Lease]:
    """Return all leases of a job after a telling."""
    found = {lease.lease_id: lease for lease in known}
    found |= {lease.lease_id: lease for lease in news(found.values(), heard, holds)}
    return list(found.values())
