"""What may be announced: names, files, references, and what a revision depends on."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.catalog.domain.announcing import (
    ENTRY_BYTES_MAX,
    FILE_BYTES_MAX,
    check_columns,
    check_dataset_files,
    check_file,
    check_model_files,
)
from services.catalog.domain.entries import (
    MOVES,
    TOLD,
    WORKED_ON,
    Dataset,
    EntryState,
    File,
    Model,
    Reference,
    check_name,
    dataset_revision,
    model_revision,
)
from services.catalog.domain.errors import UploadRefused

DIGEST = "a" * 64
ID = "ds_" + "0" * 26


def a_file(name: str = "config.json", *, size_bytes: int = 3, sha256: str = DIGEST) -> File:
    """Return an announced file."""
    return File(name=name, size_bytes=size_bytes, sha256=sha256)


def model_files(*more: str) -> list[File]:
    """Return the least that is a model, and more."""
    return [a_file(name) for name in ("model.safetensors", "config.json", "tokenizer.json", *more)]


@pytest.mark.parametrize("name", ["a", "smollm2-135m", "a.b_c-1", "0", "a" * 63])
def test_a_good_name_is_taken_as_it_is(name: str) -> None:
    assert check_name(name) == name


@pytest.mark.parametrize(
    "name", ["", "-a", ".a", "A", "a b", "a/b", "a@b", "a" * 64, "a\n", "a\0", "\xe4", "../x"]
)
def test_a_bad_name_is_refused_with_the_rule(name: str) -> None:
    with pytest.raises(UploadRefused, match="lower-case") as refusal:
        check_name(name)

    assert refusal.value.fields[0].field == "name"


@pytest.mark.parametrize(
    "name", ["", ".", "..", ".hidden", "a/b", "a\\b", "a\n", "a\0", "x" * 129, "a b"]
)
def test_a_file_name_that_is_a_path_or_odd_is_refused(name: str) -> None:
    with pytest.raises(UploadRefused, match=r"file\.name"):
        check_file(a_file(name))


@pytest.mark.parametrize("size_bytes", [-1, 0, FILE_BYTES_MAX + 1])
def test_a_size_that_no_file_has_is_refused(size_bytes: int) -> None:
    with pytest.raises(UploadRefused, match=f"{size_bytes} bytes"):
        check_file(a_file(size_bytes=size_bytes))


@pytest.mark.parametrize("size_bytes", [1, FILE_BYTES_MAX])
def test_the_smallest_and_the_largest_file_are_taken(size_bytes: int) -> None:
    assert check_file(a_file(size_bytes=size_bytes)).size_bytes == size_bytes


@pytest.mark.parametrize("sha256", ["", "a" * 63, "a" * 65, "A" * 64, "g" * 64, "a" * 64 + "\n"])
def test_a_digest_that_is_none_is_refused(sha256: str) -> None:
    with pytest.raises(UploadRefused, match="SHA-256"):
        check_file(a_file(sha256=sha256))


def test_the_files_of_a_model_are_sorted_by_name() -> None:
    names = [file.name for file in check_model_files(model_files("README.md"))]

    assert names == ["README.md", "config.json", "model.safetensors", "tokenizer.json"]


@pytest.mark.parametrize("missing", ["config.json", "tokenizer.json"])
def test_a_model_without_a_needed_file_is_refused_by_its_name(missing: str) -> None:
    files = [file for file in model_files() if file.name != missing]

    with pytest.raises(UploadRefused, match=missing):
        check_model_files(files)


def test_a_model_without_weights_is_refused() -> None:
    with pytest.raises(UploadRefused, match="no weights"):
        check_model_files([a_file("config.json"), a_file("tokenizer.json")])


@pytest.mark.parametrize(
    "name",
    ["pytorch_model.bin", "model.pt", "x.pth", "x.pkl", "x.ckpt", "modeling.py", "LICENSE", "x.so"],
)
def test_a_file_that_could_run_code_is_refused_by_its_name(name: str) -> None:
    with pytest.raises(UploadRefused, match=name):
        check_model_files(model_files(name))


def test_two_files_of_one_name_are_refused() -> None:
    with pytest.raises(UploadRefused, match="different names"):
        check_model_files(model_files("config.json"))


@pytest.mark.parametrize("count", [0, 501])
def test_no_files_and_too_many_are_refused(count: int) -> None:
    with pytest.raises(UploadRefused, match="1 to 500"):
        check_model_files([a_file(f"{at}.json") for at in range(count)])


@given(
    st.lists(
        st.tuples(
            st.text("abc.", min_size=1, max_size=4), st.text("0123456789abcdef", min_size=64)
        ),
        min_size=2,
        max_size=4,
        unique_by=lambda pair: pair[0],
    )
)
def test_another_name_or_digest_is_another_revision(pairs: list[tuple[str, str]]) -> None:
    files = [a_file(name, sha256=digest[:64]) for name, digest in pairs]
    swapped = [a_file(files[0].name + "x", sha256=files[0].sha256), *files[1:]]
    altered = [a_file(files[0].name, sha256="f" * 63 + "e"), *files[1:]]

    assert len({model_revision(files), model_revision(swapped), model_revision(altered)}) == 3


def test_the_same_files_are_the_same_revision_whatever_their_order() -> None:
    forth = check_model_files(model_files())
    back = check_model_files(model_files()[::-1])

    assert model_revision(forth) == model_revision(back)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("qa", Reference(name="qa")),
        ("qa@" + "0" * 12, Reference(name="qa", revision_prefix="0" * 12)),
        (f"qa@{DIGEST}", Reference(name="qa", revision_prefix=DIGEST)),
        (ID, Reference(entry_id=ID)),
        ("ds_mine", Reference(name="ds_mine")),
    ],
)
def test_a_reference_is_an_id_a_name_or_a_name_at_a_revision(text: str, wanted: Reference) -> None:
    assert Reference.parse(text, Dataset, field="dataset") == wanted


@pytest.mark.parametrize(
    "text", ["", "qa@", "qa@abc", "qa@" + "G" * 12, "qa@" + "a" * 65, "ds_\0", "ds_/../x", "a b"]
)
def test_a_reference_that_is_none_names_its_field(text: str) -> None:
    with pytest.raises(UploadRefused) as refusal:
        Reference.parse(text, Dataset, field="data.validation_dataset")

    assert refusal.value.fields[0].field == "data.validation_dataset"


def a_dataset(tenant: str = "a", **more: Any) -> Dataset:
    """Return a dataset of one file."""
    fields = {"project": "p", "name": "n", "revision": DIGEST, "files": (a_file(),), **more}
    return Dataset(dataset_id=ID, tenant=tenant, **fields)


def test_objects_of_tenants_lie_apart() -> None:
    model = Model(
        model_id="m",
        tenant="a",
        project="p",
        name="n",
        revision="r",
        files=(a_file(), a_file("x.json")),
    )

    assert a_dataset("a").key("x") != a_dataset("b").key("x")
    assert model.key("x").startswith("models/a/")
    assert model.size_bytes == 6


def test_no_file_lies_where_an_address_for_uploads_leads() -> None:
    dataset = a_dataset()
    written = dataset.written_key(a_file("rows.jsonl.zst"))

    for key in (dataset.key("config.json"), written):
        assert key.startswith(dataset.prefix)
        assert not key.startswith(dataset.uploads_prefix)


def test_another_content_is_written_to_another_place() -> None:
    first, second = (a_file("rows", sha256=digit * 64) for digit in "ab")

    assert a_dataset().written_key(first) != a_dataset().written_key(second)


def test_one_file_without_a_map_has_its_own_digest_as_revision() -> None:
    assert dataset_revision([a_file(sha256="b" * 64)], {}) == "b" * 64


def test_files_and_map_are_what_a_dataset_is() -> None:
    one, two = a_file("a.jsonl"), a_file("b.jsonl")
    columns = {"prompt": "q", "completion": "a"}
    revisions = [
        dataset_revision([one], {}),
        dataset_revision([one, two], {}),
        dataset_revision([one], columns),
        dataset_revision([two], columns),
        dataset_revision([one], {"prompt": "q"}),
        dataset_revision([one, two], columns),
    ]

    assert len(set(revisions)) == len(revisions)
    assert dataset_revision([one], dict(reversed(columns.items()))) == revisions[2]


@pytest.mark.parametrize(
    "name",
    ["a.jsonl", "A.JSONL", "a.csv.gz", "a.parquet", "a.json.zst", "a.arrow.zip", "a.zip", "a.tsv"],
)
def test_a_kind_of_file_that_holds_rows_is_taken(name: str) -> None:
    assert check_dataset_files([a_file(name)])


@pytest.mark.parametrize("name", ["a.txt", "a.gz", "a", "a.csv.bz2", "a.xlsx", "zip", "jsonl"])
def test_a_kind_of_file_that_holds_no_rows_is_refused(name: str) -> None:
    with pytest.raises(UploadRefused, match="jsonl"):
        check_dataset_files([a_file(name)])


def test_more_than_an_answer_can_list_is_refused() -> None:
    count = ENTRY_BYTES_MAX // FILE_BYTES_MAX + 1
    files = [a_file(f"{at}.jsonl", size_bytes=FILE_BYTES_MAX) for at in range(count)]

    with pytest.raises(UploadRefused, match="bytes in all"):
        check_dataset_files(files)
    assert check_dataset_files(files[:-1])


def test_a_column_map_is_kept_in_one_order() -> None:
    assert list(check_columns({"prompt": "q", "answer": "a"})) == ["answer", "prompt"]


@pytest.mark.parametrize(
    "columns",
    [{"x": "y"}, {"prompt": ""}, {"prompt": "a" * 201}, {"text": "a", "answer": "a"}],
)
def test_a_column_map_that_is_none_is_refused(columns: dict[str, str]) -> None:
    with pytest.raises(UploadRefused, match="columns"):
        check_columns(columns)


def test_what_is_ready_never_changes_again() -> None:
    assert MOVES[EntryState.READY] == frozenset()


def test_every_state_is_reached_and_what_is_worked_on_ends() -> None:
    reached = {state for targets in MOVES.values() for state in targets}

    assert set(MOVES) == set(EntryState) == reached
    assert all(MOVES[state] - {state} for state in WORKED_ON)
    assert not WORKED_ON & TOLD
