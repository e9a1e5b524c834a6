"""Where imports come from, and how much may come."""

from dataclasses import dataclass
from datetime import timedelta

from services.catalog.hub.calling import Hub
from services.catalog.vault import Vault


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """What imports need beside the shelves."""

    hub: Hub
    vault: Vault
    bytes_max: int
    """Largest sum of the files of one import."""
    time_limit: timedelta
    """How long one import may take."""
    first_wait: timedelta = timedelta(seconds=5)
    """Before a source that is away is asked again; later waits are longer."""
    allow_pickle: frozenset[str] = frozenset()
    """Versions, ``repo@commit``, whose weights may be pickles."""
