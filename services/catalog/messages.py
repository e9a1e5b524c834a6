"""Entries of the catalog <-> messages."""

from collections.abc import Sequence

import numpy as np
from google.protobuf.json_format import ParseDict
from google.protobuf.timestamp_pb2 import Timestamp

from lehr.api.catalog.v1 import catalog_pb2 as pb
from lehr.api.catalog.v1.facts_pb2 import ModelFacts, Progress, Source
from lehr.api.catalog.v1.hub_pb2 import Credential
from lehr.api.catalog.v1.upload_pb2 import PartLink, UploadFile
from lehr.api.common.v1.common_pb2 import FileLink
from lehr.samples.prepare import warnings_of
from services.catalog.domain.entries import (
    WORKED_ON,
    Dataset,
    Entry,
    EntryState,
    File,
    Model,
    RowProblem,
)
from services.catalog.handlers.shelves import Link
from services.catalog.handlers.training import Lengths, Resolved
from services.catalog.handlers.uploads import Missing
from services.catalog.storage.imports import StoredCredential
from services.catalog.tokens.looking import Preview

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


def upload_files(missing: Missing) -> list[UploadFile]:
    """Write what is missing of an upload, and where it goes."""
    return [
        UploadFile(
            file=file_link(file),
            missing_parts=[
                PartLink(
                    number=one.part.number,
                    offset_bytes=one.part.offset_bytes,
                    size_bytes=one.part.size_bytes,
                    url=one.url,
                )
                for one in parts
            ],
        )
        for file, parts in missing.items()
    ]


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
        state=_state(found),
        source=_source(found),
        license_acknowledged_by=found.acknowledged_by,
        facts=ParseDict(dict(found.facts), ModelFacts(), ignore_unknown_fields=True),
        refusal=found.refusal if found.state is EntryState.REFUSED else found.waits_for,
        progress=_progress(found),
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
        size_bytes=found.size_bytes,
        problems=[
            pb.RowProblem(
                reason=one.reason,
                description=one.description,
                row_count=one.row_count,
                lines=one.lines,
                is_error=one.is_error,
                file=one.file,
            )
            for one in (*found.problems, *_waiting(found))
        ],
        create_time=_timestamp(found),
        state=_state(found),
        files=[file_link(file) for file in found.files],
        columns=found.columns,
        license=found.license,
        source=_source(found),
        license_acknowledged_by=found.acknowledged_by,
        progress=_progress(found),
        image_row_count=found.image_row_count,
        layouts=found.layouts,
    )


def _waiting(found: Dataset) -> list[RowProblem]:
    if not found.waits_for:
        return []
    told = RowProblem(
        reason="PUT_OFF", description=found.waits_for, row_count=0, lines=(), is_error=False
    )
    return [told]


def length_facts(found: Lengths) -> pb.LengthFacts:
    """Write token lengths; a percentile is the length of the row at that rank, never between."""
    tokens, longest = found.tokens, found.advice.longest
    counts, edges = np.histogram(tokens, bins=BINS, range=(0, max(longest, 1)))
    ranks = np.percentile(tokens, PERCENTILES, method="inverted_cdf")
    return pb.LengthFacts(
        row_count=len(tokens),
        longest_tokens=longest,
        percentiles={
            percent: int(length) for percent, length in zip(PERCENTILES, ranks, strict=True)
        },
        bin_bounds=[int(np.ceil(edge)) for edge in edges[1:]],
        bin_counts=[int(count) for count in counts],
        recommended_max_length=found.advice.max_length,
        warnings=[found.advice.warning] if found.advice.warning else [],
        image_row_count=found.image_row_count,
        max_length=found.max_length,
        overlong_count=found.drop.affected,
        untrainable_count_truncate=found.truncate.untrainable,
        untrainable_count_drop=found.drop.untrainable,
        used_count_truncate=found.truncate.samples,
        used_count_drop=found.drop.samples,
    )


def preview(found: Preview) -> pb.SamplePreview:
    """Write a row as it is trained."""
    return pb.SamplePreview(
        line=found.line,
        file=found.file,
        text=found.text,
        side=found.side,
        token_ids=found.sample.token_ids.tolist(),
        trained=(found.sample.trained > 0).tolist(),
        tokens=found.tokens,
        token_count=found.token_count,
        outcome=found.outcome,
        trained_count=found.sample.trained_count,
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
        warnings=list(warnings_of(found.facts)),
        leaked_count=found.facts.leaks.rows,
        packed_row_count=found.facts.packed_rows,
    )
    if found.validation_dataset is not None:
        answer.validation_dataset.CopyFrom(dataset(found.validation_dataset))
    return answer


def credential(found: StoredCredential) -> Credential:
    """Write the name of a secret."""
    written = Credential(name=found.name, kind=found.kind)
    written.create_time.FromDatetime(found.create_time)
    return written


def _state(entry: Entry) -> pb.EntryState.ValueType:
    return pb.EntryState.Value(f"ENTRY_STATE_{entry.state}")


def _source(entry: Entry) -> Source:
    found = entry.source
    return Source(kind=found.kind, origin=found.origin, commit=found.commit)


def _progress(entry: Entry) -> Progress | None:
    if entry.state not in WORKED_ON:
        return None
    found = entry.progress
    return Progress(
        done_bytes=found.done_bytes, total_bytes=found.total_bytes, row_count=found.row_count
    )


def _timestamp(entry: Entry) -> Timestamp | None:
    if entry.create_time is None:
        return None
    stamp = Timestamp()
    stamp.FromDatetime(entry.create_time)
    return stamp
