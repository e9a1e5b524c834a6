"""What may be asked of a stack, and what its parts see of the caller's environment."""

import os
import sys

import pytest

from lehr.stack import External, Node, Options, OptionsRefused

SERVERS = External(
    nats_url="nats://bus:4222",
    postgres_admin_url="postgresql://admin:secret@db/lehr",
    s3_endpoint="https://objects",
    s3_access_key="key",
    s3_secret_key="secret",
)


def test_production_runs_on_servers_of_its_own() -> None:
    options = Options(mode="production", external=SERVERS)

    assert options.mode == "production"


def test_production_refuses_every_danger_at_once() -> None:
    with pytest.raises(OptionsRefused) as refused:
        Options(mode="production", test_hooks=True, nodes=(_node(pretend_gpus="h100-80gb:8"),))

    assert [problem.field for problem in refused.value.fields] == [
        "LEHR_TEST_HOOKS",
        "nodes",
        "LEHR_NATS_URL",
        "LEHR_POSTGRES_ADMIN_URL",
        "LEHR_S3_ENDPOINT",
    ]


@pytest.mark.parametrize(
    ("node", "field"),
    [
        ({"name": "Node_1"}, "nodes.Node_1"),
        ({"name": "../x"}, "nodes.../x"),
        ({"cpu_slots": -1}, "nodes.node.cpu_slots"),
        ({"pretend_gpus": "h100"}, "nodes.node.pretend_gpus"),
        ({"pretend_gpus": "h100:0"}, "nodes.node.pretend_gpus"),
    ],
)
def test_a_node_that_cannot_be_is_refused(node: dict[str, object], field: str) -> None:
    with pytest.raises(OptionsRefused) as refused:
        Options(nodes=(_node(**node),))

    assert [problem.field for problem in refused.value.fields] == [field]


def test_two_nodes_have_two_names() -> None:
    with pytest.raises(OptionsRefused, match="used once"):
        Options(nodes=(_node(), _node()))


def test_an_object_store_needs_its_keys() -> None:
    with pytest.raises(OptionsRefused, match="needs LEHR_S3_ACCESS_KEY"):
        Options(external=External(s3_endpoint="https://objects"))


def test_a_service_that_does_not_exist_is_refused() -> None:
    with pytest.raises(OptionsRefused, match=r"scheduller: is no service: choose of .*scheduler"):
        Options(environment={"scheduller": {}})


def test_a_part_sees_little_of_the_callers_environment() -> None:
    options = Options(inherited={"HOME": "/home/ana", "LEHR_API_KEY": "k", "HTTP_PROXY": "p"})

    seen = options.for_service("billing")

    assert seen == {
        "HOME": "/home/ana",
        "LANG": "C.UTF-8",
        "PATH": f"{os.path.dirname(sys.executable)}{os.pathsep}{os.defpath}",
    }


def test_only_runners_are_told_of_devices() -> None:
    options = Options(inherited={"CUDA_VISIBLE_DEVICES": "1"})

    told = [
        "CUDA_VISIBLE_DEVICES" in options.for_service(name)
        for name in ("scheduler", "trainer_runner")
    ]

    assert told == [False, True]


def test_relative_places_of_modules_are_those_of_the_caller() -> None:
    seen = Options(inherited={"PYTHONPATH": f"libs{os.pathsep}/abs"}).for_all()

    assert seen["PYTHONPATH"] == f"{os.path.abspath('libs')}{os.pathsep}/abs"


def test_options_never_show_a_secret() -> None:
    shown = repr(Options(external=SERVERS, inherited={"TOKEN": "hidden"}))

    assert "secret" not in shown
    assert "hidden" not in shown


def _node(**fields: object) -> Node:
    return Node(**({"name": "node"} | fields))  # type: ignore[arg-type]
