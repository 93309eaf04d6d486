"""The protocol that a resident kernel implements.

A kernel is one loaded model version inside one worker. ``bind(slot)`` is called once for each slot that calls it (and
again when the slot's shapes or places change) and returns a callable that runs the request in place; whatever can be
prepared for these addresses and shapes is prepared there. The callable takes nothing and returns ``None`` when every
output was written in place, or a list with one entry per output: an array, ``(shape, packed bytes)`` for BYTES, or
``None`` for "in place". A kernel whose ``preemption`` is "yields" may return a generator instead, which returns that:
wherever it yields, the request may leave the worker, and go on there later or be closed. Everything runs in the
worker's one thread. What ``bind`` raises becomes InvalidArgument at the caller, what the callable raises KernelFailed,
with type and text.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from teal._core import WorkerSlot
from teal.errors import InvalidArgument
from teal.host.engines import KINDS
from teal.host.wire import Spec

Outcome = Sequence[Any] | None
MAX_RANK = 8  # core/memory/descriptor.hpp


class Kernel(Protocol):
    """inputs, outputs: signature, in the order of the descriptor. pure: running it twice cannot be noticed."""

    inputs: list[Spec]
    outputs: list[Spec]
    pure: bool

    def bind(self, slot: WorkerSlot) -> Callable[[], Outcome | Generator[Any, None, Outcome]] | None:
        """The callable that runs a request of this slot; of a device model, None: the core's own kernel does.

        Raises InvalidArgument when its tensors do not suit.
        """
        ...

    def close(self) -> None:
        """Gives up what the kernel holds. No binding of it is used afterwards."""
        ...


@dataclass(slots=True)
class Snapshot:
    """An optimised form that an engine made of a file: what it was made with, and sealed memory files by name.

    A kernel that made one while it was loaded has it as ``snapshot``; the worker hands it to the host. One that began
    with the snapshot of its source has ``restored``. ``whole``: it was made of the file alone, and suits any other
    load of the same bytes.
    """

    key: str
    parts: dict[str, int]
    whole: bool = True

    def close(self) -> None:
        for fd in self.parts.values():
            os.close(fd)
        self.parts = {}


@dataclass(slots=True)
class Source:
    """Where a kernel comes from: its name, a path or reference, and the sealed bytes of its file if it has one."""

    name: str
    reference: str
    fd: int | None = None
    threads: int | None = None
    options: dict[str, str] = field(default_factory=dict)
    precision: str | None = None  # fp32, bf16 or None: the file's own
    device: str | None = None
    weights_bytes: int = 0  # so many bytes in front of the file hold its weights (an OpenVINO IR's .bin)
    trusted: bool = False  # whoever loads it may run native code here
    wants_snapshot: bool = False  # whoever loads it keeps an optimised form, if one is made
    snapshot: Snapshot | None = None  # made by an earlier load of the same file, perhaps with something else
    sealed: tuple[int, ...] = ()  # descriptors of sealed memory with weights (docs/compile.md)
    worker: int = 0  # which worker of its pool loads it
    ducks: tuple[str, ...] = ()  # of the pool: worker i calls duck i
    duck_key: str = ""  # path of their key
    headers: str = ""  # folder for headers that a compiler keeps precompiled; empty: none

    @property
    def cores(self) -> int:
        """Threads that an engine is to run with."""
        return self.threads or max(1, len(os.sched_getaffinity(0)))

    @property
    def shown(self) -> str:
        """How errors call it."""
        return self.reference or self.name


def check_inputs(specs: Sequence[Spec], slot: WorkerSlot) -> dict[str, int]:
    """Symbolic extents that the slot's inputs fix. Raises InvalidArgument unless they suit the signature."""
    if len(slot.inputs) != len(specs):
        raise InvalidArgument(f"{len(slot.inputs)} inputs, expected {len(specs)}", path="$.inputs")
    extents: dict[str, int] = {}
    for i, (spec, tensor) in enumerate(zip(specs, slot.inputs, strict=True)):
        path = f"$.inputs[{i}]"
        if tensor is None:
            if not spec.optional:
                raise InvalidArgument(f"input {spec.name!r} is missing", path=path)
            continue
        if spec.dtype is not None and tensor.dtype != spec.dtype:
            raise InvalidArgument(f"{tensor.dtype}, expected {spec.dtype}", path=f"{path}.dtype")
        check_shape(spec, tensor.shape, extents, path)
    return extents


def check_shape(spec: Spec, shape: Sequence[int], extents: dict[str, int], path: str, side: str = "input") -> None:
    """Raises InvalidArgument unless the shape suits the spec; learns symbolic extents into ``extents``."""
    if spec.shape is None:
        if len(shape) > MAX_RANK:
            raise InvalidArgument(f"rank {len(shape)}, expected at most {MAX_RANK}", path=f"{path}.shape")
        return
    if len(shape) != len(spec.shape):
        raise InvalidArgument(
            f"rank {len(shape)}, {side} {spec.name!r} expects rank {len(spec.shape)}", path=f"{path}.shape"
        )
    for axis, (extent, wanted) in enumerate(zip(shape, spec.shape, strict=True)):
        if isinstance(wanted, int) and extent != wanted:
            raise InvalidArgument(f"{extent}, {side} {spec.name!r} expects {wanted}", path=f"{path}.shape[{axis}]")
        if isinstance(wanted, str) and extents.setdefault(wanted, extent) != extent:
            raise InvalidArgument(
                f"{extent}, but {wanted!r} is {extents[wanted]} elsewhere in this call", path=f"{path}.shape[{axis}]"
            )


def load_kernel(kind: str, source: Source) -> Kernel:
    """Makes the kernel of this kind. Raises NotFound, InvalidArgument or KernelFailed, naming what is wrong."""
    if kind == "onnx":
        from teal.kernel.onnx import OnnxKernel

        return OnnxKernel(source)
    if kind == "openvino":
        from teal.kernel.openvino import OpenVinoKernel

        return OpenVinoKernel(source)
    if kind == "torch":
        from teal.kernel.torch import torch_kernel

        return torch_kernel(source)
    if kind == "elf":
        from teal.kernel.elf import ElfKernel

        return ElfKernel(source)
    if kind == "function":
        from teal.kernel.function import FunctionKernel

        return FunctionKernel(source)
    raise InvalidArgument(f"kernel kind {kind!r}, expected {KINDS}", path="$.kernel")
