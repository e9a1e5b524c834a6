"""How long an agent waits for what, in seconds."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Plain values of the settings of the same names."""

    sync_interval: float = 2.0
    unconfirmed_after: float = 20.0
    unconfirmed_cap: float = 900.0
    stop_grace: float = 120.0
    kill_after: float = 10.0
    stuck_after: float = 60.0
    shutdown_grace: float = 10.0
    stall_timeout: float = 240.0
    prepare_limit: float = 300.0
    drain_limit: float = 86_400.0
    salvage_limit: float = 60.0
