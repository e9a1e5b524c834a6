"""The table of ``services/README.md`` names files and events that exist."""

import importlib
import pkgutil
import re
from pathlib import Path

import lehr.events
from lehr.events.base import Event

ROOT = Path(__file__).parents[2]
README = (ROOT / "services" / "README.md").read_text(encoding="utf-8")


def all_events(base: type[Event] = Event) -> dict[str, type[Event]]:
    """Return every event model by its type."""
    for module in pkgutil.iter_modules(lehr.events.__path__):
        if not module.name.startswith("_"):
            importlib.import_module(f"lehr.events.{module.name}")
    found: dict[str, type[Event]] = {}
    for one in base.__subclasses__():
        if "PAST" in vars(one) and one.__module__.startswith("lehr.events."):
            found[one.type_name()] = one
        found |= all_events(one)
    return found


def test_every_file_in_the_table_exists() -> None:
    files = re.findall(r"`(services/[a-z_/]+\.py)`", README)

    missing = [name for name in files if not (ROOT / name).is_file()]

    assert files
    assert not missing


def test_every_event_in_the_table_exists() -> None:
    named = set(re.findall(r"`(lehr\.[a-z_]+\.[a-z_]+\.v\d+)`", README))

    assert named
    assert named <= set(all_events())


def test_every_event_of_a_job_is_in_the_table() -> None:
    named = set(re.findall(r"`(lehr\.[a-z_]+\.[a-z_]+\.v\d+)`", README))
    told_elsewhere = {"lehr.hold.placed.v1", "lehr.model.added.v1", "lehr.dataset.added.v1"}

    assert set(all_events()) - told_elsewhere == named
