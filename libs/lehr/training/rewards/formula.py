"""Sums over named scores, such as ``0.7 * answer + 0.3 * style``: parsed, never executed."""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping
from functools import lru_cache

from lehr.training.rewards.base import Unscorable

CHARACTERS_MAX = 1000

_OPERATORS: Mapping[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: math.pow,
}
_SIGNS: Mapping[type[ast.unaryop], Callable[[float], float]] = {
    ast.UAdd: operator.pos,
    ast.USub: operator.neg,
}
#: Of OpenAI's ``multi``; with how many values each takes at least and at most.
_FUNCTIONS: Mapping[str, tuple[Callable[..., float], int, int]] = {
    "min": (min, 2, 16),
    "max": (max, 2, 16),
    "abs": (abs, 1, 1),
    "floor": (math.floor, 1, 1),
    "ceil": (math.ceil, 1, 1),
    "exp": (math.exp, 1, 1),
    "sqrt": (math.sqrt, 1, 1),
    "log": (math.log, 1, 1),
}


@lru_cache(maxsize=64)
def _parsed(text: str) -> ast.expr:
    try:
        # ``^`` is a power here, as in OpenAI's formulas.
        return ast.parse(text.replace("^", "**").strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise ValueError(f"{text!r} is no formula; write 0.5 * first + 0.5 * second") from None


def check(text: str, names: frozenset[str]) -> None:
    """Raise ValueError unless a text is a formula over ``names``, using each of them."""
    left = set(names)
    for node in ast.walk(_parsed(text)):
        if isinstance(node, ast.Name) and node.id not in names and node.id not in _FUNCTIONS:
            told = ", ".join(sorted(names))
            raise ValueError(f"names {node.id}, which is no grader; use {told}")
        if isinstance(node, ast.Name):
            left.discard(node.id)
    if left:
        raise ValueError(f"leaves out {sorted(left)[0]}; use every grader, or remove it")
    try:
        _refuse_other(_parsed(text), names)
    except RecursionError:
        raise ValueError("is nested too deeply; write it out as a plain sum") from None


def _refuse_other(node: ast.expr, names: frozenset[str]) -> None:
    match node:
        case ast.Constant(value=int() | float()) if not isinstance(node.value, bool):
            return
        case ast.Name(id=name) if name in names:
            return
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            _refuse_other(left, names)
            _refuse_other(right, names)
        case ast.UnaryOp(op=op, operand=operand) if type(op) in _SIGNS:
            _refuse_other(operand, names)
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in _FUNCTIONS:
            _, least, most = _FUNCTIONS[name]
            if not least <= len(args) <= most:
                raise ValueError(f"gives {name} {len(args)} values; give it {least} or more")
            for one in args:
                _refuse_other(one, names)
        case _:
            known = ", ".join(_FUNCTIONS)
            raise ValueError(
                f"has {ast.unparse(node)!r}; use numbers, graders, + - * / ^ and {known}"
            )


def value_of(text: str, scores: Mapping[str, float]) -> float:
    """Compute a checked formula.

    Raises:
        Unscorable: it has no finite value for these scores.
    """
    try:
        value = float(_value(_parsed(text), scores))
    except (ArithmeticError, ValueError) as error:
        raise Unscorable("FORMULA_HAS_NO_VALUE", f"has no value: {error}") from None
    if not math.isfinite(value):
        raise Unscorable("FORMULA_HAS_NO_VALUE", f"is {value}")
    return value


def _value(node: ast.expr, scores: Mapping[str, float]) -> float:
    match node:
        case ast.Constant(value=int() | float() as number):
            return float(number)
        case ast.Name(id=name):
            return scores[name]
        case ast.BinOp(left=left, op=op, right=right):
            return _OPERATORS[type(op)](_value(left, scores), _value(right, scores))
        case ast.UnaryOp(op=sign, operand=operand):
            return _SIGNS[type(sign)](_value(operand, scores))
        case ast.Call(func=ast.Name(id=name), args=args):
            return _FUNCTIONS[name][0](*(_value(one, scores) for one in args))
    raise AssertionError("a formula is checked before it is computed")
