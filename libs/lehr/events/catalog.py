"""Facts about models and datasets, said by the catalog."""

from __future__ import annotations

from typing import ClassVar

from lehr.events.base import Event


class ModelAdded(Event):
    """A model is there at an immutable revision."""

    NOUN: ClassVar[str] = "model"
    PAST: ClassVar[str] = "added"

    model_id: str
    name: str
    revision: str

    @property
    def subject_id(self) -> str:
        """The model."""
        return self.model_id


class DatasetAdded(Event):
    """A dataset is there at an immutable revision, with every row checked."""

    NOUN: ClassVar[str] = "dataset"
    PAST: ClassVar[str] = "added"

    dataset_id: str
    name: str
    revision: str
    row_count: int

    @property
    def subject_id(self) -> str:
        """The dataset."""
        return self.dataset_id
