"""Every command: it explains itself, fails in words, and speaks strict JSON where asked."""

import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest
import typer
from typer.testing import CliRunner

from lehr.api.billing.v1 import billing_pb2
from lehr.api.catalog.v1 import catalog_pb2
from lehr.api.gpu_allocator.v1 import gpu_allocator_pb2
from lehr.cli import app, output
from lehr.errors import InvalidArgument
from tests.unit.cli.answers import ANSWERS, CALLS, DATASET, ODD, STACK_CALLS, STREAMED


def _commands(group: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    yield path
    for name, command in getattr(group, "commands", {}).items():
        yield from _commands(command, (*path, name))


COMMANDS = [path for path in _commands(typer.main.get_command(app)) if path]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with a job, rows and a model, and no stack."""
    for name in ("LEHR_API_ADDRESS", "LEHR_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("LEHR_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.yaml").write_text("name: tune\nmodel: smol\ndataset: qa\n")
    (tmp_path / "rows.jsonl").write_text("{}\n")
    (tmp_path / "model").mkdir()
    return tmp_path


def lehr(command: str) -> Any:
    """Run a command; an exception that is no exit fails the test."""
    return CliRunner().invoke(app, command.split(), catch_exceptions=False)


@pytest.mark.parametrize("path", [(), *COMMANDS], ids=" ".join)
def test_a_command_explains_itself(path: tuple[str, ...]) -> None:
    told = lehr(" ".join((*path, "--help")))

    assert told.exit_code == 0
    assert "Usage" in told.output


def test_no_command_is_left_out_here() -> None:
    groups = {path[0] for path in COMMANDS if len(path) == 2}
    leaves = {path for path in COMMANDS if len(path) == 2 or path[0] not in groups}
    called = {tuple(call.split()[: 2 if call.split()[0] in groups else 1]) for call in CALLS}

    assert leaves == called | {(name,) for name in STACK_CALLS}


@pytest.mark.parametrize("call", CALLS)
def test_without_a_stack_a_command_says_what_to_do(call: str) -> None:
    told = lehr(call)

    assert told.exit_code == 1
    assert told.stdout == ""
    assert told.stderr.startswith("error NOT_CONNECTED no stack runs here")
    assert "lehr up" in told.stderr


@pytest.mark.parametrize("call", ["status", "status --json", "logs", "down", "down --json"])
def test_a_stack_that_is_not_there_is_no_error(call: str) -> None:
    assert lehr(call).exit_code == 0


def test_the_log_of_a_part_that_never_ran_is_refused_in_words() -> None:
    told = lehr("logs scheduler")

    assert told.exit_code == 1
    assert "scheduler" in told.stderr


@pytest.mark.parametrize(
    ("call", "words"),
    [
        ("jobs create job.yaml", "--max-cost"),
        ("jobs create --max-cost 5EUR", "give the job's file or --plan"),
        ("jobs create job.yaml --plan x --max-cost 5EUR", "one of them"),
        ("jobs create job.yaml --max-cost 5EUR --max-duration soon", "write 90s"),
        ("jobs resume job_1 --max-cost 5EUR", "or neither"),
        ("datasets upload rows.jsonl --name qa --column prompt", "canonical=theirs"),
        ("datasets upload rows.jsonl --name qa --column text=a --column text=b", "each field once"),
        ("billing top-up 5EUROS", "amount and currency"),
        ("billing top-up 0EUR", "above zero"),
    ],
)
def test_options_that_are_wrong_are_refused_before_anything_is_called(
    call: str, words: str
) -> None:
    told = lehr(call)

    assert told.exit_code == 1
    assert words in told.stderr


def _answering(value: Any) -> Any:
    async def call(*args: Any, **kwargs: Any) -> Any:
        if isinstance(value, Exception):
            raise value
        return value

    return call


def _streaming(value: Any) -> Any:
    async def call(*args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        yield value
        yield value

    return call


class Fake:
    """A client of a platform that has one of everything."""

    def __init__(self) -> None:
        for group, answers in ANSWERS.items():
            streams = {name: _streaming(one) for name, one in STREAMED.get(group, {}).items()}
            methods = {name: _answering(one) for name, one in answers.items()} | streams
            setattr(self, group, SimpleNamespace(**methods))

    async def __aenter__(self) -> "Fake":
        return self

    async def __aexit__(self, *_: object) -> None:
        return None


@pytest.fixture
def connected(monkeypatch: pytest.MonkeyPatch) -> Fake:
    """Let commands talk to a fake platform: this is about their words, not about calls."""
    fake = Fake()
    monkeypatch.setattr(output, "AsyncClient", lambda: fake)
    return fake


STREAMS = ("jobs watch", "jobs logs", "events tail")


@pytest.mark.usefixtures("connected")
@pytest.mark.parametrize("call", CALLS)
def test_json_is_strict_and_alone_on_standard_output(call: str) -> None:
    told = lehr(f"{call} --json")

    assert told.exit_code == 0
    texts = told.stdout.splitlines() if call.startswith(STREAMS) else [told.stdout]
    assert [type(json.loads(text, parse_constant=pytest.fail)) for text in texts]


@pytest.mark.usefixtures("connected")
@pytest.mark.parametrize("call", CALLS)
def test_text_of_users_is_shown_to_the_letter_and_crashes_nothing(call: str) -> None:
    told = lehr(call)

    assert told.exit_code == 0
    assert "\N{WARNING SIGN}" not in told.stdout


@pytest.mark.usefixtures("connected")
def test_watching_a_new_job_leaves_standard_output_to_the_json() -> None:
    told = lehr("jobs create job.yaml --max-cost 5EUR --watch --json")

    assert json.loads(told.stdout)["job_id"] == "job_1"
    assert "succeeded" in told.stderr


@pytest.mark.usefixtures("connected")
def test_a_line_of_a_log_is_printed_to_the_letter() -> None:
    told = lehr("jobs logs job_1")

    assert told.stdout.splitlines()[0].endswith(f" {ODD}")


@pytest.mark.usefixtures("connected")
def test_a_released_gpu_is_told_with_its_state_and_what_comes_next() -> None:
    told = lehr("gpus release gpu_1 --reason rebooted")

    assert told.stdout == "gpu_1 is clearing; its node decides at its next sync\n"


def test_no_gpu_is_released_without_a_reason() -> None:
    told = lehr("gpus release gpu_1")

    assert told.exit_code == 2
    assert "--reason" in told.stderr


def test_a_fault_of_the_disk_is_told_without_a_traceback(connected: Any) -> None:
    connected.checkpoints.download = _answering(FileExistsError(17, "File exists", "folder"))

    told = lehr("checkpoints download job_1:best folder")

    assert told.exit_code == 1
    assert told.stderr == "error FILE_FAULT folder: File exists\n"


def test_a_refusal_of_the_platform_ends_with_its_words(connected: Any) -> None:
    refusal = InvalidArgument("'job_1' is not an id of a job", reason="ID_MALFORMED")
    connected.jobs.get = _answering(refusal)

    told = lehr("jobs get job_1 --json")

    assert (told.exit_code, told.stdout) == (1, "")
    assert told.stderr == "error ID_MALFORMED 'job_1' is not an id of a job\n"


@pytest.mark.parametrize(
    ("call", "group", "method", "answer"),
    [
        (
            "datasets upload rows.jsonl --name qa",
            "datasets",
            "upload",
            catalog_pb2.CommitDatasetResponse(dataset=DATASET),
        ),
        (
            "billing reconcile",
            "billing",
            "reconcile",
            billing_pb2.ReconcileResponse(differences=[ODD]),
        ),
        (
            "gpus check",
            "gpus",
            "check_held",
            gpu_allocator_pb2.CheckHeldResponse(differences=[ODD]),
        ),
    ],
)
@pytest.mark.parametrize("flag", ["", " --json"])
def test_what_is_found_wrong_is_shown_and_ends_with_status_one(
    connected: Any, call: str, group: str, method: str, answer: Any, flag: str
) -> None:
    setattr(getattr(connected, group), method, _answering(answer))

    told = lehr(call + flag)

    assert told.exit_code == 1
    assert ODD in told.stdout or json.loads(told.stdout)


def test_a_mistake_in_the_job_file_is_told_with_its_line(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LEHR_API_ADDRESS", "127.0.0.1:1")
    monkeypatch.setenv("LEHR_API_KEY", "lehr_sk_none")
    (folder / "job.yaml").write_text("name: tune\nmodel: smol\ndataset: qa\ngpu: 1\n")

    told = lehr("plan job.yaml")

    assert told.exit_code == 1
    assert told.stderr == (
        "error SPEC_INVALID job.yaml:4: gpu is not a field; did you mean gpus?\n"
    )


@pytest.mark.usefixtures("connected")
def test_what_is_said_of_an_upload_reaches_the_client(connected: Any) -> None:
    asked: dict[str, Any] = {}

    async def upload(paths: list[Path], **options: Any) -> Any:
        asked.update(options, paths=[path.name for path in paths])
        return catalog_pb2.CommitDatasetResponse(dataset=DATASET, is_accepted=True)

    connected.datasets.upload = upload

    told = lehr(
        "datasets upload rows.jsonl job.yaml --name qa --column prompt=question --column answer=a=b"
        " --license cc-by-nc-4.0 --acknowledge-license --origin lab --through-gateway"
    )

    assert told.exit_code == 0
    assert asked["paths"] == ["rows.jsonl", "job.yaml"]
    assert asked["columns"] == {"prompt": "question", "answer": "a=b"}
    assert (asked["license"], asked["acknowledge_license"]) == ("cc-by-nc-4.0", True)
    assert (asked["origin"], asked["through_gateway"]) == ("lab", True)


@pytest.mark.usefixtures("connected")
def test_a_report_tells_files_lines_and_what_to_do(connected: Any) -> None:
    dataset = catalog_pb2.Dataset(name="qa", row_kind="text", license="own", image_row_count=2)
    dataset.layouts["alpaca"] = 7
    dataset.problems.add(
        reason="ROW_INVALID",
        description="text is missing",
        row_count=30,
        lines=[3, 4],
        is_error=True,
        file="b.csv",
    )
    connected.datasets.upload = _answering(catalog_pb2.CommitDatasetResponse(dataset=dataset))

    told = lehr("datasets upload rows.jsonl --name qa")

    assert told.exit_code == 1
    words = " ".join(told.stdout.split())
    for part in ("error ROW_INVALID", "b.csv line 3, 4, ...", "text is missing", "7 alpaca"):
        assert part in words
    assert "2 with images" in words
    assert "refused" in words
