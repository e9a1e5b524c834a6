"""No module and no function grows beyond what a person reads at once."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
MODULES = [
    path
    for folder in ("libs/lehr", "services", "tests")
    for path in sorted((ROOT / folder).rglob("*.py"))
    if "api" not in path.relative_to(ROOT).parts
]

MODULE_LINES_MAX = 400
FUNCTION_LINES_MAX = 60


def long_functions(path: Path) -> Iterator[str]:
    """Yield the functions of a module that are too long."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or 0) - node.lineno + 1
            if lines > FUNCTION_LINES_MAX:
                yield f"{path.relative_to(ROOT)}: {node.name} has {lines} lines"


def test_modules_stay_small() -> None:
    lines = {path: path.read_text(encoding="utf-8").count("\n") for path in MODULES}

    assert not [
        f"{path.relative_to(ROOT)} has {count}"
        for path, count in lines.items()
        if count > MODULE_LINES_MAX
    ]


def test_functions_stay_small() -> None:
    assert not [told for path in MODULES for told in long_functions(path)]


def test_every_module_says_what_it_is() -> None:
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in MODULES}

    assert not [
        str(path.relative_to(ROOT))
        for path, tree in trees.items()
        if tree.body and not ast.get_docstring(tree)
    ]
