"""What the catalog refuses, by name."""

from lehr.errors import FailedPrecondition, FieldViolation, InvalidArgument, NotFound


class ModelNotFound(NotFound):
    """The project has no such model."""

    reason = "MODEL_NOT_FOUND"

    def __init__(self, model: str) -> None:
        super().__init__(f"there is no model {model}; see `lehr models list`", model=model)


class DatasetNotFound(NotFound):
    """The project has no such dataset."""

    reason = "DATASET_NOT_FOUND"

    def __init__(self, dataset: str) -> None:
        super().__init__(
            f"there is no dataset {dataset}; see `lehr datasets list`", dataset=dataset
        )


class ModelRefused(InvalidArgument):
    """The files are no model that is safe to use."""

    reason = "MODEL_REFUSED"

    def __init__(self, field: str, description: str) -> None:
        super().__init__(
            f"{field}: {description}",
            fields=[FieldViolation(field=field, description=description)],
        )


class UploadRefused(InvalidArgument):
    """What is announced cannot be taken."""

    reason = "UPLOAD_REFUSED"

    def __init__(self, field: str, description: str) -> None:
        super().__init__(
            f"{field}: {description}",
            fields=[FieldViolation(field=field, description=description)],
        )


class ContentChanged(FailedPrecondition):
    """What is stored is no longer what was committed."""

    reason = "CONTENT_CHANGED"

    def __init__(self, name: str) -> None:
        super().__init__(
            f"{name} was overwritten after its commit; upload it under another name", file=name
        )


class UploadIncomplete(FailedPrecondition):
    """A file is missing or is not the one that was announced; upload it again."""

    reason = "UPLOAD_INCOMPLETE"

    def __init__(self, name: str, why: str) -> None:
        super().__init__(f"{name} {why}; upload it again, then commit", file=name)
