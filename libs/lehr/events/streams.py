"""The declared streams and durables: read, compared with a server, and applied to it."""

import asyncio
import json
import sys
from collections.abc import Collection, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal

import nats
import yaml
from nats.aio.client import Client
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from lehr.errors import FailedPrecondition, Unavailable
from lehr.events import connection, subjects
from lehr.settings import PlatformSettings

NANOSECONDS = 1_000_000_000

_NOT_FOUND = {10059, 10014}  # stream not found, consumer not found
_DISCARD = {"reject": "new", "drop_oldest": "old"}

#: An installed package carries the file beside this module, a checkout in deploy/.
_PLACES = (
    Path(__file__).with_name("streams.yaml"),
    Path(__file__).parents[3] / "deploy" / "nats" / "streams.yaml",
)


class StreamsDiffer(FailedPrecondition):
    """The server's streams or durables are not the declared ones."""

    reason = "STREAMS_DIFFER"

    def __init__(self, differences: Collection[str]) -> None:
        super().__init__(
            "the streams of the NATS server are not the declared ones; "
            "run `python -m lehr.events.streams apply`:\n  " + "\n  ".join(differences),
            differences="; ".join(differences),
        )


class BrokerRefused(Unavailable):
    """The server answered a request about streams with an error."""

    reason = "BROKER_REFUSED"


class _Declared(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Stream(_Declared):
    """One stream, in the words of deploy/nats/streams.yaml; ages in seconds."""

    subjects: tuple[str, ...] = Field(min_length=1)
    storage: Literal["file", "memory"]
    retention: Literal["limits"]
    replicas: int = Field(ge=1, le=5)
    max_age: int = Field(gt=0)
    max_bytes: int = Field(gt=0)
    max_message_bytes: int = Field(gt=0)
    duplicate_window: int = Field(gt=0)
    when_full: Literal["reject", "drop_oldest"]
    persist_mode: Literal["default", "async"]

    def config(self, name: str) -> dict[str, Any]:
        """Return the configuration as the server spells it."""
        wanted = {
            "name": name,
            "subjects": list(self.subjects),
            "storage": self.storage,
            "retention": self.retention,
            "num_replicas": self.replicas,
            "max_age": self.max_age * NANOSECONDS,
            "max_bytes": self.max_bytes,
            "max_msgs": -1,
            "max_msgs_per_subject": -1,
            "max_msg_size": self.max_message_bytes,
            "max_consumers": -1,
            "duplicate_window": self.duplicate_window * NANOSECONDS,
            "discard": _DISCARD[self.when_full],
        }
        # The server leaves the default away when it answers.
        return wanted | ({"persist_mode": "async"} if self.persist_mode == "async" else {})


class Durable(_Declared):
    """One durable pull consumer."""

    stream: str
    subjects: tuple[str, ...] = Field(min_length=1)
    ack_wait: int = Field(gt=0)
    max_ack_pending: int = Field(gt=0)
    max_deliver: int

    def config(self, name: str) -> dict[str, Any]:
        """Return the configuration as the server spells it."""
        one = len(self.subjects) == 1
        filtered = (
            {"filter_subject": self.subjects[0]} if one else {"filter_subjects": [*self.subjects]}
        )
        return {
            "name": name,
            "durable_name": name,
            "deliver_policy": "all",
            "ack_policy": "explicit",
            "replay_policy": "instant",
            "ack_wait": self.ack_wait * NANOSECONDS,
            "max_ack_pending": self.max_ack_pending,
            "max_deliver": self.max_deliver,
            **filtered,
        }


class Declaration(_Declared):
    """The whole file."""

    streams: Mapping[str, Stream]
    durables: Mapping[str, Durable]

    @model_validator(mode="before")
    @classmethod
    def _fill_in_defaults(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            raise ValueError("the file must hold stream_defaults, streams and durables")
        filled = dict(values)
        for kind in ("stream", "durable"):
            common = filled.pop(f"{kind}_defaults", None) or {}
            entries = filled.get(f"{kind}s") or {}
            filled[f"{kind}s"] = {
                name: {**common, **(entry or {})} for name, entry in entries.items()
            }
        return filled

    @model_validator(mode="after")
    def _streams_exist(self) -> "Declaration":
        for name, durable in self.durables.items():
            if durable.stream not in self.streams:
                raise ValueError(f"durable {name} reads stream {durable.stream}, which is missing")
        return self

    def stream_of(self, subject: str) -> str:
        """Return the stream that takes ``subject``.

        Raises:
            ValueError: none does.
        """
        for name, stream in self.streams.items():
            if any(subjects.matches(pattern, subject) for pattern in stream.subjects):
                return name
        raise ValueError(f"no stream in deploy/nats/streams.yaml takes {subject}")


def load(path: Path) -> Declaration:
    """Read a declaration.

    Raises:
        ValueError: it is none; the message says which key.
    """
    try:
        return Declaration.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")))
    except ValidationError as problems:
        lines = "; ".join(
            f"{'.'.join(str(part) for part in error['loc'])}: {error['msg']}"
            for error in problems.errors(include_url=False)
        )
        raise ValueError(f"{path}: {lines}") from None


@cache
def declared() -> Declaration:
    """Return the declaration that this installation came with."""
    for path in _PLACES:
        if path.is_file():
            return load(path)
    raise FileNotFoundError(f"streams.yaml is in none of {', '.join(map(str, _PLACES))}")


async def differences(
    client: Client, declaration: Declaration, *, durables: Collection[str] | None = None
) -> list[str]:
    """Compare the server with the declaration; each line names one key that differs.

    ``durables`` narrows the comparison to these consumers and their streams.

    Raises:
        BrokerRefused: the server does not answer, or JetStream is off.
        KeyError: a durable that is not declared.
    """
    names = declaration.durables.keys() if durables is None else durables
    consumers = {name: declaration.durables[name] for name in names}
    streams = declaration.streams
    if durables is not None:
        streams = {name: streams[name] for name in {one.stream for one in consumers.values()}}
    found: list[str] = []
    for name, stream in sorted(streams.items()):
        have = await _info(client, f"STREAM.INFO.{name}")
        found += _compare(f"stream {name}", stream.config(name), have)
    for name, durable in sorted(consumers.items()):
        have = await _info(client, f"CONSUMER.INFO.{durable.stream}.{name}")
        found += _compare(f"durable {name}", durable.config(name), have)
    return found


async def check(
    client: Client, declaration: Declaration, *, durables: Collection[str] | None = None
) -> None:
    """Refuse a server that differs.

    Raises:
        StreamsDiffer: with every difference.
        BrokerRefused: the server does not answer.
    """
    if found := await differences(client, declaration, durables=durables):
        raise StreamsDiffer(found)


async def apply(client: Client, declaration: Declaration) -> list[str]:
    """Create and update what differs; return what was done. Nothing is ever deleted.

    Raises:
        StreamsDiffer: a key differs that the server cannot change on an existing stream.
        BrokerRefused: the server refuses a change or does not answer.
    """
    done: list[str] = []
    for name, stream in declaration.streams.items():
        wanted = stream.config(name)
        have = await _info(client, f"STREAM.INFO.{name}")
        different = _compare(f"stream {name}", wanted, have)
        if fixed := [line for line in different if ".persist_mode " in line]:
            raise StreamsDiffer([f"{line}; delete the stream first" for line in fixed])
        if different:
            verb = "CREATE" if have is None else "UPDATE"
            # What the declaration does not speak about stays as it is.
            await _request(client, f"STREAM.{verb}.{name}", {**(have or {}), **wanted})
            done.append(f"{verb.lower()}d stream {name}")
    for name, durable in declaration.durables.items():
        wanted = durable.config(name)
        have = await _info(client, f"CONSUMER.INFO.{durable.stream}.{name}")
        if _compare(f"durable {name}", wanted, have):
            action = "create" if have is None else "update"
            request = {"stream_name": durable.stream, "action": action, "config": wanted}
            await _request(client, f"CONSUMER.CREATE.{durable.stream}.{name}", request)
            done.append(f"{action}d durable {name}")
    return done


def _compare(what: str, wanted: Mapping[str, Any], have: Mapping[str, Any] | None) -> list[str]:
    if have is None:
        return [f"{what} is missing"]
    names = set(wanted) | ({"filter_subject", "filter_subjects", "persist_mode"} & set(have))
    return [
        f"{what}.{name} is {json.dumps(have.get(name))}, declared is {json.dumps(wanted.get(name))}"
        for name in sorted(names)
        if have.get(name) != wanted.get(name)
        and not (name == "persist_mode" and have.get(name) == "default")
    ]


async def _info(client: Client, method: str) -> dict[str, Any] | None:
    answer = await _request(client, method, {}, missing_is_fine=True)
    return None if answer is None else answer["config"]


async def _request(
    client: Client, method: str, body: Mapping[str, Any], *, missing_is_fine: bool = False
) -> Any:
    # Raw requests, for the client library does not know every key of the server.
    try:
        reply = await client.request(
            f"$JS.API.{method}", json.dumps(body).encode() if body else b"", timeout=5
        )
    except nats.errors.Error as problem:
        raise BrokerRefused(f"{method}: no answer from NATS ({problem!r})", method=method) from None
    answer = json.loads(reply.data)
    if error := answer.get("error"):
        if missing_is_fine and error.get("err_code") in _NOT_FOUND:
            return None
        description = error.get("description", "")
        raise BrokerRefused(f"{method}: {description}", method=method, description=description)
    return answer


async def _main(command: str) -> int:
    settings = PlatformSettings()
    chosen = connection.options(settings, name="streams") | {
        "allow_reconnect": False,
        "max_reconnect_attempts": 1,
    }
    try:
        client = await asyncio.wait_for(nats.connect(**chosen), timeout=10)
    except (OSError, TimeoutError, nats.errors.Error) as problem:
        print(f"no connection to {settings.nats_url}: {problem!r}", file=sys.stderr)
        return 1
    try:
        if command == "apply":
            for line in await apply(client, declared()):
                print(line)
        await check(client, declared())
    except (StreamsDiffer, BrokerRefused) as problem:
        print(problem, file=sys.stderr)
        return 1
    finally:
        await client.close()
    print("streams are as declared")
    return 0


def main(arguments: list[str]) -> int:
    """Run ``apply`` or ``check`` against the server in LEHR_NATS_URL."""
    if len(arguments) != 1 or arguments[0] not in ("apply", "check"):
        print("usage: python -m lehr.events.streams apply|check", file=sys.stderr)
        return 2
    return asyncio.run(_main(arguments[0]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
