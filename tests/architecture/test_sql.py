"""SQL lives in ``queries.sql`` under a name that is used, and nowhere else."""

import re
from pathlib import Path

import pytest

from lehr.postgres import Queries

ROOT = Path(__file__).parents[2]
FILES = sorted(
    path for folder in ("libs", "services") for path in (ROOT / folder).rglob("queries.sql")
)
MODULES = [
    path
    for folder in ("libs/lehr", "services")
    for path in sorted((ROOT / folder).rglob("*.py"))
    if "api" not in path.relative_to(ROOT).parts
]

STATEMENT = re.compile(
    r"\b(SELECT\s+[\w*(]+.*\bFROM|INSERT\s+INTO|UPDATE\s+[\w.]+\s+SET|DELETE\s+FROM)\b", re.DOTALL
)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.parent.relative_to(ROOT)))
def test_every_named_query_is_used(path: Path) -> None:
    owner = path.parent.parent if path.parent.name == "storage" else path.parent
    code = "\n".join(one.read_text(encoding="utf-8") for one in owner.rglob("*.py"))

    unused = [name for name in Queries.load(path) if f'"{name}"' not in code]

    assert not unused


def test_python_holds_no_statement() -> None:
    assert not [
        str(path.relative_to(ROOT))
        for path in MODULES
        if STATEMENT.search(path.read_text(encoding="utf-8"))
    ]
