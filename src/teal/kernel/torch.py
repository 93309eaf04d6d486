"""PyTorch programs, as torch.export saves them (.pt2), bound in place.

Theory of operation: the program runs as exported, operator by operator, or (option ``compile: "1"``) as native code
that torch's compiler makes of it. Either way it is a flat function of weights, inputs and memory for the outputs: a
binding makes that list once for its slot, and a request is one call with it. Weights are views of the sealed file, one
copy for all workers. Packages that AOTInductor has made are torch_package.py's. The number of threads and the precision
of float32 are settings of the whole process: a run sets them, unless they are so already.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from teal._core import Tensor, WorkerSlot
from teal.errors import InvalidArgument, NotFound
from teal.kernel.protocol import Kernel, Outcome, Snapshot, Source, check_inputs
from teal.kernel.sealed import mapped, mapped_privately, memory_of

# What AOTInductor's code was not made for, it must refuse instead of reading where nothing is.
os.environ.setdefault("AOTI_RUNTIME_CHECK_INPUTS", "1")
try:
    import torch
except ImportError:  # a worker without the extra still runs other kernels
    torch = None  # type: ignore[assignment]

_PRECISIONS = {"fp32": "ieee", "bf16": "bf16"}

Settings = tuple[int, str]  # threads, precision
_now: Settings | None = None  # that this process computes with


def torch_kernel(source: Source) -> Kernel:
    """The kernel of a .pt2 file. Raises NotFound without torch, InvalidArgument for a file that is none of torch's."""
    if torch is None:
        raise NotFound("torch is not installed; pip install 'teal-runtime[torch]'")
    from teal.kernel.pt2 import Archive
    from teal.kernel.torch_package import PackageKernel

    compile_it = _options(source)
    if source.precision == "bf16" and not torch.cpu._is_amx_tile_supported():
        # With AVX512_BF16 alone, oneDNN goes on in float32 however it is asked (seen with torch 2.13).
        raise InvalidArgument(
            f"{source.precision}: torch computes float32 so on CPUs with AMX only; leave precision= out, or take "
            "kernel='openvino'",
            path="$.precision",
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch, about memory that it may not know to be read-only
        sealed = [mapped_privately(fd) for fd in source.sealed]
        archive = Archive(mapped(source, "a .pt2 file"), source.shown, sealed)
        natives, programs = archive.natives(), archive.programs()
        if natives:
            return PackageKernel(source, _only(list(natives), source))
        return ProgramKernel(source, archive, _only(programs, source), compile_it=compile_it)


class ProgramKernel:
    """An exported program. Raises InvalidArgument, KernelFailed (it does not compile)."""

    def __init__(self, source: Source, archive: Any, name: str, *, compile_it: bool) -> None:
        from teal.kernel.torch_compile import library
        from teal.kernel.torch_graph import flat
        from teal.kernel.torch_program import read

        program = read(archive, name)
        self._program = program
        self._flat = flat(program, compiled=compile_it)
        self._settings = (source.cores, source.precision or "fp32")
        self.engine = f"torch {torch.__version__}"
        unchecked = program.sizes.unchecked
        self.note = f"conditions of the program that are not checked: {'; '.join(unchecked)}" if unchecked else ""
        self.snapshot: Snapshot | None = None
        self.restored = False
        self._library = None
        if compile_it:
            text = archive.read(f"models/{name}.json")
            self._library, self.snapshot, note = library(source, name, program, self.engine, text)
            self.restored = source.snapshot is not None and note == ""
            self.note = "; ".join(filter(None, (self.note, note)))
        self._weights = [] if compile_it else [feed.weight for feed in program.feeds if feed.weight is not None]
        self.inputs, self.outputs, self.pure = program.inputs, program.outputs, program.pure
        self.weights = "mapped"

    def bind(self, slot: WorkerSlot) -> Callable[[], Outcome]:
        extents = check_inputs(self.inputs, slot)
        shapes = {spec.name: t.shape for spec, t in zip(self.inputs, slot.inputs, strict=True) if t is not None}
        numbers = self._numbers(slot)
        self._program.sizes.check(extents, shapes)
        if len(slot.outputs) != len(self.outputs):
            raise InvalidArgument(f"{len(slot.outputs)} outputs, expected {len(self.outputs)}", path="$.outputs")
        given = [*self._weights, *(None if t is None else over(t, t.shape) for t in slot.inputs)]
        places = {len(self._weights) + i: view for i, view in numbers.items()}
        beside: dict[int, Any] = {}  # outputs without memory in the slot
        for output, size in self._flat.written:
            shape = [extents[extent] if isinstance(extent, str) else extent for extent in size]
            tensor = slot.outputs[output]
            if tensor is None:
                given.append(torch.empty(shape, dtype=getattr(torch, str(self.outputs[output].dtype))))
                if slot.wanted[output]:
                    beside[output] = given[-1]
            else:
                self._check_planned(output, tensor)
                given.append(over(tensor, shape))
        return self._run(slot, given, places, beside)

    def _numbers(self, slot: WorkerSlot) -> dict[int, Any]:
        """Inputs that are numbers, not tensors: by index, memory to read them from."""
        return {
            i: tensor.numpy()
            for i, (scalar, tensor) in enumerate(zip(self._program.scalars, slot.inputs, strict=True))
            if scalar and tensor is not None
        }

    def _check_planned(self, output: int, tensor: Tensor) -> None:
        spec = self.outputs[output]
        if tensor.dtype != spec.dtype:
            raise InvalidArgument(
                f"output {spec.name!r} planned as {tensor.dtype}, expected {spec.dtype}", path="$.outputs"
            )

    def _run(
        self, slot: WorkerSlot, given: list[Any], places: dict[int, Any], beside: dict[int, Any]
    ) -> Callable[[], Outcome]:
        function = self._flat.module.forward if self._library is None else self._library.run
        settings, returned, whole = self._settings, self._flat.returned, len(self.outputs)
        copied = sum(t.nbytes for t in (slot.outputs[i] for i in self._flat.copied) if t is not None)
        spread = self._library is None

        def run() -> None:
            if _now != settings:
                _settle(settings)
            function(*given) if spread else function(given)

        def run_with_more() -> Outcome:
            if _now != settings:
                _settle(settings)
            for i, view in places.items():
                given[i] = view.item()
            made = function(*given) if spread else function(given)
            if copied:
                slot.count_copy_out(copied)
            outcome: list[Any] = [None] * whole
            for i, value in zip(returned, made or (), strict=True):
                outcome[i] = _value(value, self.outputs[i].dtype)
            for i, memory in beside.items():
                outcome[i] = memory.reshape([int(e) for e in memory.shape])
            return outcome

        return run_with_more if places or beside or returned or copied else run

    def close(self) -> None:
        self._library = None
        self._weights = []


def over(tensor: Tensor, shape: Any) -> Any:
    """A torch tensor on a slot's memory, in a shape of as many elements."""
    dtype = getattr(torch, tensor.dtype)
    if tensor.nbytes == 0:
        return torch.empty(list(shape), dtype=dtype)
    return torch.from_numpy(memory_of(tensor)).view(dtype).reshape(list(shape))


def settle(settings: Settings) -> None:
    """Makes this process compute so, if it does not already."""
    if _now != settings:
        _settle(settings)


def _settle(settings: Settings) -> None:
    global _now
    threads, precision = settings
    torch.set_num_threads(threads)
    backend: Any = torch.backends.mkldnn
    for part in (backend.matmul, backend.conv):
        part.fp32_precision = _PRECISIONS[precision]
    _now = settings


def _value(value: Any, dtype: str | None) -> Any:
    """What the core stores: tensors as they are, if they read like their shape."""
    if isinstance(value, torch.Tensor):
        return value.contiguous()
    return np.asarray(value, dtype)


def _options(source: Source) -> bool:
    """Is it to be compiled? Raises InvalidArgument for options that there are not."""
    if unknown := sorted(set(source.options) - {"compile"}):
        raise InvalidArgument(f"{unknown}: not options of torch kernels; there is compile", path="$.options")
    value = source.options.get("compile", "0")
    if value not in ("0", "1"):
        raise InvalidArgument(f"compile={value[:40]!r}, expected 0 or 1", path="$.options")
    return value == "1"


def _only(names: list[str], source: Source) -> str:
    if len(names) != 1:
        raise InvalidArgument(f"{source.shown}: {len(names)} programs, expected one; save one with torch.export.save()")
    return names[0]
