"""Runs the proof that the ledger equals the leases; read only."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lehr.postgres import Connection, Queries
from services.billing.domain.lease import Lease

PROOF = Queries.load(Path(__file__).with_name("proof.sql"))

_OF_TENANT = (
    "charge_differences",
    "unpriced_differences",
    "orphan_differences",
    "price_differences",
    "hold_differences",
    "balance_differences",
)
_COMPARED = (
    "lease_id",
    "job_id",
    "tier",
    "gpu_count",
    "phase",
    "close_reason",
    "version",
    "running_time",
    "end_time",
    "stop_time",
    "funded_until",
    "committed_time",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """What was compared and what differs."""

    differences: tuple[str, ...]
    """In words; empty when ledger and leases agree."""
    job_count: int
    lease_count: int
    billed_seconds: int
    charged_micros: int


async def prove(conn: Connection, tenant: str, leases: Sequence[Lease]) -> Proof:
    """Compare all that a tenant has; ``leases`` are those of the allocator."""
    listed = [_row(lease) for lease in leases]
    found = list(await conn.fetch(PROOF["lease_differences"], tenant, listed))
    for name in _OF_TENANT:
        found += await conn.fetch(PROOF[name], tenant)
    counts = await conn.fetchrow(PROOF["proven"], tenant)
    if counts is None:
        raise RuntimeError("the proof has no counts")
    return Proof(differences=tuple(row[0] for row in found), **counts)


def _row(lease: Lease) -> dict[str, Any]:
    values = {name: getattr(lease, name) for name in _COMPARED}
    return {
        name: value.isoformat() if hasattr(value, "isoformat") else value
        for name, value in values.items()
    }
