"""One claimed entry, as those see it who work on it."""

from dataclasses import dataclass, field, replace

from services.catalog.domain.entries import Entry, Progress
from services.catalog.domain.errors import ClaimLost
from services.catalog.storage.claims import Claim


@dataclass(slots=True, kw_only=True)
class Work:
    """A claim, how far the work is, and whether it still may go on; any thread may ask and tell."""

    claim: Claim
    entry: Entry | None = None
    """As it was when the work began."""
    progress: Progress = field(default_factory=Progress)
    is_over: bool = False
    """The claim is lost, or the process stops."""

    @property
    def worker(self) -> str:
        """Under this name the entry is changed."""
        return self.claim.worker

    def tell(
        self,
        *,
        done_bytes: int | None = None,
        total_bytes: int | None = None,
        row_count: int | None = None,
    ) -> None:
        """Say how far the work is; call it often, for it also ends work that is void.

        Raises:
            ClaimLost: the work must not go on.
        """
        if self.is_over:
            raise ClaimLost(self.claim.entry_id)
        news = {"done_bytes": done_bytes, "total_bytes": total_bytes, "row_count": row_count}
        known = {name: value for name, value in news.items() if value is not None}
        self.progress = replace(self.progress, **known)

    def went_through(self, count: int) -> None:
        """Say that more bytes went through.

        Raises:
            ClaimLost: the work must not go on.
        """
        self.tell(done_bytes=self.progress.done_bytes + count)
