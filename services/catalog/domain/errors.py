"""What the catalog refuses, by name."""

from datetime import timedelta

from lehr.errors import (
    Aborted,
    FailedPrecondition,
    FieldViolation,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    Unavailable,
)


class EntryNotFound(NotFound):
    """The project has no such model or dataset."""

    noun: str

    def __init__(self, name: str) -> None:
        super().__init__(f"there is no {self.noun} {name}; see `lehr {self.noun}s list`")
        self.facts[self.noun] = name


class ModelNotFound(EntryNotFound):
    """The project has no such model."""

    reason = "MODEL_NOT_FOUND"
    noun = "model"


class DatasetNotFound(EntryNotFound):
    """The project has no such dataset."""

    reason = "DATASET_NOT_FOUND"
    noun = "dataset"


class ModelRefused(InvalidArgument):
    """The files are no model that is safe to use."""

    reason = "MODEL_REFUSED"

    def __init__(self, field: str, description: str) -> None:
        super().__init__(
            f"{field}: {description}",
            fields=[FieldViolation(field=field, description=description)],
            field=field,
        )


class UploadRefused(InvalidArgument):
    """What is announced cannot be taken."""

    reason = "UPLOAD_REFUSED"

    def __init__(self, field: str, description: str) -> None:
        super().__init__(
            f"{field}: {description}",
            fields=[FieldViolation(field=field, description=description)],
            field=field,
        )


class LicenseNotAcknowledged(InvalidArgument):
    """Somebody must answer for a licence that is unknown or not free, and nobody does."""

    reason = "LICENSE_NOT_ACKNOWLEDGED"

    def __init__(self, license_text: str, concern: str) -> None:
        description = (
            f"{license_text!r} {concern}; read it, and if you may use this, say so with"
            " acknowledge_license (--acknowledge-license)"
        )
        super().__init__(
            f"license: {description}",
            fields=[FieldViolation(field="license", description=description)],
            license=license_text,
        )


class ContentChanged(FailedPrecondition):
    """What is stored is no longer what was committed."""

    reason = "CONTENT_CHANGED"

    def __init__(self, name: str) -> None:
        super().__init__(
            f"{name} is no longer what was committed: somebody changed the object store;"
            " delete the entry and upload it again",
            file=name,
        )


class UploadIncomplete(FailedPrecondition):
    """A file is missing or is not the one that was announced; upload it again."""

    reason = "UPLOAD_INCOMPLETE"

    def __init__(self, name: str, why: str) -> None:
        super().__init__(f"{name} {why}; upload it again, then commit", file=name)

    @classmethod
    def told(cls, refusal: str) -> "UploadIncomplete":
        """Return why an upload must be sent again; the file's name is the first word of that."""
        name, _, why = refusal.partition(" ")
        return cls(name, why)


class EntryBeingRemoved(Unavailable):
    """What was deleted a moment ago still has bytes; it cannot be added again yet."""

    reason = "ENTRY_BEING_REMOVED"
    retry_in = timedelta(seconds=2)

    def __init__(self, entry_id: str) -> None:
        super().__init__(
            f"{entry_id} was deleted, and its bytes are still being removed; ask again in a moment",
            entry_id=entry_id,
        )


class UploadClosed(FailedPrecondition):
    """Parts are no longer awaited."""

    reason = "UPLOAD_CLOSED"

    def __init__(self, entry_id: str, state: str) -> None:
        super().__init__(
            f"{entry_id} is {state} and awaits no parts; add it again to see what is missing",
            entry_id=entry_id,
            state=state,
        )


class ClaimLost(Aborted):
    """Another worker has taken the entry over, or it was deleted: what was done here is void."""

    reason = "CLAIM_LOST"

    def __init__(self, entry_id: str) -> None:
        super().__init__(f"{entry_id} was taken over or deleted meanwhile", entry_id=entry_id)


class RowsForServicesOnly(PermissionDenied):
    """Canonical rows are an inner format."""

    reason = "ROWS_FOR_SERVICES_ONLY"

    def __init__(self) -> None:
        super().__init__("rows_of is for services; ask for the dataset as it was uploaded")
