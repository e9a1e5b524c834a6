"""Ports, secrets, logs and the state file of an installation stay what they were."""

import json
import os
import socket
import stat
from pathlib import Path

import pytest

from lehr.stack import FolderRefused, Node, Options, Phase, Stack, StackRuns
from lehr.stack.layout import Layout
from lehr.stack.logfile import Follower, cut, last_lines
from lehr.stack.ports import BLOCK_SIZE, LOOPBACK, Ports
from lehr.stack.processes import ProcessMark
from lehr.stack.secrets import Secrets
from lehr.stack.state import StackState

ROLES = ("billing", "catalog")


def test_two_installations_never_share_a_block_of_ports() -> None:
    with Ports.claim({}, seed=1) as one, Ports.claim({}, seed=1) as other:
        bases = one.assigned[""], other.assigned[""]

    assert abs(bases[0] - bases[1]) >= BLOCK_SIZE


def test_ports_lie_below_those_of_outgoing_connections() -> None:
    with socket.socket() as outgoing, Ports.claim({}) as ports:
        outgoing.bind((LOOPBACK, 0))

        assert ports.port("nats") < outgoing.getsockname()[1]


def test_a_purpose_keeps_its_port_from_run_to_run() -> None:
    with Ports.claim({}) as first:
        first.port("nats")
        first.port("s3")
    with Ports.claim(first.assigned) as second:
        second.port("more")

    assert second.assigned | first.assigned == second.assigned


def test_a_port_that_a_stranger_took_moves_the_installation() -> None:
    with Ports.claim({}) as first:
        port = first.port("nats")
    with socket.create_server((LOOPBACK, port)), Ports.claim(first.assigned) as second:
        moved = second.port("nats")

    assert moved != port


def test_secrets_are_made_once_and_are_private(tmp_path: Path) -> None:
    first = Secrets.load(tmp_path, roles=ROLES, services=ROLES)
    (tmp_path / "nats").chmod(0o644)

    second = Secrets.load(tmp_path, roles=ROLES, services=ROLES)

    assert second == first
    assert {stat.S_IMODE(file.stat().st_mode) for file in tmp_path.iterdir()} == {0o600}


def test_every_role_and_service_has_a_secret_of_its_own(tmp_path: Path) -> None:
    made = Secrets.load(tmp_path, roles=ROLES, services=ROLES)

    assert made.postgres["billing"] != made.postgres["catalog"]
    assert made.trusted_keys["billing"] != made.trusted_keys["catalog"]
    assert "PUBLIC KEY" in made.trusted_keys["billing"]
    assert made.nats not in repr(made)


def test_a_new_service_gets_its_secrets_and_the_others_keep_theirs(tmp_path: Path) -> None:
    before = Secrets.load(tmp_path, roles=ROLES, services=ROLES)

    after = Secrets.load(tmp_path, roles=(*ROLES, "serving"), services=(*ROLES, "serving"))

    assert after.postgres == {**before.postgres, "serving": after.postgres["serving"]}


def test_options_are_read_as_they_were_written(tmp_path: Path) -> None:
    options = Options(
        nodes=(Node(name="node-a", pretend_gpus="h100-80gb:8"),),
        services=("billing",),
        test_hooks=True,
        environment={"billing": {"BILLING_X": "1"}},
        inherited={"PATH": "/bin", "SCHEDULER_Y": "2"},
    )

    options.write(tmp_path / "options.json")

    assert Options.read(tmp_path / "options.json") == options


def test_stored_options_forget_what_no_part_may_see(tmp_path: Path) -> None:
    Options(inherited={"AWS_SECRET_ACCESS_KEY": "foreign"}).write(tmp_path / "options.json")

    assert "foreign" not in (tmp_path / "options.json").read_text()


def test_an_installation_is_held_by_one_at_a_time(tmp_path: Path) -> None:
    layout = Layout(root=tmp_path)

    with layout.held():
        with pytest.raises(StackRuns), layout.held():
            pass
        held = layout.is_held()

    assert (held, layout.is_held()) == (True, False)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a folder of somebody else")
def test_a_folder_of_another_user_is_refused(tmp_path: Path) -> None:
    os.chown(tmp_path, 65534, 65534)

    with pytest.raises(FolderRefused, match="belongs to user id 65534"):
        Layout(root=tmp_path).make()


def test_a_folder_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "state").touch()

    with pytest.raises(FolderRefused, match="cannot be used"):
        Layout(root=tmp_path / "state").make()


def test_a_file_is_no_stack_for_any_command(tmp_path: Path) -> None:
    (tmp_path / "state").touch()

    with pytest.raises(FolderRefused, match="is no folder"):
        Stack(tmp_path / "state").down()
    with pytest.raises(FolderRefused, match="cannot be used"):
        Stack(tmp_path / "state" / "below").status()


def test_the_supervisor_signs_the_lock_that_it_holds(tmp_path: Path) -> None:
    layout = Layout(root=tmp_path)

    with layout.held():
        nobody = layout.supervisor()
        layout.sign()

    assert nobody is None
    assert layout.supervisor() == ProcessMark.of(os.getpid())


@pytest.mark.parametrize("text", ["", "null", "7", "[]", "{}", '{"command": 1}', "[" * 100_000])
def test_a_lock_that_says_nothing_is_of_nobody(tmp_path: Path, text: str) -> None:
    (tmp_path / "lock").write_text(text)

    assert Layout(root=tmp_path).supervisor() is None


GOOD = {"phase": "down", "failure": "", "supervisor": None, "control": None, "parts": []}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "7",
        "[" * 100_000,
        '{"a":' * 100_000,
        json.dumps(GOOD),
        json.dumps(GOOD | {"ports": []}),
        json.dumps(GOOD | {"ports": {"gateway": "x"}}),
        json.dumps(GOOD | {"ports": {}, "parts": 1}),
        json.dumps(GOOD | {"ports": {}, "parts": [1]}),
        json.dumps(GOOD | {"ports": {}, "supervisor": []}),
    ],
)
def test_a_state_file_that_cannot_be_read_is_a_stack_that_never_ran(
    tmp_path: Path, text: str
) -> None:
    (tmp_path / "state.json").write_text(text)

    assert StackState.read(tmp_path / "state.json") == StackState()
    assert Stack(tmp_path).status().phase is Phase.DOWN


def test_a_long_path_still_has_a_socket(tmp_path: Path) -> None:
    path = Layout(root=tmp_path / ("x" * 120)).control()

    assert len(str(path)) < 100
    path.parent.rmdir()


def test_the_last_lines_of_a_log_are_found_from_its_end(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("".join(f"line {number}\n" for number in range(50_000)))

    assert last_lines(log, 2) == ["line 49998", "line 49999"]
    assert last_lines(tmp_path / "none", 2) == []


def test_a_followed_log_gives_whole_lines_also_after_it_was_cut(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("before\n")
    follower = Follower(log)
    with log.open("a", buffering=1) as file:
        file.write("one\ntw")
        first = follower.fresh()
        file.write("o\n")
        second = follower.fresh()
        cut(log, bytes_max=1)
        third = follower.fresh()
        file.write("three\n")

        assert (first, second, third, follower.fresh()) == (["one"], ["two"], [], ["three"])
    assert (tmp_path / "log.1").read_text() == "before\none\ntwo\n"
