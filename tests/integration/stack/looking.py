"""What tests of the stack look at: its processes, ports, files and objects."""

import contextlib
import io
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
from minio import Minio

from lehr.stack import (
    Stack,
    StackRuns,
)
from lehr.stack.processes import ProcessMark
from lehr.stack.state import StackState
from tests.support.stack import StackUnderTest


def family_of(pid: int | None) -> list[psutil.Process]:
    assert pid is not None
    process = psutil.Process(pid)
    return [process, *process.children(recursive=True)]


def listening(pid: int | None) -> set[tuple[str, int]]:
    return {
        (connection.laddr.ip, connection.laddr.port)
        for process in family_of(pid)
        for connection in process.net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    }


def secret_texts(stack: StackUnderTest) -> list[str]:
    return [
        line
        for file in (stack.folder / "secrets").iterdir()
        for line in file.read_text().splitlines()
        if not line.startswith("-----")
    ]


def client(stack: Stack) -> Minio:
    given = stack.environment()
    return Minio(
        given["LEHR_S3_ENDPOINT"].removeprefix("http://"),
        access_key=given["LEHR_S3_ACCESS_KEY"],
        secret_key=given["LEHR_S3_SECRET_KEY"],
        secure=False,
        region=given["LEHR_S3_REGION"],
    )


def put(stack: Stack, key: str, content: bytes) -> None:
    client(stack).put_object("lehr", key, io.BytesIO(content), len(content))


def get(stack: Stack, key: str) -> bytes:
    answer = client(stack).get_object("lehr", key)
    try:
        return bytes(answer.data)
    finally:
        answer.close()
        answer.release_conn()


@contextlib.contextmanager
def sleeping() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "600"], start_new_session=True)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def record(
    stack: Stack,
    state: StackState,
    *,
    left: subprocess.Popen[bytes],
    stranger: subprocess.Popen[bytes],
) -> None:
    """Write a state as a killed supervisor leaves it, with one number that was given away."""
    marks = [ProcessMark.of(left.pid), ProcessMark.of(stranger.pid)]
    assert marks[1] is not None
    marks[1] = replace(marks[1], start="another-boot:1")
    parts = [replace(p, process=mark) for p, mark in zip(state.parts, marks, strict=False)]
    replace(state, parts=tuple(parts)).write(stack.layout.state)


def works_below(folder: Path) -> list[psutil.Process]:
    return [
        process
        for process in psutil.process_iter()
        if any(str(folder) in argument for argument in arguments(process))
    ]


def arguments(process: psutil.Process) -> list[str]:
    with contextlib.suppress(psutil.Error):
        return process.cmdline()
    return []


def supervisor_of(stack: Stack) -> psutil.Process:
    """Return the supervisor of a stack as soon as it tells that it is there."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        mark = StackState.read(stack.layout.state).supervisor
        if mark is not None:
            return psutil.Process(mark.pid)
        time.sleep(0.01)
    raise AssertionError("no supervisor came up")


def said_by(stack: Stack) -> str:
    try:
        stack.up()
    except StackRuns as refused:
        return refused.reason
    return ""


def first_words(process: subprocess.Popen[bytes]) -> tuple[bytes, bytes]:
    """Return the first line of a program that may go on, then end it."""
    assert process.stdout is not None
    line = process.stdout.readline()
    process.kill()
    _, errors = process.communicate()
    return line, errors
