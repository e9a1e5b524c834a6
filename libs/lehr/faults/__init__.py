"""Named points where a test may break a real process; nothing happens unless test hooks are on."""

from lehr.faults.hits import FaultInjected, hit, hit_sync, name_process
from lehr.faults.names import FAULTS
from lehr.faults.plan import Fault, arm, disarm, fired

__all__ = [
    "FAULTS",
    "Fault",
    "FaultInjected",
    "arm",
    "disarm",
    "fired",
    "hit",
    "hit_sync",
    "name_process",
]
