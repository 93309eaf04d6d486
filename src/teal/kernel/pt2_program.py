"""What may stand in a .pt2 file's program before torch gets to read it.

Theory of operation: the program is JSON, but torch's reader turns parts of it into Python that it then runs: targets of
nodes are looked up by dotted name, names of values become names in generated code, expressions of shapes go through
``eval``, guards through ``exec``, and tree specs import the types they name. So the JSON is read here first. What is
not needed to run it is taken out (guards are evaluated here instead, metadata, tree specs, example inputs); everything
else must be of the few forms below. Whatever is not, is refused, naming it.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping
from typing import Any

from teal.errors import InvalidArgument

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,255}")
_KEYWORDS = frozenset({"None", "True", "False"})
_SYMBOL = re.compile(r"[a-z]{1,3}[0-9]{1,9}")
_OPERATOR = re.compile(r"torch\.ops\.(aten|prims)\.([A-Za-z_][A-Za-z0-9_]*)\.([A-Za-z_][A-Za-z0-9_]*)")
# Of the host's file system, or of no use in a program.
_FORBIDDEN = frozenset({"from_file", "_print", "set_", "set_data", "_foreach_copy_"})
_ARITHMETIC = (
    "eq", "ne", "le", "ge", "lt", "gt", "neg", "pos", "mul", "add", "sub", "floordiv", "mod", "pow", "truediv", "and_",
    "or_", "lshift", "rshift", "getitem",
)  # fmt: skip
_SCALAR_TARGETS = frozenset(
    [f"_operator.{name}" for name in _ARITHMETIC]
    + [f"math.{name}" for name in ("trunc", "ceil", "floor")]
    + [f"torch.sym_{name}" for name in ("not", "int", "float", "ite", "max", "min", "sqrt")]
)
_BLOCKS = frozenset({"torch.ops.higher_order.wrap_with_set_grad_enabled", "torch.ops.higher_order.wrap_with_autocast"})
_FUNCTIONS = frozenset(
    (
        "Integer", "Rational", "Mul", "Add", "Pow", "Equality", "Unequality", "StrictLessThan", "StrictGreaterThan",
        "LessThan", "GreaterThan", "FloorDiv", "ModularIndexing", "Where", "PythonMod", "Mod", "CleanDiv", "CeilToInt",
        "FloorToInt", "CeilDiv", "LShift", "RShift", "PowByNatural", "FloatPow", "FloatTrueDiv", "IntTrueDiv",
        "TruncToFloat", "TruncToInt", "RoundToInt", "RoundDecimal", "ToFloat", "Identity", "Max", "Min", "Eq", "Ne",
        "Lt", "Le", "Gt", "Ge", "And", "Or", "Not", "Abs", "floor", "ceiling",
    )
)  # fmt: skip
_OPERATORS = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.Pow)
_LONGEST = 2000
_LARGEST_POWER = 8


def read_program(data: bytes, shown: str) -> dict[str, Any]:
    """The program as JSON that torch may be given. Raises InvalidArgument, naming what is not allowed."""
    try:
        program = json.loads(data)
    except (ValueError, RecursionError):
        raise InvalidArgument(f"{shown}: its program is not JSON; save it with torch.export.save()") from None
    try:
        module = program["graph_module"]
        _check(program)
        for node in _graphs(module["graph"]):
            node["metadata"] = {}
        module["metadata"] = {}
        module["treespec_namedtuple_fields"] = {}
        program["verifiers"] = []
    except InvalidArgument as error:
        raise InvalidArgument(f"{shown}: {error}") from None
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InvalidArgument(
            f"{shown}: its program is not what torch.export.save() writes ({type(error).__name__}: {error}); "
            "export it anew"
        ) from None
    return program  # type: ignore[no-any-return]


def _graphs(graph: dict[str, Any]) -> list[dict[str, Any]]:
    """The nodes of a graph and of the graphs in it."""
    nodes = []
    for node in graph["nodes"]:
        nodes.append(node)
        for given in node["inputs"]:
            if "as_graph" in given["arg"]:
                nodes += _graphs(given["arg"]["as_graph"]["graph"])
    return nodes


def _check(program: Mapping[str, Any]) -> None:
    """Raises InvalidArgument."""
    module = program["graph_module"]
    waiting: list[Any] = [module["graph"], module["signature"]]
    while waiting:
        value = waiting.pop()
        if isinstance(value, list):
            waiting += value
        elif isinstance(value, dict):
            for key, inner in value.items():
                _check_entry(key, inner)
                if key != "metadata":
                    waiting.append(inner)
    for text in program["range_constraints"]:
        check_expression(text)


def _check_entry(key: str, value: Any) -> None:
    if key in ("name", "as_name"):
        if value is not None and (not _NAME.fullmatch(value) or value in _KEYWORDS):
            raise InvalidArgument(f"name {value[:60]!r}, expected letters, digits and _")
    elif key in ("target", "as_operator"):
        check_target(value)
    elif key == "expr_str":
        check_expression(value)
    elif key == "device" or key == "as_device":
        if value["type"] != "cpu":
            raise InvalidArgument(f"it runs on {value['type'][:20]!r}; export it on the CPU: model.cpu() first")
    elif key in ("as_custom_obj", "custom_obj", "custom_obj_values", "token"):
        if value:
            raise InvalidArgument(
                f"it holds an object of a class of its own ({str(value)[:60]}), which only pickle could read, and Teal "
                "unpickles nothing; leave it out"
            )
    elif key.endswith("_values"):
        for name in value:
            _check_entry("name", name)


def check_target(target: str) -> None:
    """Raises InvalidArgument unless it is an operator of torch's own, or arithmetic of sizes."""
    found = _OPERATOR.fullmatch(target)
    if target in _SCALAR_TARGETS or target in _BLOCKS or (found is not None and found[2] not in _FORBIDDEN):
        return
    raise InvalidArgument(
        f"operator {target[:100]!r}, expected those of torch.ops.aten and torch.ops.prims; rewrite the model without "
        "it, or load it as a function"
    )


def check_expression(text: str) -> ast.Expression:
    """An expression over symbols of shapes, parsed. Raises InvalidArgument."""
    refused = InvalidArgument(f"expression {text[:100]!r} of a shape, expected arithmetic of its symbols")
    if not isinstance(text, str) or len(text) > _LONGEST:
        raise refused
    try:
        tree = ast.parse(text, mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise refused from None
    if not _is_arithmetic(tree.body):
        raise refused
    return tree


def _is_arithmetic(node: ast.expr) -> bool:
    match node:
        case ast.Constant(value=bool() | int() | float()):
            return True
        case ast.Name(id=name):
            return _SYMBOL.fullmatch(name) is not None or name in ("oo", "int_oo")
        case ast.Call(func=ast.Name(id="Symbol"), args=[ast.Constant(value=str(name))], keywords=about):
            assumed = all(each.arg is not None and isinstance(each.value, ast.Constant) for each in about)
            return _SYMBOL.fullmatch(name) is not None and assumed
        case ast.Call(func=ast.Name(id=name), args=given, keywords=[]) if name in _FUNCTIONS:
            return all(map(_is_arithmetic, given)) and (name != "Pow" or _is_small(*given))
        case ast.BinOp(left=left, op=op, right=right) if isinstance(op, _OPERATORS):
            fits = not isinstance(op, ast.Pow) or _is_small(left, right)
            return fits and _is_arithmetic(left) and _is_arithmetic(right)
        case ast.UnaryOp(op=ast.USub() | ast.UAdd(), operand=inner):
            return _is_arithmetic(inner)
        case ast.Compare(left=left, comparators=others):
            return all(map(_is_arithmetic, (left, *others)))
    return False


def _is_small(base: ast.expr, power: ast.expr) -> bool:
    """A power whose value does not take for ever."""
    numbers = [node.value for node in ast.walk(power) if isinstance(node, ast.Constant)]
    nested = any(isinstance(node, ast.Pow) or getattr(node, "id", "") == "Pow" for node in ast.walk(base))
    return not nested and all(isinstance(number, int) and abs(number) <= _LARGEST_POWER for number in numbers)
