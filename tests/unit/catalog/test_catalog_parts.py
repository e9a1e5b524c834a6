"""Parts of files: together they are the file, and what is missing is told exactly."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.catalog.domain.entries import Dataset, File
from services.catalog.domain.errors import UploadRefused
from services.catalog.domain.parts import PART_BYTES, missing_parts, part_of, parts_of


def a_dataset(*sizes: int) -> Dataset:
    """Return a dataset with files of these sizes."""
    files = tuple(
        File(name=f"{at}.jsonl", size_bytes=size, sha256="a" * 64) for at, size in enumerate(sizes)
    )
    return Dataset(
        dataset_id="ds_1", tenant="t", project="p", name="n", revision="a" * 64, files=files
    )


@given(st.integers(1, 10_000), st.integers(1, 700))
def test_parts_follow_each_other_and_are_the_whole_file(size: int, part_bytes: int) -> None:
    dataset = a_dataset(size)

    parts = list(parts_of(dataset, dataset.files[0], part_bytes))

    ends = [part.offset_bytes + part.size_bytes for part in parts]
    assert [part.offset_bytes for part in parts] == [0, *ends[:-1]]
    assert ends[-1] == size
    assert [part.number for part in parts] == list(range(len(parts)))
    assert {part.size_bytes for part in parts[:-1]} <= {part_bytes}
    assert len({part.key for part in parts}) == len(parts)


def test_a_part_has_64_mebibytes() -> None:
    dataset = a_dataset(2 * PART_BYTES + 1)

    sizes = [part.size_bytes for part in parts_of(dataset, dataset.files[0], PART_BYTES)]

    assert sizes == [64 * 2**20, 64 * 2**20, 1]


def test_parts_of_two_files_lie_apart() -> None:
    dataset = a_dataset(10, 10)

    keys = [part.key for file in dataset.files for part in parts_of(dataset, file, 4)]

    assert keys[0] == "uploads/t/ds_1/0/0"
    assert keys[-1] == "uploads/t/ds_1/1/2"
    assert len(set(keys)) == 6


def test_what_is_not_there_or_has_another_size_is_missing() -> None:
    dataset = a_dataset(10, 4)
    arrived = {"uploads/t/ds_1/0/0": 4, "uploads/t/ds_1/0/1": 3, "uploads/t/ds_1/1/0": 4}

    missing = missing_parts(dataset, arrived, 4)

    assert [(file.name, [part.number for part in parts]) for file, parts in missing.items()] == [
        ("0.jsonl", [1, 2])
    ]


@pytest.mark.parametrize(
    ("name", "number", "words"), [("0.jsonl", 3, "no such part"), ("x", 0, "not announced")]
)
def test_a_part_that_was_not_announced_is_refused(name: str, number: int, words: str) -> None:
    with pytest.raises(UploadRefused, match=words):
        part_of(a_dataset(10), name, number, 4)


def test_a_part_is_found_by_its_number() -> None:
    part = part_of(a_dataset(10), "0.jsonl", 2, 4)

    assert (part.offset_bytes, part.size_bytes) == (8, 2)
