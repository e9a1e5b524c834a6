"""Questions and answers from the docstrings of Python's standard library on this machine.

The sources are parsed, never imported. Order and wording are the same for the same sources.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from lehr.demo.folders import make_once

FILE_NAME = "python-docstrings.jsonl"
#: Characters of an answer: long enough to say something, short enough to learn from on a CPU.
_SHORTEST, _LONGEST = 30, 400
#: Folders of tests, tools and examples, whose docstrings explain nothing to a reader.
_LEFT_OUT = frozenset(
    {"test", "tests", "idlelib", "turtledemo", "lib2to3", "site-packages", "dist-packages"}
    | {"__pycache__", "ensurepip", "pydoc_data", "__phello__", "config"}
)

_MODULE_QUESTIONS = (
    "What is the Python module {name} for?",
    "Describe the standard library module {name}.",
    "When would I use Python's {name} module?",
)
_CLASS_QUESTIONS = (
    "What is the class {name} in Python's {module} module?",
    "Explain the class {module}.{name}.",
    "What does a {name} object from the {module} module represent?",
)
_CALLABLE_QUESTIONS = (
    "What does {name}({arguments}) from Python's {module} module do?",
    "Explain the function {module}.{name}.",
    "How does {name} in the module {module} work?",
    "In Python, what is {module}.{name} used for?",
)
_METHOD_QUESTIONS = (
    "What does the method {name}({arguments}) in Python's {module} module do?",
    "Explain {module}.{name}.",
    "What happens when I call {name} from the {module} module?",
)

_Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True, kw_only=True)
class _Documented:
    """Something with a docstring."""

    module: str
    name: str
    arguments: str
    answer: str
    questions: tuple[str, ...]


def stdlib_rows() -> Iterator[dict[str, object]]:
    """Yield chats of one question and one answer, in a fixed order, no answer twice."""
    told: set[str] = set()
    for thing in _documented(Path(sysconfig.get_paths()["stdlib"])):
        if thing.answer in told:
            continue
        question = thing.questions[len(told) % len(thing.questions)]
        told.add(thing.answer)
        asked = question.format(name=thing.name, module=thing.module, arguments=thing.arguments)
        yield {
            "messages": [
                {"role": "user", "content": asked},
                {"role": "assistant", "content": thing.answer},
            ]
        }


def write_stdlib_rows(folder: Path) -> Path:
    """Return the rows as a JSON lines file under ``folder``, written the first time."""

    def fill(unfinished: Path) -> None:
        with (unfinished / FILE_NAME).open("w", encoding="utf-8") as file:
            for row in stdlib_rows():
                file.write(json.dumps(row, ensure_ascii=False) + "\n")

    version = f"{sys.version_info.major}.{sys.version_info.minor}.{sys.version_info.micro}"
    return make_once(folder / f"python-docstrings-{version}", fill) / FILE_NAME


def _documented(root: Path) -> Iterator[_Documented]:
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        names = parts[:-1] if parts[-1] == "__init__" else parts
        if not names or not _LEFT_OUT.isdisjoint(parts) or names[0].startswith("config-"):
            continue
        if any(name.startswith("_") for name in names) or "__main__" in names:
            continue
        try:
            tree = ast.parse(path.read_bytes())
        except (SyntaxError, ValueError, OSError):
            continue
        yield from _in_module(".".join(names), tree)


def _in_module(module: str, tree: ast.Module) -> Iterator[_Documented]:
    about = _answer(tree)
    if about is not None:
        yield _Documented(
            module=module, name=module, arguments="", answer=about, questions=_MODULE_QUESTIONS
        )
    for node in tree.body:
        if isinstance(node, _Definition):
            yield from _in_definition(module, node, owner="")


def _in_definition(module: str, node: _Definition, *, owner: str) -> Iterator[_Documented]:
    if node.name.startswith("_"):
        return
    answer, is_class = _answer(node), isinstance(node, ast.ClassDef)
    name = f"{owner}{node.name}"
    if answer is not None:
        callables = _METHOD_QUESTIONS if owner else _CALLABLE_QUESTIONS
        yield _Documented(
            module=module,
            name=name,
            arguments="" if isinstance(node, ast.ClassDef) else _arguments(node),
            answer=answer,
            questions=_CLASS_QUESTIONS if is_class else callables,
        )
    if isinstance(node, ast.ClassDef):
        for inner in node.body:
            if isinstance(inner, _Definition):
                yield from _in_definition(module, inner, owner=f"{name}.")


def _arguments(node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    given = node.args
    names = [argument.arg for argument in (*given.posonlyargs, *given.args)]
    names += [f"*{given.vararg.arg}"] if given.vararg else []
    names += [argument.arg for argument in given.kwonlyargs]
    names += [f"**{given.kwarg.arg}"] if given.kwarg else []
    return ", ".join(name for name in names if name not in ("self", "cls"))


def _answer(node: ast.Module | _Definition) -> str | None:
    """Return the first paragraphs of a docstring, as many as are short enough, or None."""
    text = ast.get_docstring(node, clean=False)
    if text is None or not _is_plain(text):
        return None
    paragraphs = re.split(r"\n\s*\n", inspect.cleandoc(text).strip())
    kept = ""
    for paragraph in map(_unwrapped, paragraphs):
        longer = f"{kept}\n\n{paragraph}" if kept else paragraph
        if len(longer) > _LONGEST or paragraph.startswith(">>>"):
            break
        kept = longer
    return kept if len(kept) >= _SHORTEST and kept[-1] in ".!?:)`'\"" else None


def _unwrapped(paragraph: str) -> str:
    """Join the lines of prose; lists, tables and code keep theirs."""
    lines = paragraph.strip("\n").splitlines()
    if any(not line[:1].isalnum() and line[:1] not in "'\"`(" for line in lines):
        return paragraph.strip()
    return " ".join(line.strip() for line in lines)


def _is_plain(text: str) -> bool:
    return all(char.isprintable() or char in "\n\t" for char in text)
