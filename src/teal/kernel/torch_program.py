"""An exported PyTorch program: its signature, its weights, its graph.

Theory of operation: torch.export keeps a program as one graph whose placeholders are weights, buffers and inputs, flat
and in order, and whose outputs are the program's, and new values of the buffers that it updates. Everything here is
read from the JSON that pt2_program.py has checked; torch's own reader makes the graph of it. Sizes that the program
leaves open are named in the signature (torch_sizes.py). What the graph is made into is torch_graph.py's.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from teal.errors import InvalidArgument, TealError
from teal.host.wire import Spec
from teal.kernel.pt2 import Archive, dtype_of
from teal.kernel.pt2_program import read_program
from teal.kernel.torch_sizes import Sizes

_SCALARS = {"as_sym_int": "int64", "as_sym_float": "float64", "as_sym_bool": "bool"}
_NUMBERS = {"as_int": "int64", "as_float": "float64", "as_bool": "bool"}
_WEIGHTS = {"parameter": "parameter_name", "buffer": "buffer_name", "tensor_constant": "tensor_constant_name"}


@dataclass(slots=True)
class Feed:
    """What a placeholder gets: a weight, an input by its index, or a constant."""

    weight: torch.Tensor | None = None
    input: int | None = None
    constant: Any = None


@dataclass(slots=True)
class Result:
    """One value that the graph returns: an output of the program, by index, or what a buffer becomes (placeholder)."""

    output: int | None = None
    buffer: int | None = None


@dataclass(slots=True)
class Program:
    """See the module."""

    shown: str
    module: torch.fx.GraphModule
    inputs: list[Spec]
    outputs: list[Spec]
    scalars: list[bool]  # of each input: is it a number, and no tensor?
    feeds: list[Feed]  # of each placeholder
    results: list[Result]  # of each value that the graph returns
    sizes: Sizes
    written: bool  # an operator of it writes to a buffer

    @property
    def pure(self) -> bool:
        """Running it twice cannot be noticed: it updates no buffer."""
        return not self.written and all(result.buffer is None for result in self.results)


def read(archive: Archive, name: str) -> Program:
    """The program of that name. Raises InvalidArgument for what cannot be read, or may not be."""
    shown = archive.shown
    raw = read_program(archive.read(f"models/{name}.json"), shown)
    try:
        return _Reading(archive, name, raw).program()
    except TealError as error:
        if shown in str(error):
            raise
        raise InvalidArgument(f"{shown}: {error}") from None
    except (KeyError, ValueError, TypeError, AttributeError, IndexError) as error:
        raise InvalidArgument(
            f"{shown}: its program is not what torch.export.save() writes ({type(error).__name__}: {error}); "
            "export it anew"
        ) from None


class _Reading:
    def __init__(self, archive: Archive, name: str, raw: dict[str, Any]) -> None:
        self._shown = archive.shown
        self._raw = raw
        self._module = raw["graph_module"]
        self._graph = self._module["graph"]
        self._held = archive.tensors(name, "constants") | archive.tensors(name, "weights")
        self._sizes = Sizes(raw["range_constraints"], raw.get("guards_code", []))
        self._inputs: list[Spec] = []
        self._scalars: list[bool] = []
        self._first = True
        self._places: dict[str, int] = {}  # placeholder by the name of the weight it gets

    def program(self) -> Program:
        feeds = [self._feed(i, each) for i, each in enumerate(self._module["signature"]["input_specs"])]
        outputs, results = self._outputs()
        self._module["module_call_graph"] = []  # how the caller's arguments were nested: not needed here
        if len({spec.name for spec in self._inputs}) != len(self._inputs):
            names = [spec.name for spec in self._inputs]
            raise InvalidArgument(f"two inputs of one name among {names[:20]}; export it with others")
        module = self._deserialized()
        written = _writes(module, feeds)
        return Program(self._shown, module, self._inputs, outputs, self._scalars, feeds, results, self._sizes, written)

    def _feed(self, place: int, given: Mapping[str, Any]) -> Feed:
        ((kind, about),) = given.items()
        if kind in _WEIGHTS:
            key = about[_WEIGHTS[kind]]
            if key not in self._held:
                raise InvalidArgument(f"{kind} {key[:80]!r} is not in the file; export it anew")
            self._places[key] = place
            return Feed(weight=self._held[key])
        if kind == "constant_input":
            ((form, value),) = about["value"].items()
            return Feed(constant=None if form == "as_none" else value)
        if kind != "user_input":
            raise InvalidArgument(f"an input of kind {kind!r}, expected tensors and numbers")
        ((form, value),) = about["arg"].items()
        if form == "as_tensor":
            name = value["name"]
            meta = self._graph["tensor_values"][name]
            spec = Spec(
                name, name_of(dtype_of(meta["dtype"])), self._sizes.shape(meta["sizes"], name, first=self._first)
            )
            self._first = False
        elif form in _SCALARS and "as_name" in value:
            name = value["as_name"]
            if form == "as_sym_int":
                self._sizes.number()
            spec = Spec(name, _SCALARS[form], [])
        elif form == "as_none" or form in _NUMBERS:
            return Feed(constant=None if form == "as_none" else value)
        else:
            raise InvalidArgument(f"an input of kind {form!r}, expected tensors and numbers")
        self._inputs.append(spec)
        self._scalars.append(form != "as_tensor")
        return Feed(input=len(self._inputs) - 1)

    def _outputs(self) -> tuple[list[Spec], list[Result]]:
        specs: list[Spec] = []
        results = []
        for kind, given in zip(self._module["signature"]["output_specs"], self._graph["outputs"], strict=True):
            ((form, value),) = given.items()
            if "buffer_mutation" in kind:
                results.append(Result(buffer=self._places[kind["buffer_mutation"]["buffer_name"]]))
            elif "user_output" not in kind:
                raise _write_refused(next(iter(kind)))
            elif form == "as_none":
                results.append(Result())
            else:
                results.append(Result(output=len(specs)))
                specs.append(self._output(form, value))
        names = self._names(len(specs))
        for spec, name in zip(specs, names, strict=True):
            spec.name = name
        return specs, results

    def _output(self, form: str, value: Any) -> Spec:
        if form == "as_tensor":
            meta = self._graph["tensor_values"][value["name"]]
            return Spec("", name_of(dtype_of(meta["dtype"])), self._sizes.known(meta["sizes"]))
        dtype = _SCALARS.get(form) or _NUMBERS.get(form)
        if dtype is None:
            raise InvalidArgument(f"an output of kind {form!r}, expected tensors and numbers")
        return Spec("", dtype, [])

    def _names(self, count: int) -> list[str]:
        """Keys, if the program returns a mapping of tensors; else output, or output_0, output_1 …"""
        plain = ["output"] if count == 1 else [f"output_{i}" for i in range(count)]
        try:
            spec = json.loads(self._module["module_call_graph"][0]["signature"]["out_spec"])[1]
            keys = json.loads(spec["context"])
            if "Dict" not in spec["type"] and "dict" not in spec["type"] and "Output" not in spec["type"]:
                return plain
            named = all(isinstance(key, str) and 0 < len(key) <= 128 for key in keys)
            leaves = all(not child["children_spec"] and child["type"] is None for child in spec["children_spec"])
        except (LookupError, ValueError, TypeError):
            return plain
        return keys if named and leaves and len(keys) == len(set(keys)) == count else plain

    def _deserialized(self) -> torch.fx.GraphModule:
        from torch._export.serde import schema
        from torch._export.serde.serialize import GraphModuleDeserializer, _dict_to_dataclass, _int_to_sympy_int
        from torch.utils._sympy.numbers import int_oo
        from torch.utils._sympy.value_ranges import ValueRanges

        version = self._raw["schema_version"]["major"]
        if version != schema.SCHEMA_VERSION[0]:
            raise InvalidArgument(
                f"written in schema {version}; torch {torch.__version__} reads {schema.SCHEMA_VERSION[0]}; export the "
                "model anew with this torch"
            )
        try:
            serialized: Any = _dict_to_dataclass(schema.ExportedProgram, self._raw)  # type: ignore[no-untyped-call]
            ranges = {
                name: ValueRanges(_int_to_sympy_int(each.min_val, -int_oo), _int_to_sympy_int(each.max_val, int_oo))
                for name, each in serialized.range_constraints.items()
            }
            reader = GraphModuleDeserializer()
            return reader.deserialize(serialized.graph_module, {}, {}, None, ranges).graph_module
        except Exception as error:  # whatever its author did not think of
            raise InvalidArgument(
                f"torch cannot read its program; export it anew with this one: {_last_line(error)}"
            ) from None


def _write_refused(what: str) -> InvalidArgument:
    return InvalidArgument(
        f"it writes to its inputs or parameters ({what[:80]}), which are not its own; export it without that"
    )


def _writes(module: torch.fx.GraphModule, feeds: Sequence[Feed]) -> bool:
    """Does an operator write to a buffer? Raises InvalidArgument for one that writes to an input."""
    placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
    fed = dict(zip(placeholders, feeds, strict=True))
    found = False
    for node in module.graph.nodes:
        schema = getattr(node.target, "_schema", None)
        if node.op != "call_function" or schema is None or not schema.is_mutable:
            continue
        for argument, given in zip(schema.arguments, node.args, strict=False):
            if argument.alias_info is None or not argument.alias_info.is_write:
                continue
            for target in given if isinstance(given, (list, tuple)) else [given]:
                feed = fed.get(_memory_of(target))
                if feed is not None and feed.input is not None:
                    raise _write_refused(str(node.target))
                found = found or feed is not None
    return found


def _memory_of(node: Any) -> Any:
    """The node whose memory this one's value lies in, as far as operators say."""
    while isinstance(node, torch.fx.Node) and node.op == "call_function":
        schema = getattr(node.target, "_schema", None)
        shown = schema is not None and any(each.alias_info is not None for each in schema.returns)
        if not shown and "dropout" not in str(node.target):
            return node
        node = node.args[0]
    return node


def name_of(dtype: torch.dtype) -> str:
    """Teal's name."""
    return str(dtype).removeprefix("torch.")


def _last_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[-1] if lines else type(error).__name__)[:600]
