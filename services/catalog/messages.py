"""Entries of the catalog <-> messages."""

from collections.abc import Sequence

import numpy as np
from google.protobuf.timestamp_pb2 import Timestamp

from lehr.api.catalog.v1 import catalog_pb2 as pb
from lehr.api.common.v1.common_pb2 import FileLink
from lehr.samples.length import Recommendation
from services.catalog.domain.entries import Dataset, File, Model
from services.catalog.handlers.training import Preview, Resolved
from services.catalog.handlers.uploads import Link

PERCENTILES = (50, 75, 90, 95, 99, 100)
BINS = 20


def file_from(message: FileLink) -> File:
    """Read an announced file."""
    return File(name=message.name, size_bytes=message.size_bytes, sha256=message.sha256)


def file_link(file: File, url: str = "") -> FileLink:
    """Write a file, with an address where there is one."""
    return FileLink(name=file.name, size_bytes=file.size_bytes, sha256=file.sha256, url=url)


def links(found: Sequence[Link]) -> list[FileLink]:
    """Write files with their addresses."""
    return [file_link(one.file, one.url) for one in found]


def model(found: Model) -> pb.Model:
    """Write a model."""
    return pb.Model(
        model_id=found.model_id,
        name=found.name,
        revision=found.revision,
        model_type=found.model_type,
        parameter_count=found.parameter_count,
        context_length=found.context_length,
        size_bytes=found.size_bytes,
        license=found.license,
        create_time=_timestamp(found),
        files=[file_link(file) for file in found.files],
    )


def dataset(found: Dataset) -> pb.Dataset:
    """Write a dataset with its report."""
    return pb.Dataset(
        dataset_id=found.dataset_id,
        name=found.name,
        revision=found.revision,
        row_kind=found.row_kind,
        row_count=found.row_count,
        distinct_count=found.distinct_count,
        size_bytes=found.file.size_bytes,
        problems=[
            pb.RowProblem(
                reason=one.reason,
                description=one.description,
                row_count=one.row_count,
                lines=one.lines,
                is_error=one.is_error,
            )
            for one in found.problems
        ],
        create_time=_timestamp(found),
    )


def length_facts(lengths: Sequence[int], advice: Recommendation) -> pb.LengthFacts:
    """Write token lengths; a percentile is the length of the row at that rank, never between."""
    counts, edges = np.histogram(lengths, bins=BINS, range=(0, max(lengths)))
    ranks = np.percentile(lengths, PERCENTILES, method="inverted_cdf")
    return pb.LengthFacts(
        row_count=len(lengths),
        longest_tokens=max(lengths),
        percentiles={
            percent: int(tokens) for percent, tokens in zip(PERCENTILES, ranks, strict=True)
        },
        bin_bounds=[int(np.ceil(edge)) for edge in edges[1:]],
        bin_counts=[int(count) for count in counts],
        recommended_max_length=advice.max_length,
        warnings=[advice.warning] if advice.warning else [],
    )


def preview(found: Preview) -> pb.SamplePreview:
    """Write a row as it is trained."""
    return pb.SamplePreview(
        line=found.line,
        text=found.text,
        token_ids=found.sample.token_ids,
        trained=[byte == 1 for byte in found.sample.trained],
        tokens=found.tokens,
        token_count=len(found.whole),
        outcome=found.outcome,
        trained_count=found.sample.trained_tokens,
    )


def resolved(found: Resolved) -> pb.ResolveTrainingResponse:
    """Write what a job will train on."""
    train, validation = found.facts.train, found.facts.validation
    answer = pb.ResolveTrainingResponse(
        model=model(found.model),
        dataset=dataset(found.dataset),
        max_length=found.facts.max_length,
        train_count=train.samples,
        validation_count=validation.samples,
        longest_tokens=max(train.longest, validation.longest),
        truncated_count=sum(side.affected - side.dropped for side in (train, validation)),
        dropped_count=train.dropped + validation.dropped,
        untrainable_count=train.untrainable + validation.untrainable,
        token_count=train.tokens,
        trained_token_count=train.trained_tokens,
    )
    if found.validation_dataset is not None:
        answer.validation_dataset.CopyFrom(dataset(found.validation_dataset))
    return answer


def _timestamp(entry: Model | Dataset) -> Timestamp | None:
    if entry.create_time is None:
        return None
    stamp = Timestamp()
    stamp.FromDatetime(entry.create_time)
    return stamp
