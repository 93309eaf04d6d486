"""PyTorch programs: a .pt2 file that torch.export.save wrote, compiled by inductor when the options say compile="1".

Theory of operation: the program's flat inputs and outputs are the signature. A binding makes torch tensors over the
slot's memory once; a request then runs the compiled program on them, and copies its results to where the client reads
them. A program may leave its weights out: then its file says (``teal.json``) where in the sealed regions that came with
it they lie, and they are used where they are, so that programs and processes share one copy. A program with symbolic
extents is compiled through torch.compile, which keeps what it had assumed of them and compiles again where it must.
"""

from __future__ import annotations

import ctypes
import functools
import json
import mmap
import os
from collections.abc import Callable, Sequence
from typing import Any

from teal._core import Tensor, WorkerSlot
from teal.errors import InvalidArgument, NotFound
from teal.host.wire import Spec
from teal.kernel.protocol import Outcome, Source, check_inputs

LAYOUT = "teal.json"  # in the file's extra/


class TorchKernel:
    """One program. Raises NotFound without torch, InvalidArgument for a file that is no exported program."""

    pure = True

    def __init__(self, source: Source) -> None:
        try:
            import torch
        except ImportError:
            raise NotFound("torch is not installed where the host runs; pip install torch there") from None
        if source.fd is None:
            raise InvalidArgument(f"{source.reference or source.name}: a torch kernel needs its file", path="$.source")
        torch.set_num_threads(source.threads or max(1, len(os.sched_getaffinity(0))))
        self._torch = torch
        self._dtypes = {name: getattr(torch, name) for name in _DTYPES}
        program, layout = _program(source)
        graph = program.graph_module
        nodes = [node for node in graph.graph.nodes if node.op == "placeholder"]
        weights = self._weights(source, layout)
        self._fixed = [(at, weights[node.name]) for at, node in enumerate(nodes) if node.name in weights]
        given = [node for node in nodes if node.name not in weights]
        self.inputs = [self._spec(node.name, node.meta["val"], known=True) for node in given]
        returned = next(node for node in reversed(graph.graph.nodes) if node.op == "output").args[0]
        self.outputs = [self._spec(f"y{i}", node.meta["val"]) for i, node in enumerate(returned)]
        examples = [weights[node.name] if node.name in weights else _example(node.meta["val"]) for node in nodes]
        with torch.no_grad():
            self._run = self._compiled(graph, examples, nodes, source.options)

    def bind(self, slot: WorkerSlot) -> Callable[[], Outcome]:
        check_inputs(self.inputs, slot)
        if len(slot.outputs) != len(self.outputs):
            raise InvalidArgument(f"{len(slot.outputs)} outputs, expected {len(self.outputs)}", path="$.outputs")
        self._torch.set_grad_enabled(False)  # of the loop's thread, which runs all requests
        arguments = [self._view(tensor) for tensor in slot.inputs if tensor is not None]
        for at, weight in self._fixed:
            arguments.insert(at, weight)
        outputs = [None if tensor is None else self._view(tensor) for tensor in slot.outputs]
        return functools.partial(_run, self._run, arguments, outputs, slot.wanted)

    def close(self) -> None:
        del self._run, self._fixed

    def _compiled(self, graph: Any, examples: list[Any], nodes: list[Any], options: dict[str, str]) -> Any:
        if options.get("compile") != "1":
            return graph
        import torch._inductor.config as inductor

        inductor.compile_threads = 1  # no processes of its own
        if any(not isinstance(extent, int) for node in nodes for extent in node.meta["val"].shape):
            run = self._torch.compile(graph, dynamic=True, fullgraph=True)
        else:
            run = self._torch._inductor.compile(graph, examples)
        run(*examples)  # type: ignore[no-untyped-call]
        return run

    def _weights(self, source: Source, layout: dict[str, Any]) -> dict[str, Any]:
        regions = [
            mmap.mmap(fd, 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE) for fd in source.sealed
        ]
        weights = {}
        for name, (region, offset, nbytes, dtype, shape, stride) in layout.items():
            memory = self._torch.frombuffer(regions[region], dtype=self._torch.uint8, offset=offset, count=nbytes)
            weights[name] = memory.view(self._dtypes[dtype]).as_strided(shape, stride)
        return weights

    def _spec(self, name: str, value: Any, *, known: bool = False) -> Spec:
        shape = [extent if isinstance(extent, int) else _symbol(extent) for extent in value.shape]
        dtype = str(value.dtype).removeprefix("torch.")
        if known and any(extent is None for extent in shape):
            raise InvalidArgument(
                f"input {name!r} has shape {tuple(value.shape)}, expected numbers and symbols", path="$.source"
            )
        return Spec(name, dtype, shape)

    def _view(self, tensor: Tensor) -> Any:
        dtype = self._dtypes[tensor.dtype]
        if tensor.nbytes == 0:
            return self._torch.empty(tensor.shape, dtype=dtype)
        memory = (ctypes.c_uint8 * tensor.nbytes).from_address(tensor.address)
        memory.owner = tensor  # type: ignore[attr-defined]
        return self._torch.frombuffer(memory, dtype=dtype).view(tensor.shape)


_DTYPES = (
    "bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64", "float16", "float32", "float64",
    "complex64", "complex128", "bfloat16", "float8_e4m3fn", "float8_e5m2",
)  # fmt: skip


def _run(run: Callable[..., Sequence[Any]], arguments: list[Any], outputs: list[Any], wanted: Any) -> Outcome:
    made = run(*arguments)
    left: list[Any] | None = None
    for at, (place, value) in enumerate(zip(outputs, made, strict=True)):
        if place is not None and place.shape == value.shape:
            place.copy_(value)
        elif wanted[at]:
            left = left or [None] * len(outputs)
            left[at] = value.contiguous().numpy()
    return left


def _program(source: Source) -> tuple[Any, dict[str, Any]]:
    from torch.export.pt2_archive._package import load_pt2

    try:
        with open(f"/proc/self/fd/{source.fd}", "rb") as file:  # with a position of its own
            contents = load_pt2(file)
        layout = json.loads(contents.extra_files.get(LAYOUT, "{}")).get("weights", {})
        return contents.exported_programs["model"], layout
    except Exception as error:
        text = " ".join(str(error).split())[:600]
        raise InvalidArgument(
            f"{source.reference or source.name}: expected a program of torch.export.save(): {text}"
        ) from None


def _symbol(extent: Any) -> str | None:
    expression = extent.node.expr
    return str(expression) if expression.is_Symbol else None


def _example(value: Any) -> Any:
    import torch

    shape = [extent if isinstance(extent, int) else extent.node.hint or 2 for extent in value.shape]
    return torch.zeros(shape, dtype=value.dtype)
