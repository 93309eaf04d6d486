"""An exported program as a flat function that writes its outputs where it is told.

Theory of operation: the function takes (weights…, inputs…, memory of outputs…). The operator that makes an output is
replaced by its ``out=`` form; views behind it are undone on the output's memory, whose bytes are the same. An output
without such an operator is returned, and copied by whoever called. For the compiler (torch_compile.py) every output is
written by a copy at the end, which it turns into a store of the loop that computes the value, where there is one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from teal.kernel.torch_program import Program

_aten = torch.ops.aten
_VIEWS = frozenset(
    {
        _aten.view.default,
        _aten._unsafe_view.default,
        _aten.reshape.default,
        _aten.unsqueeze.default,
        _aten.squeeze.default,
        _aten.squeeze.dim,
        _aten.squeeze.dims,
        _aten.flatten.using_ints,
        _aten.alias.default,
    }
)
Size = list[int | str]


@dataclass(slots=True)
class Flat:
    """The function, and how to call it. returned: outputs that it returns, in this order; written: outputs that it
    writes, in the order of their memory, each with the shape which that memory is to have (extents by symbol)."""

    module: GraphModule
    returned: list[int] = field(default_factory=list)
    written: list[tuple[int, Size]] = field(default_factory=list)
    copied: list[int] = field(default_factory=list)  # of those that are written: behind an operator of a library


def flat(program: Program, *, compiled: bool) -> Flat:
    """compiled: for the compiler, with weights as attributes w0, w1 … of the module by placeholder."""
    return _Flattening(program, compiled).flat()


class _Flattening:
    def __init__(self, program: Program, compiled: bool) -> None:
        self._program = program
        self._compiled = compiled
        self._graph = Graph()
        self._root = torch.nn.Module()
        self._new: dict[Node, Any] = {}  # what became of the program's nodes
        self._taken: set[Node] = set()  # makers of outputs that already write to one
        self._last: Node | None = None  # placeholder

    def flat(self) -> Flat:
        nodes = list(self._program.module.graph.nodes)
        self._feeds([node for node in nodes if node.op == "placeholder"])
        for node in nodes:
            if node.op == "get_attr":  # a block of the program that is called
                setattr(self._root, node.target, getattr(self._program.module, node.target))
            if node.op not in ("placeholder", "output"):
                self._new[node] = self._graph.node_copy(node, lambda inner: self._new[inner])
        (output,) = (node for node in nodes if node.op == "output")
        made = Flat(GraphModule(torch.nn.Module(), Graph()))
        self._graph.output(self._ends(output.args[0], made))
        self._graph.eliminate_dead_code()
        self._graph.lint()
        made.module = GraphModule(self._root, self._graph)
        return made

    def _feeds(self, placeholders: Sequence[Node]) -> None:
        feeds = list(zip(placeholders, self._program.feeds, strict=True))
        for i, (node, feed) in enumerate(feeds):
            if feed.weight is not None and not self._compiled:
                self._new[node] = self._placeholder(f"w{i}", node.meta.get("val"))
        for i, (node, feed) in enumerate(feeds):
            if feed.input is not None:
                self._new[node] = self._placeholder(f"x{i}", node.meta.get("val"))
        for i, (node, feed) in enumerate(feeds):
            if feed.weight is not None and self._compiled:
                self._root.register_buffer(f"w{i}", feed.weight)
                self._new[node] = self._graph.get_attr(f"w{i}")
                self._new[node].meta["val"] = node.meta.get("val")
            elif feed.weight is None and feed.input is None:
                self._new[node] = feed.constant

    def _placeholder(self, name: str, value: Any) -> Node:
        place = self._graph.inserting_before() if self._last is None else self._graph.inserting_after(self._last)
        with place:
            node = self._graph.placeholder(name)
        node.meta["val"] = value
        self._last = node
        return node

    def _ends(self, values: Any, made: Flat) -> tuple[Any, ...]:
        """Writes buffers and outputs; what is left to return."""
        returned = []
        for result, value in zip(self._program.results, values, strict=True):
            new = self._new[value] if isinstance(value, Node) else value
            if result.buffer is not None:
                self._graph.call_function(_aten.copy_.default, (self._buffer(result.buffer), new))
            elif result.output is not None and not self._write(result.output, value, made):
                made.returned.append(result.output)
                returned.append(new)
        return tuple(returned)

    def _buffer(self, place: int) -> Any:
        placeholders = [node for node in self._program.module.graph.nodes if node.op == "placeholder"]
        return self._new[placeholders[place]]

    def _write(self, output: int, value: Any, made: Flat) -> bool:
        """False: it has to be returned."""
        spec = self._program.outputs[output]
        if not isinstance(value, Node) or not isinstance(value.meta.get("val"), torch.Tensor):
            return False
        if spec.shape is None or any(extent is None for extent in spec.shape):
            return False
        shape = [extent for extent in spec.shape if extent is not None]
        maker = _maker(value)
        if self._compiled:
            memory = self._memory(value, output)
            self._graph.call_function(_aten.copy_.default, (memory, self._new[value]))
            made.written.append((output, shape))
            if maker.op == "placeholder" or _is_library(maker.target):
                made.copied.append(output)
            return True
        size = self._size(maker.meta["val"]) if maker is not value else shape
        form = _out_form(maker.target) if maker.op == "call_function" and maker not in self._taken else None
        if form is None or size is None or not _is_plain(maker) or not _is_plain(value):
            return False
        self._taken.add(maker)
        overload, name = form
        memory = self._memory(maker, output)
        old = self._new[maker]
        with self._graph.inserting_before(old):
            new = self._graph.call_function(overload, old.args, {**old.kwargs, name: memory})
        old.replace_all_uses_with(new)
        self._graph.erase_node(old)
        self._new[maker] = new
        made.written.append((output, size))
        return True

    def _size(self, value: torch.Tensor) -> Size | None:
        size: Size = []
        for extent in value.shape:
            known = extent if isinstance(extent, int) else self._program.sizes.label(str(extent.node.expr))
            if known is None:
                return None
            size.append(known)
        return size

    def _memory(self, like: Node, output: int) -> Node:
        value = like.meta["val"]
        with value.fake_mode:
            empty = torch.empty(value.shape, dtype=value.dtype, device="cpu")
        return self._placeholder(f"y{output}", empty)


def _maker(value: Node) -> Node:
    """The operator whose value this is, however it is viewed."""
    while value.op == "call_function" and value.target in _VIEWS and _is_plain(value.args[0]):  # type: ignore[arg-type]
        value = value.args[0]  # type: ignore[assignment]
    return value


def _is_plain(node: Node) -> bool:
    """Does its value lie in memory as its shape reads?"""
    value = node.meta.get("val") if isinstance(node, Node) else None
    if not isinstance(value, torch.Tensor):
        return False
    try:
        return bool(value.is_contiguous())
    except Exception:  # a size that decides it is not known
        return False


def _out_form(target: Any) -> tuple[Any, str] | None:
    """The overload that takes the place of the result, and its name for that, if there is one without a copy inside."""
    if not isinstance(target, torch._ops.OpOverload) or len(target._schema.returns) != 1:
        return None
    wanted = [(argument.name, str(argument.type)) for argument in target._schema.arguments]
    for name in target.overloadpacket.overloads():
        form = getattr(target.overloadpacket, name)
        outs = [argument for argument in form._schema.arguments if argument.is_out]
        given = [(each.name, str(each.type)) for each in form._schema.arguments if not each.is_out]
        if len(outs) == 1 and given == wanted and torch.Tag.generated not in form.tags:
            return form, outs[0].name
    return None


def _is_library(target: Any) -> bool:
    """Does the compiler leave it to a library, whose result it then has to copy?"""
    names = ("mm", "linear", "conv", "attention", "gemm", "lstm", "gru", "fft", "sort", "topk", "embedding_bag")
    return isinstance(target, torch._ops.OpOverload) and any(name in target._schema.name for name in names)
