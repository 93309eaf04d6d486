"""A graph as a program that a worker can run: what goes in, what comes out, and the bytes of a .pt2 file.

Theory of operation: AOTAutograd hands over a functional graph of ATen operators whose inputs are flat: parameters and
buffers, numbers that stand for extents, tensors. Here it becomes an ExportedProgram of tensors only. Extents are read
off the tensors they belong to. A tensor whose elements lie densely, though in another order (channels_last), goes in
and comes out in the order of its memory, so that it is copied as one piece and keeps its strides. What a worker could
not run rightly (random numbers, operators of the user's own, other devices) is Unsupported, by name. The file holds no
weights: they are the first inputs, and named.
"""

from __future__ import annotations

import copy
import hashlib
import io
import json
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.export import ExportedProgram
from torch.export.exported_program import ModuleCallEntry, ModuleCallSignature
from torch.export.graph_signature import (
    ExportGraphSignature,
    InputKind,
    InputSpec,
    OutputKind,
    OutputSpec,
    TensorArgument,
)
from torch.utils import _pytree as pytree

from teal.errors import TealError

_NAMESPACES = ("aten", "prims")
_MAX_RANK = 8
DTYPES = {
    getattr(torch, name): name
    for name in (
        "bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64", "float16", "float32",
        "float64", "complex64", "complex128", "bfloat16", "float8_e4m3fn", "float8_e5m2",
    )
}  # fmt: skip


class Unsupported(TealError):
    """A graph that does not become a kernel: which operator (or input), and why. Never leaves the backend."""

    def __init__(self, what: str, reason: str) -> None:
        super().__init__(f"{what}: {reason}")
        self.what = what
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Layout:
    """How a tensor lies: sizes and strides as its user sees them (symbolic ones are SymInts), and ``order``: its
    dimensions from the outermost in memory; None: C order."""

    dtype: torch.dtype
    shape: tuple[Any, ...]
    stride: tuple[Any, ...]
    order: tuple[int, ...] | None

    def packed(self, shape: Sequence[int]) -> tuple[int, ...]:
        """The shape in the order of memory."""
        return tuple(shape) if self.order is None else tuple(shape[axis] for axis in self.order)


@dataclass(frozen=True, slots=True)
class Program:
    """``weights``, ``inputs``: positions in the graph's flat arguments. ``returned``: of each of the graph's outputs
    ("kernel", number), ("argument", position), ("number", expression) or ("constant", value). ``constants``: tensors
    of the graph's own, which are weights too, behind the others. ``symbols``: position of each extent's argument."""

    exported: ExportedProgram
    weights: tuple[int, ...]
    constants: tuple[torch.Tensor, ...]
    inputs: tuple[tuple[int, Layout], ...]
    outputs: tuple[Layout, ...]
    returned: tuple[tuple[str, Any], ...]
    symbols: tuple[tuple[int, Any], ...]
    digest: str

    def file(self, layout: dict[str, Any]) -> bytes:
        """The .pt2 file; ``layout``: where weights lie, by the name of their input."""
        from torch.export.pt2_archive._package import package_pt2

        buffer = io.BytesIO()
        package_pt2(buffer, exported_programs=self.exported, extra_files={"teal.json": json.dumps(layout)})
        return buffer.getvalue()


def weight_name(number: int) -> str:
    """Of the input that stands for a weight."""
    return f"w{number}"


def program_of(graph: fx.GraphModule, weights: Sequence[int]) -> Program:
    """``weights``: positions of inputs that stay what they are. Raises Unsupported."""
    graph = fx.GraphModule(graph, copy.deepcopy(graph.graph))
    for node in graph.graph.nodes:
        _check(node)
    return _Builder(graph, weights).program()


class _Builder:
    def __init__(self, module: fx.GraphModule, weights: Sequence[int]) -> None:
        self.module = module
        self.graph = module.graph
        self.arguments = [node for node in self.graph.nodes if node.op == "placeholder"]
        self.fixed = tuple(at for at in weights if self.arguments[at].users)
        self.constants: list[torch.Tensor] = []
        self.own: list[fx.Node] = []  # their inputs

    def program(self) -> Program:
        self._sums()
        self.graph.eliminate_dead_code()
        self.first = next(node for node in self.graph.nodes if node.op != "placeholder")
        symbols = self._numbers()
        inputs = self._tensors()
        self._own_constants()
        outputs, returned = self._outputs()
        self._name()
        for node in self.graph.nodes:
            node.meta = {key: node.meta[key] for key in ("val",) if key in node.meta}
        self.graph.lint()
        self.module.recompile()
        exported = self._exported()
        digest = hashlib.sha256(torch.__version__.encode())
        digest.update(_serialised(exported))
        return Program(
            exported, self.fixed, tuple(self.constants), inputs, outputs, returned, symbols, digest.hexdigest()
        )

    def _sums(self) -> None:
        """A sum of several extents, which torch.export cannot write down, is sums of two."""
        for node in [node for node in self.graph.nodes if node.target is torch.sym_sum]:
            first, *others = node.args[0]
            total = first
            for other in others:
                before = total.meta["val"] if isinstance(total, fx.Node) else total
                with self.graph.inserting_before(node):
                    added = self.graph.call_function(operator.add, (total, other))
                added.meta["val"] = before + (other.meta["val"] if isinstance(other, fx.Node) else other)
                total = added
            node.replace_all_uses_with(total)
            self.graph.erase_node(node)

    def _tensors(self) -> tuple[tuple[int, Layout], ...]:
        """Inputs come in the order of their memory."""
        inputs = []
        for at, node in enumerate(self.arguments):
            value = node.meta["val"]
            if isinstance(value, torch.Tensor) and node.users and (value.is_conj() or value.is_neg()):
                # Its memory, which is all that goes to a worker, holds other numbers.
                raise Unsupported(node.name, "is conjugated or negated by a bit: give .resolve_conj().resolve_neg()")
            if at in self.fixed or not isinstance(value, torch.Tensor):
                continue
            if not node.users:
                self.graph.erase_node(node)
                continue
            layout = _layout(value, node.name)
            inputs.append((at, layout))
            if layout.order is not None:
                back = sorted(range(len(layout.order)), key=layout.order.__getitem__)
                self._through(node, torch.ops.aten.permute.default, value.permute(layout.order).contiguous(), back)
            elif not value.is_contiguous():
                if any("as_strided" in str(user.target) for user in node.users):
                    raise Unsupported("aten.as_strided", f"of input {node.name}, whose memory has gaps")
                node.meta["val"] = value.contiguous()
        return tuple(inputs)

    def _through(self, node: fx.Node, operator: Any, value: torch.Tensor, *arguments: Any) -> None:
        """``node`` is ``value`` from now on, and its users take what the operator makes of it."""
        front = next(other for other in self.graph.nodes if other.op != "placeholder")
        with self.graph.inserting_before(front):
            made = self.graph.call_function(operator, (node, *arguments))
        node.replace_all_uses_with(made, delete_user_cb=lambda user: user is not made)
        node.meta["val"] = value
        made.meta["val"] = operator(value, *arguments)

    def _numbers(self) -> tuple[tuple[int, Any], ...]:
        """Extents are read off the tensors; the client still knows them as arguments."""
        symbols = []
        for at, node in enumerate(self.arguments):
            value = node.meta["val"]
            if isinstance(value, torch.Tensor):
                continue
            if isinstance(value, torch.SymInt) and value.node.expr.is_Symbol:
                symbols.append((at, value.node.expr))
            if node.users:
                self._read_off(node, value)
            self.graph.erase_node(node)
        return tuple(symbols)

    def _read_off(self, node: fx.Node, value: Any) -> None:
        for tensor in self.arguments:
            seen = tensor.meta["val"]
            for axis, extent in enumerate(seen.shape if isinstance(seen, torch.Tensor) else ()):
                if (
                    isinstance(extent, torch.SymInt)
                    and isinstance(value, torch.SymInt)
                    and extent.node.expr == value.node.expr
                ):
                    with self.graph.inserting_before(self.first):
                        made = self.graph.call_function(torch.ops.aten.sym_size.int, (tensor, axis))
                    made.meta["val"] = extent
                    node.replace_all_uses_with(made)
                    return
        raise Unsupported(
            f"input {node.name}", f"a number ({value}) that changes between calls and is no extent of a tensor"
        )

    def _own_constants(self) -> None:
        """Tensors that the graph brings along become weights."""
        for node in [node for node in self.graph.nodes if node.op == "get_attr"]:
            value = getattr(self.module, str(node.target), None)
            if not isinstance(value, torch.Tensor):
                raise Unsupported(str(node.target), "a part of the program that is not a tensor")
            _check_tensor(value, node)
            with self.graph.inserting_before(next(iter(self.graph.nodes))):
                made = self.graph.placeholder(f"constant_{len(self.constants)}")
            made.meta["val"] = node.meta["val"]
            node.replace_all_uses_with(made)
            self.graph.erase_node(node)
            self.own.append(made)
            self.constants.append(value)

    def _outputs(self) -> tuple[tuple[Layout, ...], tuple[tuple[str, Any], ...]]:
        output = next(node for node in reversed(self.graph.nodes) if node.op == "output")
        kernel: list[fx.Node] = []
        layouts: list[Layout] = []
        returned: list[tuple[str, Any]] = []
        for value in output.args[0]:
            if not isinstance(value, fx.Node):
                returned.append(("constant", value))
            elif value in self.arguments:
                returned.append(("argument", self.arguments.index(value)))
            elif not isinstance(value.meta["val"], torch.Tensor):
                returned.append(_number(value))
            elif value in kernel:
                returned.append(("kernel", kernel.index(value)))
            else:
                returned.append(("kernel", len(kernel)))
                kernel.append(value)
                layouts.append(_layout(value.meta["val"], value.name))
        made = []
        for node, layout in zip(kernel, layouts, strict=True):
            if layout.order is not None:
                with self.graph.inserting_before(output):
                    packed = self.graph.call_function(torch.ops.aten.permute.default, (node, list(layout.order)))
                packed.meta["val"] = node.meta["val"].permute(layout.order)
                node = packed
            made.append(node)
        output.args = (tuple(made),)
        return tuple(layouts), tuple(returned)

    def _name(self) -> None:
        """Weights first, w0, w1, …; then x0, x1, …; the graph's nodes by number: the same in every process."""
        at = {node: position for position, node in enumerate(self.arguments)}
        weights = [self.arguments[position] for position in self.fixed] + self.own
        given = [node for node in self.graph.nodes if node.op == "placeholder" and node not in weights]
        given.sort(key=at.__getitem__)
        for node in reversed([*weights, *given]):
            next(iter(self.graph.nodes)).prepend(node)
        names = [weight_name(i) for i in range(len(weights))] + [f"x{i}" for i in range(len(given))]
        for number, node in enumerate(list(self.graph.nodes)):
            node.name = names[number] if number < len(names) else f"v{number}"
            if node.op == "placeholder":
                node.target = node.name

    def _exported(self) -> ExportedProgram:
        placeholders = [node for node in self.graph.nodes if node.op == "placeholder"]
        output = next(node for node in reversed(self.graph.nodes) if node.op == "output")
        count = len(self.fixed) + len(self.own)
        inputs = [
            InputSpec(InputKind.CONSTANT_TENSOR, TensorArgument(node.name), node.name)
            if i < count
            else InputSpec(InputKind.USER_INPUT, TensorArgument(node.name), None)
            for i, node in enumerate(placeholders)
        ]
        outputs = [OutputSpec(OutputKind.USER_OUTPUT, TensorArgument(node.name), None) for node in output.args[0]]
        given = tuple(0 for _ in placeholders[count:])
        signature = ModuleCallSignature(
            inputs=[],
            outputs=[],
            in_spec=pytree.tree_structure((given, {})),
            out_spec=pytree.tree_structure(tuple(0 for _ in output.args[0])),
        )
        return ExportedProgram(
            root=self.module,
            graph=self.graph,
            graph_signature=ExportGraphSignature(inputs, outputs),
            state_dict={},
            range_constraints=_ranges(placeholders),
            module_call_graph=[ModuleCallEntry("", signature)],
            constants={node.name: node.meta["val"] for node in placeholders[:count]},  # what they are, without bytes
        )


def _check(node: fx.Node) -> None:
    """Raises Unsupported for what no worker could run rightly."""
    value = node.meta.get("val")
    for tensor in value if isinstance(value, (tuple, list)) else (value,):
        if isinstance(tensor, torch.Tensor):
            _check_tensor(tensor, node)
    if node.op != "call_function":
        return
    target = node.target
    if isinstance(target, torch._ops.HigherOrderOperator):
        inner = next((str(each) for each in node.args if isinstance(each, torch._ops.OpOverload)), "")
        what = f"{target} of {inner}" if inner else str(target)
        raise Unsupported(what, "control flow and other operators of operators stay in this process")
    if isinstance(target, torch._ops.OpOverload):
        if target.namespace not in _NAMESPACES:
            raise Unsupported(str(target), "an operator that the worker may not have")
        if _draws(node, target):
            off = "; model.eval() turns dropout off" if "dropout" in str(target) else ""
            raise Unsupported(
                str(target), f"draws random numbers, and this process's generator would not be asked{off}"
            )


def _draws(node: fx.Node, target: Any) -> bool:
    """Does it draw random numbers? Attention does not, unless it drops some of its weights."""
    if torch.Tag.nondeterministic_seeded not in target.tags:
        return False
    for at, argument in enumerate(target._schema.arguments):
        if argument.name == "dropout_p":
            given = node.args[at] if at < len(node.args) else node.kwargs.get("dropout_p", argument.default_value)
            return bool(given != 0)
    return True


def _check_tensor(tensor: torch.Tensor, node: fx.Node) -> None:
    name = str(node.target)
    if tensor.device.type != "cpu":
        raise Unsupported(name, f"on device {tensor.device}, and the workers compute on the CPU")
    if tensor.layout != torch.strided:
        raise Unsupported(name, f"has layout {tensor.layout}, and Teal passes dense tensors")


def _layout(value: torch.Tensor, name: str) -> Layout:
    """Raises Unsupported for what is no tensor of Teal's."""
    if value.dtype not in DTYPES:
        raise Unsupported(name, f"has dtype {value.dtype}, which Teal does not pass")
    if value.dim() > _MAX_RANK:
        raise Unsupported(name, f"has {value.dim()} dimensions, and Teal passes at most {_MAX_RANK}")
    order: tuple[int, ...] | None = None
    if not value.is_contiguous():
        by_stride = sorted(range(value.dim()), key=lambda axis: (-_hint(value.stride(axis)), -_hint(value.shape[axis])))
        if value.permute(by_stride).is_contiguous():
            order = tuple(by_stride)
    return Layout(value.dtype, tuple(value.shape), tuple(value.stride()), order)


def _hint(extent: Any) -> int:
    return int(extent) if isinstance(extent, int) else int(extent.node.hint)


def _number(node: fx.Node) -> tuple[str, Any]:
    value = node.meta["val"]
    if isinstance(value, (int, float, bool)):
        return ("constant", value)
    if isinstance(value, torch.SymInt):
        return ("number", value.node.expr)
    raise Unsupported(str(node.target), f"returns {type(value).__name__}, a number that only the run can tell")


def _ranges(placeholders: Sequence[fx.Node]) -> dict[Any, Any]:
    for node in placeholders:
        for extent in node.meta["val"].shape:
            if isinstance(extent, torch.SymInt):
                known = extent.node.shape_env.var_to_range
                return {symbol: known[symbol] for symbol in known if symbol.is_integer}  # others are no extents
    return {}


def _serialised(exported: ExportedProgram) -> bytes:
    """Raises Unsupported with the reason torch gives."""
    from torch._export.serde.serialize import serialize

    try:
        return bytes(serialize(exported, serialize_state_dict=False, serialize_constants=False).exported_program)
    except Exception as error:
        text = " ".join(str(error).split())[:300]
        raise Unsupported("torch.export", f"cannot write this graph down: {text}") from None
