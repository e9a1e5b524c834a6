"""The repository as a whole: what may lie where, and what must not be in it."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

TOP = {
    ".ci", ".gitignore", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "Makefile", "README.md",
    "buf.yaml", "constraints.txt", "deploy", "libs", "proto", "pyproject.toml", "services", "tests",
}  # fmt: skip


def tracked() -> list[str]:
    """Return the files of the repository."""
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return listed.stdout.splitlines()


def test_nothing_else_lies_at_the_top() -> None:
    assert {name.partition("/")[0] for name in tracked()} <= TOP


@pytest.mark.parametrize("name", ["pyproject.toml", "constraints.txt", "README.md", "Makefile"])
def test_no_path_of_a_machine_is_written_down(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")

    assert not re.search(r"(?<![\w.])/(root|home|work|opt)/", text)


def test_every_dependency_is_pinned() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    loose = [line for line in lines if line and not line.startswith("#") and "==" not in line]

    assert not loose


def test_readme_names_only_targets_that_exist() -> None:
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"`make ([a-z0-9-]+)`", (ROOT / "README.md").read_text()))

    assert named
    assert named <= targets
