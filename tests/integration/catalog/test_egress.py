"""Connections on behalf of users go to public servers, whatever library makes them (SE-03)."""

import json
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import httpx2
import pytest
import urllib3

from lehr.egress import EgressRefused, Guard, guarded, guarded_pool
from tests.support.targets import Target, a_target

NAME = "public.test"


@pytest.fixture
def outside() -> Iterator[Target]:
    """What stands for a public server: the guard is told that it may be reached."""
    with a_target() as target:
        yield target


class Names:
    """A resolver whose answers a test writes, in order; the last one stays."""

    def __init__(self, *answers: list[str]) -> None:
        self.answers = list(answers)
        self.asked = 0

    def __call__(self, host: str, port: int, **_: Any) -> list[Any]:
        self.asked += 1
        found = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (one, port)) for one in found]


def get_by_httpx(guard: Guard, url: str) -> str:
    transport = guarded(httpx.HTTPTransport(), guard)
    with httpx.Client(transport=transport, follow_redirects=True, timeout=20) as client:
        return client.get(url).text


def get_by_httpx2(guard: Guard, url: str) -> str:
    transport = guarded(httpx2.HTTPTransport(), guard)
    with httpx2.Client(transport=transport, follow_redirects=True, timeout=20) as client:
        return client.get(url).text


def get_by_urllib3(guard: Guard, url: str) -> str:
    return guarded_pool(guard, retries=3, timeout=20).request("GET", url).data.decode()


Get = Callable[[Guard, str], str]
CLIENTS = [get_by_httpx, get_by_httpx2, get_by_urllib3]
every_client = pytest.mark.parametrize("get", CLIENTS)


@every_client
@pytest.mark.parametrize(
    "host", ["127.0.0.1", "0x7f000001", "2130706433", "localhost", "0", "[::1]"]
)
def test_no_client_connects_to_an_internal_address(get: Get, host: str, internal: Target) -> None:
    with pytest.raises(EgressRefused):
        get(Guard(), f"http://{host}:{internal.port}/")
    assert internal.connections == 0


@every_client
def test_a_name_is_kept_while_the_checked_address_is_connected_to(
    get: Get, outside: Target
) -> None:
    guard = Guard([(NAME, outside.port)], resolve=Names(["127.0.0.1"]))
    assert get(guard, f"http://{NAME}:{outside.port}/") == "hello"
    assert outside.hosts == [f"{NAME}:{outside.port}"]


@every_client
def test_a_redirect_to_an_internal_address_is_refused(
    get: Get, outside: Target, internal: Target
) -> None:
    outside.location = f"http://127.0.0.1:{internal.port}/secrets"
    with pytest.raises(EgressRefused):
        get(Guard([("127.0.0.1", outside.port)]), f"http://127.0.0.1:{outside.port}/")
    assert outside.connections == 1
    assert internal.connections == 0


@every_client
def test_a_redirect_to_another_good_host_is_followed(get: Get, outside: Target) -> None:
    with a_target() as cdn:
        outside.location = f"http://127.0.0.1:{cdn.port}/file"
        guard = Guard([("127.0.0.1", outside.port), ("127.0.0.1", cdn.port)])
        assert get(guard, f"http://127.0.0.1:{outside.port}/") == "hello"


@every_client
def test_a_name_that_turns_internal_after_its_first_answer_reaches_nothing_internal(
    get: Get, internal: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first answer is an address that nobody has: 192.0.2.0/24 is for documents.

    A client that resolved again would get the second answer and connect to the internal server.
    """
    names = Names(["192.0.2.1"], ["127.0.0.1"])
    guard = Guard([("192.0.2.1", internal.port)], resolve=names)
    connected: list[str] = []
    system = socket.getaddrinfo

    def getaddrinfo(host: Any, port: Any, *more: Any, **options: Any) -> list[Any]:
        if host in (NAME, NAME.encode()):
            return names(host, int(port))
        return system(host, port, *more, **options)

    def connect(self: socket.socket, address: Any) -> None:
        connected.append(address[0])
        raise ConnectionRefusedError("nothing listens there")

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    monkeypatch.setattr(socket.socket, "connect", connect)
    with pytest.raises(Exception, match=r"."):
        get(guard, f"http://{NAME}:{internal.port}/")
    assert set(connected) == {"192.0.2.1"}
    assert internal.connections == 0


def test_a_pool_of_urllib3_goes_on_by_the_name(outside: Target) -> None:
    guard = Guard([(NAME, outside.port)], resolve=Names(["127.0.0.1"]))
    pool = guarded_pool(guard)
    for _ in range(2):
        assert pool.request("GET", f"http://{NAME}:{outside.port}/").data == b"hello"
    assert outside.hosts == [f"{NAME}:{outside.port}"] * 2


@every_client
def test_every_address_of_a_name_is_tried_until_one_answers(get: Get, outside: Target) -> None:
    # All are this machine's own, and the server listens at the second.
    guard = Guard([(NAME, outside.port)], resolve=Names(["127.0.0.9", "127.0.0.1", "127.0.0.8"]))
    assert get(guard, f"http://{NAME}:{outside.port}/") == "hello"
    assert outside.hosts == [f"{NAME}:{outside.port}"]


@every_client
def test_a_name_of_which_no_address_answers_tells_the_failure_of_the_last(get: Get) -> None:
    with a_target() as gone:
        port = gone.port
    guard = Guard([(NAME, port)], resolve=Names(["127.0.0.9", "127.0.0.1"]))
    with pytest.raises((httpx.ConnectError, httpx2.ConnectError, urllib3.exceptions.HTTPError)):
        get(guard, f"http://{NAME}:{port}/")


@every_client
def test_a_name_with_a_public_and_an_internal_address_is_refused(
    get: Get, internal: Target
) -> None:
    guard = Guard(resolve=Names(["8.8.8.8", "127.0.0.1"]))
    with pytest.raises(EgressRefused):
        get(guard, f"http://{NAME}:{internal.port}/")
    assert internal.connections == 0


ENFORCED = """
import json, sys
from lehr.egress import EgressRefused, Guard, enforce
enforce(Guard.parse(sys.argv[1]))
port = int(sys.argv[2])
import asyncio, socket, subprocess, os, urllib.request, httpx, urllib3
def by_socket(): socket.create_connection(("127.0.0.1", port))
def by_name(): socket.create_connection(("localhost", port))
def by_connect_ex(): socket.socket().connect_ex(("127.0.0.1", port))
def by_the_c_class():
    import _socket
    _socket.socket(_socket.AF_INET, _socket.SOCK_STREAM).connect(("127.0.0.1", port))
def by_udp(): socket.socket(type=socket.SOCK_DGRAM).sendto(b"x", ("127.0.0.1", port))
def by_asyncio(): asyncio.run(connected())
async def connected(): await asyncio.open_connection("127.0.0.1", port)
def by_urllib(): urllib.request.urlopen(f"http://127.0.0.1:{port}/")
def by_httpx(): httpx.get(f"http://127.0.0.1:{port}/", trust_env=False)
def by_urllib3(): urllib3.PoolManager().request("GET", f"http://127.0.0.1:{port}/")
def by_a_program(): subprocess.run(["true"])
def by_the_shell(): os.system("true")
def by_a_unix_socket(): socket.socket(socket.AF_UNIX).connect("/tmp/none")
found = {}
for name, way in list(globals().items()):
    if name.startswith("by_"):
        try:
            way()
            found[name] = "done"
        except EgressRefused:
            found[name] = "refused"
        except Exception as error:
            found[name] = repr(error)
print(json.dumps(found))
"""


def _enforced(allowed: str, port: int) -> dict[str, str]:
    program = [sys.executable, "-c", ENFORCED, allowed, str(port)]
    done = subprocess.run(program, capture_output=True, check=True, timeout=120)
    found: dict[str, str] = json.loads(done.stdout)
    return found


def test_no_library_of_a_guarded_process_gets_past_the_guard(internal: Target) -> None:
    found = _enforced("", internal.port)
    assert set(found.values()) == {"refused"}
    assert internal.connections == 0


def test_a_guarded_process_reaches_what_the_operator_allowed(outside: Target) -> None:
    found = _enforced(f"127.0.0.1:{outside.port}", outside.port)
    assert found["by_httpx"] == found["by_urllib3"] == found["by_asyncio"] == "done"
    assert found["by_a_program"] == "refused"
