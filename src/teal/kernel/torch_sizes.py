"""The sizes that an exported program leaves open: their names, and what the program assumes of them.

Theory of operation: torch.export calls an open size by a symbol (``s77``), bounds it, and keeps conditions ("guards")
on sizes of inputs as Python text. The text is not run: it is parsed, and evaluated here over the extents of a call. A
condition of a form that is not understood is not checked, and said so in the load's note.
"""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from teal.errors import InvalidArgument
from teal.kernel.pt2_program import check_expression

Number = int | float | bool

_BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
    ast.Div: operator.truediv,
}
_COMPARED: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_CALLED: dict[str, Callable[..., Any]] = {
    "Integer": int,
    "Rational": operator.truediv,
    "Mul": lambda *each: math.prod(each),
    "Add": lambda *each: sum(each),
    "Pow": operator.pow,
    "FloorDiv": operator.floordiv,
    "CleanDiv": operator.floordiv,
    "CeilDiv": lambda a, b: -(-a // b),
    "IntTrueDiv": operator.truediv,
    "PythonMod": operator.mod,
    "Mod": operator.mod,
    "ModularIndexing": lambda a, b, c: a // b % c,
    "Max": max,
    "Min": min,
    "Abs": abs,
    "Identity": lambda one: one,
    "Not": operator.not_,
    "And": lambda *each: all(each),
    "Or": lambda *each: any(each),
    **dict.fromkeys(("Eq", "Equality"), operator.eq),
    **dict.fromkeys(("Ne", "Unequality"), operator.ne),
    **dict.fromkeys(("Lt", "StrictLessThan"), operator.lt),
    **dict.fromkeys(("Le", "LessThan"), operator.le),
    **dict.fromkeys(("Gt", "StrictGreaterThan"), operator.gt),
    **dict.fromkeys(("Ge", "GreaterThan"), operator.ge),
}
_NO_VALUE = (ZeroDivisionError, TypeError, ValueError, OverflowError)
_EXTENT = re.compile(r"L\['(\w+)'\](?:\.size\(\)|\.shape)\[(\d+)\]")


class Unknown(Exception):
    """An expression of a form, or over a symbol, that has no value here."""


def evaluated(node: ast.AST, values: Mapping[str, Number]) -> Any:
    """The value of a parsed expression. Raises Unknown."""
    match node:
        case ast.Expression(body=body):
            return evaluated(body, values)
        case ast.Constant(value=bool() | int() | float() as value):
            return value
        case ast.Name(id=name) if name in values:
            return values[name]
        case ast.Call(func=ast.Name(id="Symbol"), args=[ast.Constant(value=str(name)), *_]) if name in values:
            return values[name]
        case ast.UnaryOp(op=ast.USub(), operand=inner):
            return -evaluated(inner, values)
        case ast.UnaryOp(op=ast.Not(), operand=inner):
            return not evaluated(inner, values)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            return _BINARY[type(op)](evaluated(left, values), evaluated(right, values))
        case ast.BoolOp(op=ast.And(), values=each):
            return all(evaluated(one, values) for one in each)
        case ast.BoolOp(op=ast.Or(), values=each):
            return any(evaluated(one, values) for one in each)
        case ast.Compare(left=left, ops=ops, comparators=right) if all(type(op) in _COMPARED for op in ops):
            chain = [evaluated(one, values) for one in (left, *right)]
            return all(_COMPARED[type(op)](a, b) for op, a, b in zip(ops, chain, chain[1:], strict=True))
        case ast.Call(func=ast.Name(id=name), args=given, keywords=[]) if name in _CALLED:
            return _CALLED[name](*(evaluated(one, values) for one in given))
    raise Unknown(ast.unparse(node)[:100] if isinstance(node, ast.expr) else "")


class _Anything(dict[str, int]):
    """A value for every symbol, so that two expressions can be told apart by what they come to."""

    def __init__(self, factor: int) -> None:
        super().__init__()
        self._factor = factor

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and re.fullmatch(r"[a-z]+\d+", name) is not None

    def __getitem__(self, name: str) -> int:
        return self._factor * 5040 * (1 + int(name.lstrip("abcdefghijklmnopqrstuvwxyz")))


_ASSUMED = (_Anything(11), _Anything(1013))
Mark = tuple[Any, ...]  # what an expression comes to, under each of these


def _mark(tree: ast.AST) -> Mark | None:
    try:
        return tuple(evaluated(tree, values) for values in _ASSUMED)
    except (Unknown, *_NO_VALUE):
        return None


class Sizes:
    """Open sizes of a program's inputs, by the label that the signature gives them: ``batch`` for axis 0 of its first
    tensor, else input and axis. The same expression has one label wherever it is."""

    def __init__(self, ranges: Mapping[str, Mapping[str, Any]], guards: Sequence[str]) -> None:
        self._labels: dict[Mark, str] = {}
        self._trees: dict[str, ast.AST] = {}  # by label
        self._symbols: dict[str, str] = {}  # symbol → label, where an axis is the symbol itself
        self._ranges = [(_mark(check_expression(text)), bounds) for text, bounds in ranges.items()]
        self._guards: list[tuple[str, ast.AST, dict[str, tuple[str, int]]]] = []
        self._open = False  # sizes that no label stands for decide something
        self.unchecked: list[str] = []
        for guard in guards:
            self._add_guard(guard)

    def _add_guard(self, text: str) -> None:
        places: dict[str, tuple[str, int]] = {}

        def named(found: re.Match[str]) -> str:
            name = f"extent{len(places)}"
            places[name] = (found[1], int(found[2]))
            return name

        try:
            tree = ast.parse(_EXTENT.sub(named, text), mode="eval")
            evaluated(tree, dict.fromkeys(places, 2))
        except _NO_VALUE:
            pass
        except (SyntaxError, RecursionError, Unknown):
            self.unchecked.append(text[:100])
            return
        self._guards.append((text[:100], tree, places))

    def shape(self, sizes: Sequence[Mapping[str, Any]], name: str, *, first: bool) -> list[int | str | None]:
        """The shape of an input as the signature writes it. first: of the first tensor."""
        shape: list[int | str | None] = []
        for axis, size in enumerate(sizes):
            extent = _extent(size)
            if isinstance(extent, int):
                shape.append(extent)
                continue
            mark = _mark(extent)
            if mark is None:
                self._open = True
                shape.append(None)
                continue
            label = self._labels.setdefault(mark, "batch" if first and axis == 0 else f"{name}_{axis}")
            self._trees.setdefault(label, extent)
            symbol = _symbol(extent)
            if symbol is not None:
                self._symbols[symbol] = label
            shape.append(label)
        return shape

    def number(self) -> None:
        """A whole number is an input too."""
        self._open = True

    def label(self, text: str) -> str | None:
        """The label of an expression of torch's, if an input has that size."""
        try:
            mark = _mark(check_expression(text))
        except InvalidArgument:
            return None
        return None if mark is None else self._labels.get(mark)

    def known(self, sizes: Sequence[Mapping[str, Any]]) -> list[int | str | None]:
        """The shape of an output as the signature writes it: what no input has is None."""
        shape: list[int | str | None] = []
        for size in sizes:
            extent = _extent(size)
            mark = None if isinstance(extent, int) else _mark(extent)
            shape.append(extent if isinstance(extent, int) else None if mark is None else self._labels.get(mark))
        return shape

    def check(self, extents: Mapping[str, int], shapes: Mapping[str, Sequence[int]]) -> None:
        """``extents``: by label; ``shapes``: of inputs by name. Raises InvalidArgument for what is not assumed."""
        for mark, bounds in self._ranges:
            label = None if mark is None else self._labels.get(mark)
            if label is not None:
                _check_range(label, extents[label], bounds["min_val"], bounds["max_val"])
        symbols = {symbol: extents[label] for symbol, label in self._symbols.items()}
        for label, tree in self._trees.items():
            try:
                wanted = evaluated(tree, symbols)
            except (Unknown, *_NO_VALUE):
                continue  # a guard says so
            if extents[label] != wanted:
                raise InvalidArgument(f"{label!r} is {extents[label]}, the program needs {wanted}", path="$.inputs")
        for text, tree, places in self._guards:
            try:
                values = {key: shapes[name][axis] for key, (name, axis) in places.items()}
                holds = evaluated(tree, values)
            except (Unknown, LookupError, *_NO_VALUE):
                continue
            if not holds:
                raise InvalidArgument(
                    f"the program was exported for sizes with {text}; pad the input, or export it anew", path="$.inputs"
                )

    @property
    def solved(self) -> bool:
        """Does every size follow from one that is an axis of an input by itself?"""
        used = {
            node.value for tree in self._trees.values() for node in ast.walk(tree) if isinstance(node, ast.Constant)
        }
        return not self._open and {name for name in used if isinstance(name, str)} <= set(self._symbols)


def _check_range(label: str, extent: int, low: int | None, high: int | None) -> None:
    if (low is not None and extent < low) or (high is not None and extent > high):
        most = "any number" if high is None else str(high)
        raise InvalidArgument(
            f"{label!r} is {extent}, expected {0 if low is None else low} to {most}, which the program was "
            "exported for",
            path="$.inputs",
        )


def _symbol(tree: ast.AST) -> str | None:
    match tree:
        case ast.Expression(body=ast.Call(func=ast.Name(id="Symbol"), args=[ast.Constant(value=str(name)), *_])):
            return name
        case ast.Expression(body=ast.Name(id=name)):
            return name
    return None


def _extent(size: Mapping[str, Any]) -> int | ast.Expression:
    """A number, or an expression."""
    if "as_int" in size:
        return int(size["as_int"])
    tree = check_expression(size["as_expr"]["expr_str"])
    match tree:
        case ast.Expression(body=ast.Call(func=ast.Name(id="Integer"), args=[ast.Constant(value=int(number))])):
            return number
    return tree
