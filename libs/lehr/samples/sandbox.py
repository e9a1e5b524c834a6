"""The engine that chat templates run in: as transformers sets it up, and with bounds.

A template comes with a model from anywhere. It reaches no Python, and a budget of passes, text and
time bounds what it costs; what slips past that is bounded by the process it runs in.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from time import monotonic
from typing import Any

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
from jinja2 import filters
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

PASSES_MAX = 200_000
"""Passes through loops and macros of one rendering; a chat of 10,000 turns needs a tenth."""
CHARACTERS_MAX = 256 * 2**20
"""Characters that one rendering may build, counting every piece that is joined."""
SECONDS_MAX = 10.0
WIDTH_MAX = 10_000
"""Widest padding, indent or precision."""
_LOOKS_AT_CLOCK = 256

_NUMBER = re.compile(r"\d+")
#: Widths that are values, once doubled signs are taken out: ``%*d`` and ``{:{}}``.
_COMPUTED_WIDTHS = {"%": re.compile(r"%[^%a-zA-Z]*\*"), "{": re.compile(r"\{[^{}]*\{")}
_PADDING = frozenset({"center", "ljust", "rjust", "zfill", "expandtabs"})
#: Methods of no use to a chat, and those that lead to bytes, which have as many again.
_REFUSED = frozenset({"translate", "encode", "to_bytes"})
_BITS_MAX = 4096
"""Of a product of whole numbers."""


class TemplateTooExpensive(jinja2.TemplateError):
    """A template does more than laying out a chat can need."""


class _Budget:
    """What one rendering has used."""

    def __init__(self) -> None:
        self._passes = 0
        self._characters = 0
        self._end = monotonic() + SECONDS_MAX

    def step(self) -> None:
        """Count one pass of a loop or macro."""
        self._passes += 1
        if self._passes > PASSES_MAX:
            raise TemplateTooExpensive(f"it loops more than {PASSES_MAX} times")
        if self._passes % _LOOKS_AT_CLOCK == 0 and monotonic() > self._end:
            raise TemplateTooExpensive(f"it takes more than {SECONDS_MAX:g} seconds")

    def build(self, characters: int) -> None:
        """Count text or a list before it is built."""
        self._characters += characters
        if self._characters > CHARACTERS_MAX:
            raise TemplateTooExpensive(f"it builds more than {CHARACTERS_MAX} characters")


_BUDGET: ContextVar[_Budget] = ContextVar("template_budget")


@contextmanager
def budget() -> Iterator[None]:
    """Bound what the renderings inside cost together."""
    token = _BUDGET.set(_Budget())
    try:
        yield
    finally:
        _BUDGET.reset(token)


def compiled(source: str, *, now: datetime | None) -> jinja2.Template:
    """Compile a template; ``now`` is the date that it may print, None means that of the rendering.

    Raises:
        jinja2.TemplateSyntaxError: it is not valid.
    """
    environment = _Environment(now)
    tree = environment.parse(source)
    meter = _meter_of(environment)
    repeated = (jinja2.nodes.For, jinja2.nodes.Macro, jinja2.nodes.CallBlock)
    for block in tree.find_all(repeated):
        body: list[jinja2.nodes.Node] = getattr(block, "body")  # noqa: B009 - untyped there
        body.insert(0, jinja2.nodes.ExprStmt(meter.call("step"), lineno=block.lineno))
    _meter_joins(tree, meter)
    tree.set_environment(environment)
    return jinja2.Template.from_code(
        environment, environment.compile(tree), environment.make_globals(None)
    )


def _meter_joins(node: jinja2.nodes.Node, meter: _Meter) -> None:
    """Let every ``a ~ b`` be joined by the meter."""
    for name, value in node.iter_fields():
        if isinstance(value, jinja2.nodes.Node):
            _meter_joins(value, meter)
            setattr(node, name, meter.joining(value))
        elif isinstance(value, list):
            for at, inner in enumerate(value):
                if isinstance(inner, jinja2.nodes.Node):
                    _meter_joins(inner, meter)
                    value[at] = meter.joining(inner)


class _Environment(ImmutableSandboxedEnvironment):
    """Jinja as transformers uses it, with every operation metered that can build much."""

    intercepted_binops = frozenset({"*", "+", "**", "%"})

    def __init__(self, now: datetime | None) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[_Generation, _Meter, jinja2.ext.loopcontrols],
        )
        self.filters.update(tojson=_tojson, **_metered_filters())
        for name in ("random", "urlize", "xmlattr"):
            del self.filters[name]
        del self.globals["lipsum"]

        def strftime_now(layout: str) -> str:
            return (now or datetime.now(UTC)).strftime(layout)

        self.globals.update(
            raise_exception=_raise_exception,
            strftime_now=strftime_now,
            dict=_Dict(),
            namespace=_Namespace,
        )

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Refuse what would build too much, then do what the operator says."""
        if operator == "**" and (abs(left) > WIDTH_MAX or abs(right) > 64):
            raise TemplateTooExpensive("it raises to a high power")
        if operator == "%" and isinstance(left, str):
            _refuse_wide(left, "%")
        elif operator == "*":
            for one, other in ((left, right), (right, left)):
                if isinstance(one, str | list | tuple) and isinstance(other, int):
                    _BUDGET.get().build(len(one) * max(other, 0))
            _refuse_long(left, right)
        elif operator == "+":
            _BUDGET.get().build(_size(left) + _size(right))
        return super().call_binop(context, operator, left, right)

    def wrap_str_format(self, value: Any) -> Any:
        """Refuse wide fields when a template takes ``format`` of a text."""
        if getattr(value, "__name__", "") in ("format", "format_map"):
            _refuse_wide(str(getattr(value, "__self__", "")), "{")
        return super().wrap_str_format(value)

    def call(self, context: Context, called: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Call what a template calls, unless it is a method that would build too much."""
        owner, name = getattr(called, "__self__", None), getattr(called, "__name__", "")
        if isinstance(owner, str | int) and name in _REFUSED:
            raise TemplateTooExpensive(f"it may not call {name}")
        if isinstance(owner, str):
            args = _look_at_method(owner, name, args, kwargs)
        return super().call(context, called, *args, **kwargs)


def _look_at_method(
    text: str, name: str, args: tuple[Any, ...], named: Mapping[str, Any]
) -> tuple[Any, ...]:
    """Return the arguments with which a text's method may be called."""
    if name in _PADDING:
        _refuse_widths((*args, *named.values()), times=text.count("\t") + 1)
    elif name == "replace" and len(args) >= 2:
        _BUDGET.get().build(len(text) + text.count(args[0]) * len(args[1]))
    elif name == "join" and args:
        # What is joined may be read only once.
        parts = list(args[0])
        _BUDGET.get().build(sum(len(str(part)) + len(text) for part in parts))
        return parts, *args[1:]
    return args


def _refuse_widths(args: Iterable[Any], *, times: int = 1) -> None:
    """Refuse a width, or a text in place of one, that is too wide; count what is padded."""
    for arg in args:
        width = len(arg) if isinstance(arg, str) else arg if isinstance(arg, int) else 0
        if width > WIDTH_MAX:
            raise TemplateTooExpensive(f"it pads to more than {WIDTH_MAX} characters")
        _BUDGET.get().build(max(width, 0) * times)


def _refuse_wide(layout: str, sign: str) -> None:
    """Refuse a layout whose fields, begun by ``sign``, are too wide; count what they pad."""
    if _COMPUTED_WIDTHS[sign].search(layout.replace(sign * 2, "")):
        raise TemplateTooExpensive("it pads to a width that it computes")
    # Leading zeros are no width; a number of many digits is not even read.
    widths = [number.lstrip("0")[:9] for number in _NUMBER.findall(layout)]
    _refuse_widths(int(width or "0") for width in widths)


def _refuse_long(left: Any, right: Any) -> None:
    """Refuse a product of whole numbers that is longer than any that a chat has a use for."""
    if not (isinstance(left, int) and isinstance(right, int)):
        return
    if left.bit_length() + right.bit_length() > _BITS_MAX:
        raise TemplateTooExpensive(f"it multiplies to more than {_BITS_MAX} bits")


def _size(value: Any) -> int:
    return len(value) if isinstance(value, str | list | tuple) else 0


def _metered_filters() -> dict[str, Callable[..., Any]]:
    """Return Jinja's own filters that can build much, behind a look at what they would build."""

    def center(value: str, width: int = 80) -> str:
        _refuse_widths((width,))
        return filters.do_center(value, width)

    def indent(s: str, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
        step = len(width) if isinstance(width, str) else width
        _refuse_widths((step,))
        _BUDGET.get().build(len(s) + step * (s.count("\n") + 1))
        return filters.do_indent(s, width, first, blank)

    @jinja2.pass_eval_context
    def join(context: Any, value: Iterable[Any], d: str = "", attribute: Any = None) -> str:
        parts = list(value)
        _BUDGET.get().build(sum(_size(part) + len(d) for part in parts))
        return filters.sync_do_join(context, parts, d, attribute)

    @jinja2.pass_eval_context
    def replace(context: Any, s: str, old: str, new: str, count: int | None = None) -> str:
        _BUDGET.get().build(len(s) + str(s).count(old) * len(new))
        return filters.do_replace(context, s, old, new, count)

    def layout(value: str, *args: Any, **kwargs: Any) -> str:
        _refuse_wide(str(value), "%")
        return filters.do_format(value, *args, **kwargs)

    def batch(value: Any, linecount: int, fill_with: Any = None) -> Iterator[list[Any]]:
        _refuse_widths((linecount,))
        return filters.do_batch(value, linecount, fill_with)

    def slices(value: Any, slices: int, fill_with: Any = None) -> Iterator[list[Any]]:
        _refuse_widths((slices,))
        return filters.sync_do_slice(value, slices, fill_with)

    return {
        "batch": batch,
        "center": center,
        "indent": indent,
        "join": join,
        "replace": replace,
        "format": layout,
        "slice": slices,
    }


class _Meter(jinja2.ext.Extension):
    """Calls that a template cannot name, and so cannot replace."""

    def call(self, name: str, *args: jinja2.nodes.Expr) -> jinja2.nodes.Call:
        """Return the node of a call to a method of this class."""
        return self.call_method(name, list(args))

    def joining(self, node: jinja2.nodes.Node) -> jinja2.nodes.Node:
        """Return ``node``, or where it is ``a ~ b`` a call that joins under the budget."""
        if not isinstance(node, jinja2.nodes.Concat):
            return node
        return self.call("join", jinja2.nodes.List(node.nodes)).set_lineno(node.lineno)

    def step(self) -> None:
        """Count a pass."""
        _BUDGET.get().step()

    def join(self, parts: list[Any]) -> str:
        """Join the texts of ``a ~ b``."""
        texts = [str(part) for part in parts]
        _BUDGET.get().build(sum(map(len, texts)))
        return "".join(texts)


def _meter_of(environment: jinja2.Environment) -> _Meter:
    return next(one for one in environment.iter_extensions() if isinstance(one, _Meter))


class _Generation(jinja2.ext.Extension):
    """``{% generation %}``: the body is what an assistant writes."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it as a plain set

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        marks = jinja2.nodes.Name("lehr_marks", "load")
        call = self.call_method("_mark", [marks], lineno=line)
        return jinja2.nodes.CallBlock(call, [], [], body).set_lineno(line)

    def _mark(self, marks: tuple[str, str] | None, caller: Any) -> str:
        text: str = caller()
        return text if not marks else f"{marks[0]}{text}{marks[1]}"


class _Dict:
    """``dict`` as templates may use it: to build one, not to reach its type."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, keys: Any, value: Any = None) -> dict[Any, Any]:
        return dict.fromkeys(keys, value)


class _Namespace(jinja2.utils.Namespace):
    """``namespace`` without attributes that begin with an underscore."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        # `self` is positional so that a template may name an attribute `self`.
        self, *given = args
        attributes = dict(*given, **kwargs)
        for name in attributes:
            _refuse_private(name)
        jinja2.utils.Namespace.__init__(self, attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _refuse_private(name)
        super().__setitem__(name, value)


def _refuse_private(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise jinja2.exceptions.SecurityError(f"a template may not set {name!r} on a namespace")


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes HTML, which would put < into training text.
    _refuse_widths((indent, *(separators or ())))
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise_exception(message: str) -> str:
    raise jinja2.TemplateError(message)
