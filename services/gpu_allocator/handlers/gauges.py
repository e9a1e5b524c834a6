"""Shows operators what is there: leases by phase, GPUs by use, nodes by state."""

from collections import Counter
from datetime import timedelta

from lehr.logs import metrics
from lehr.postgres import Database
from services.gpu_allocator.domain.gpu import GpuState
from services.gpu_allocator.domain.lease import LeasePhase
from services.gpu_allocator.handlers.nodes import list_nodes
from services.gpu_allocator.storage import leases


async def measure(*, db: Database, live: timedelta) -> None:
    """Set the gauges; a phase or state that nobody is in shows 0."""
    async with db.connection() as conn:
        phases = Counter(lease.phase for lease in await leases.still_open(conn))
    views = await list_nodes(db=db, live=live)
    for phase in set(LeasePhase) - {LeasePhase.CLOSED}:
        metrics.put("leases", phases[phase], phase=phase)
    live_count = sum(view.is_live for view in views)
    metrics.put("nodes", live_count, state="live")
    metrics.put("nodes", len(views) - live_count, state="silent")
    uses = Counter((gpu.tier, gpu.state) for view in views for gpu in view.gpus)
    for tier in {tier for tier, _ in uses}:
        for state in GpuState:
            metrics.put("gpus", uses[tier, state], tier=tier, use=state)
