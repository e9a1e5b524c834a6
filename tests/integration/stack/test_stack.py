"""A whole stack: told to its services, restarted after any death, and gone when it is stopped."""

import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator

import psutil
import pytest

from lehr.stack import (
    SERVICES,
    Node,
    Options,
    PartState,
    Phase,
    Stack,
    StackDown,
    StackRuns,
    StartFailed,
    UnknownPart,
)
from lehr.stack.state import StackState
from tests.integration.stack.fake_services import environment_with_fakes
from tests.integration.stack.looking import (
    family_of,
    first_words,
    get,
    listening,
    put,
    record,
    said_by,
    secret_texts,
    sleeping,
    supervisor_of,
    works_below,
)
from tests.support.servers import a_folder
from tests.support.stack import StackFactory, StackUnderTest

PARTS = ("nats", "postgres", "s3", *SERVICES, "trainer_runner@node-a", "trainer_runner@node-b")

OWNER = """
import sys, time
from lehr.stack import Options, Stack
Stack(sys.argv[1], options=Options.from_environment(services=(), nodes=())).up(owned=True)
print("up", flush=True)
time.sleep(600)
"""

FOREGROUND = """
import sys
from lehr.stack import Options, Phase, Stack
tell = lambda status: status.phase is Phase.READY and print("ready", flush=True)
stack = Stack(sys.argv[1], options=Options.from_environment(services=(), nodes=()))
print(stack.up(detach=False, progress=tell).phase)
"""


@pytest.fixture(scope="module")
def fakes() -> Iterator[dict[str, str]]:
    with a_folder() as folder:
        yield environment_with_fakes(folder)


@pytest.fixture(scope="module")
def full(stack_factory: StackFactory, fakes: dict[str, str]) -> StackUnderTest:
    """A stack with every part, which every test of this module leaves running."""
    return stack_factory(
        nodes=(Node(name="node-a"), Node(name="node-b", cpu_slots=2, pretend_gpus="h100-80gb:8")),
        inherited={**fakes, "SCHEDULER_QUEUE": "own", "AWS_SECRET_ACCESS_KEY": "foreign"},
        environment={"billing": {"BILLING_EXTRA": "more"}},
    )


@pytest.fixture
def bare() -> Iterator[Stack]:
    """A stopped stack with the three servers alone."""
    with a_folder() as folder:
        stack = Stack(folder / "state", options=Options.from_environment(services=(), nodes=()))
        yield stack
        stack.down()


def test_every_part_is_ready_at_once_and_reached_on_loopback_only(full: StackUnderTest) -> None:
    status = full.status()

    assert status.phase is Phase.READY
    assert {part.name for part in status.parts} == set(PARTS)
    assert {part.state for part in status.parts} == {PartState.READY}
    assert {part.restart_count for part in status.parts} == {0}
    assert {host for host, _ in listening(status.supervisor_pid)} == {"127.0.0.1"}


def test_memory_is_told_for_every_part_and_together(full: StackUnderTest) -> None:
    status = full.status()

    assert min(part.memory_bytes for part in status.parts) > 1_000_000
    assert status.memory_bytes > sum(part.memory_bytes for part in status.parts)


def test_a_second_start_says_that_it_runs(full: StackUnderTest) -> None:
    with pytest.raises(StackRuns, match=r"runs on .* already") as refused:
        Stack(full.folder).up()

    assert refused.value.facts["gateway"] == full.address("gateway")


def test_no_secret_is_on_a_command_line(full: StackUnderTest) -> None:
    secrets = secret_texts(full)

    lines = [" ".join(process.cmdline()) for process in family_of(full.status().supervisor_pid)]

    assert len(lines) > len(PARTS)
    assert [line for line in lines for secret in secrets if secret in line] == []


def test_files_with_secrets_are_private(full: StackUnderTest) -> None:
    files = [*(full.folder / "secrets").iterdir(), full.folder / "options.json"]

    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
    assert stat.S_IMODE((full.folder / "secrets").stat().st_mode) == 0o700


def test_a_service_sees_its_own_settings_and_those_of_all(full: StackUnderTest) -> None:
    seen = psutil.Process(full.pid("scheduler")).environ()

    assert seen["SCHEDULER_QUEUE"] == "own"
    assert seen["SCHEDULER_LISTEN"] == full.address("scheduler")
    assert seen["SCHEDULER_DATABASE_URL"].startswith("postgresql://scheduler:")
    assert seen["LEHR_TEST_HOOKS"] == "true"
    foreign = [name for name in seen if name.startswith(("BILLING_", "GATEWAY_", "AWS_"))]
    assert foreign == []
    assert "LEHR_POSTGRES_ADMIN_URL" not in seen


async def test_the_catalog_keeps_its_copies_below_the_state_folder(full: StackUnderTest) -> None:
    seen = psutil.Process(full.pid("catalog")).environ()

    cache = full.stack.layout.cache("catalog")
    assert seen["CATALOG_CACHE_DIR"] == str(cache)
    (cache / "left by a killed process").touch()
    full.kill("catalog")
    await full.wait_ready("catalog")
    assert not list(cache.iterdir())


def test_more_variables_are_for_the_service_that_they_name(full: StackUnderTest) -> None:
    assert psutil.Process(full.pid("billing")).environ()["BILLING_EXTRA"] == "more"


def test_a_runner_is_told_its_node_and_no_database(full: StackUnderTest) -> None:
    seen = psutil.Process(full.pid("trainer_runner@node-b")).environ()

    own = {name: seen[name] for name in sorted(seen) if name.startswith("TRAINER_RUNNER_")}
    assert list(own) == [
        "TRAINER_RUNNER_CPU_SLOTS",
        "TRAINER_RUNNER_IDENTITY_KEY",
        "TRAINER_RUNNER_METRICS_LISTEN",
        "TRAINER_RUNNER_NODE_NAME",
        "TRAINER_RUNNER_PRETEND_GPUS",
        "TRAINER_RUNNER_STATE_DIR",
    ]
    assert own["TRAINER_RUNNER_CPU_SLOTS"] == "2"
    assert own["TRAINER_RUNNER_PRETEND_GPUS"] == "h100-80gb:8"


def test_the_gateway_is_told_the_hash_of_the_first_key_and_not_the_key(
    full: StackUnderTest,
) -> None:
    seen = psutil.Process(full.pid("gateway")).environ()

    assert full.api_key.startswith("lehr_sk_")
    assert seen["GATEWAY_BOOTSTRAP_KEY_SHA256"] == full.stack.secrets().api_key_sha256
    assert full.api_key not in str(seen)


@pytest.mark.parametrize("part", ["nats", "postgres", "s3", "scheduler", "trainer_runner@node-a"])
async def test_a_killed_part_comes_back(full: StackUnderTest, part: str) -> None:
    before = full.pid(part)

    full.kill(part)
    status = await full.wait_ready(part)

    assert status.part(part).pid != before
    assert status.part(part).restart_count >= 1


async def test_a_stopped_part_is_down_until_it_is_started(full: StackUnderTest) -> None:
    full.stop_part("telemetry")
    stopped = full.status().part("telemetry")

    full.start_part("telemetry")
    await full.wait_ready("telemetry")

    assert (stopped.state, stopped.pid, stopped.restart_count) == (PartState.DOWN, None, 0)


async def test_a_frozen_part_is_unready_until_it_goes_on(full: StackUnderTest) -> None:
    full.pause("catalog")
    frozen = full.status().part("catalog")

    full.resume("catalog")
    status = await full.wait_ready("catalog")

    assert frozen.state is PartState.UNREADY
    assert status.part("catalog").pid == frozen.pid


def test_a_command_for_an_unknown_part_names_the_known_ones(full: StackUnderTest) -> None:
    with pytest.raises(UnknownPart, match=r"no part nobody: choose of nats, .*gateway"):
        full.kill("nobody")


def test_logs_are_of_one_part_or_of_all_with_their_names(full: StackUnderTest) -> None:
    one, of_all = full.log("billing"), list(full.stack.logs(lines=5))

    assert one == ["serves"]
    assert any(line.startswith("billing ") and line.endswith("| serves") for line in of_all)


def test_followed_logs_show_what_is_added(full: StackUnderTest) -> None:
    followed = full.stack.logs("gateway", follow=True, lines=1)
    first = next(followed)

    with full.stack.layout.log("gateway").open("a") as log:
        log.write("more\n")

    assert (first, next(followed)) == ("serves", "more")


def test_stopping_leaves_no_process_and_keeps_ports_keys_and_objects(
    stack_factory: StackFactory, fakes: dict[str, str]
) -> None:
    stack = stack_factory(
        inherited=fakes, environment={"trainer_runner": {"TRAINER_RUNNER_FAKE": "lose a child"}}
    )
    family = family_of(stack.status().supervisor_pid)
    child = int((stack.folder / "nodes" / "local" / "child").read_text())
    before = stack.environment, stack.api_key
    put(stack.stack, "models/default/a", b"content")

    stopped = stack.stack.down()
    gone, _ = psutil.wait_procs(family, timeout=10)
    stack.stack.up(owned=True)

    assert stopped
    assert child in {process.pid for process in family}
    assert len(gone) == len(family)
    assert (stack.environment, stack.api_key) == before
    assert get(stack.stack, "models/default/a") == b"content"


def test_stopping_twice_is_no_error(bare: Stack) -> None:
    bare.up()

    assert (bare.down(), bare.down()) == (True, False)
    assert bare.status().phase is Phase.DOWN
    with pytest.raises(StackDown, match="lehr up"):
        bare.kill("nats")


def test_after_a_killed_supervisor_all_parts_die_and_the_next_start_goes_on(bare: Stack) -> None:
    status = bare.up()
    family = family_of(status.supervisor_pid)
    put(bare, "models/default/a", b"content")
    before = bare.environment()

    os.kill(status.supervisor_pid or 0, signal.SIGKILL)
    gone, _ = psutil.wait_procs(family, timeout=20)
    dead = bare.status()
    bare.up()

    assert len(gone) == len(family)
    assert (dead.phase, {part.state for part in dead.parts}) == (Phase.DOWN, {PartState.DOWN})
    assert bare.environment() == before
    assert get(bare, "models/default/a") == b"content"


@pytest.mark.parametrize("seconds", [0.1, 0.4, 0.8, 1.2])
def test_a_start_that_was_killed_in_the_middle_is_begun_again(bare: Stack, seconds: float) -> None:
    starting = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(bare.layout.root)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    supervisor = supervisor_of(bare)

    time.sleep(seconds)
    supervisor.kill()
    starting.kill()
    starting.wait()
    supervisor.wait(timeout=20)
    status = bare.up()

    assert {part.state for part in status.parts} == {PartState.READY}


def test_of_two_starts_at_once_one_wins_and_one_says_so(bare: Stack) -> None:
    other = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(bare.layout.root)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )

    said = said_by(bare)
    out, errors = first_words(other)

    assert (said, out) in {("", b""), ("STACK_RUNS", b"up\n")}
    assert (b"StackRuns" in errors) == (said == "")


def test_a_start_ends_what_a_killed_supervisor_left_and_nobody_else(bare: Stack) -> None:
    bare.up()
    bare.down()
    with sleeping() as left, sleeping() as stranger:
        state = StackState.read(bare.layout.state)
        record(bare, state, left=left, stranger=stranger)

        bare.up()

        assert left.wait(timeout=10) != 0
        assert stranger.poll() is None


def test_a_broken_state_file_is_a_stack_that_never_ran(bare: Stack) -> None:
    bare.up()
    put(bare, "models/default/a", b"content")
    bare.down()

    bare.layout.state.write_text("{")
    bare.up()

    assert get(bare, "models/default/a") == b"content"


def test_a_service_that_cannot_start_is_told_with_its_log_and_all_is_stopped(
    fakes: dict[str, str],
) -> None:
    options = Options.from_environment(
        inherited=fakes, environment={"billing": {"BILLING_FAKE": "crash"}}
    )
    with a_folder() as folder:
        stack = Stack(folder / "state", options=options)

        with pytest.raises(StartFailed, match=r"(?s)billing.*the settings are wrong"):
            stack.up(owned=True)

        assert stack.status().phase is Phase.FAILED
        assert "billing" in stack.status().failure
        assert not works_below(folder)


def test_an_owned_stack_ends_with_its_owner(bare: Stack) -> None:
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(bare.layout.root)], stdout=subprocess.PIPE
    )
    assert owner.stdout is not None
    assert owner.stdout.readline() == b"up\n"
    family = family_of(bare.status().supervisor_pid)

    owner.kill()
    owner.wait()

    gone, _ = psutil.wait_procs(family, timeout=20)
    assert len(gone) == len(family)
    assert bare.status().phase is Phase.DOWN


def test_a_stack_in_the_foreground_ends_on_interrupt(bare: Stack) -> None:
    shown = subprocess.Popen(
        [sys.executable, "-c", FOREGROUND, str(bare.layout.root)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert shown.stdout is not None
    assert shown.stdout.readline() == "ready\n"
    family = family_of(shown.pid)[1:]

    shown.send_signal(signal.SIGINT)

    assert shown.stdout.read().splitlines()[-1] == "down"
    assert shown.wait(timeout=20) == 0
    gone, _ = psutil.wait_procs(family, timeout=10)
    assert len(gone) == len(family)


def test_removing_a_stack_deletes_its_data(bare: Stack) -> None:
    bare.up()

    bare.remove()

    assert not bare.layout.root.exists()
