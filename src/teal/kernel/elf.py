"""A native program as a resident kernel: an ELF file made with `teal duck cc`, in a sandbox.

Theory of operation: the program runs in a box (core/box) of a duck, not in the worker: it may die, loop or misbehave
without taking the worker with it. Where the pool has ducks of its own (``ducks=``), worker i calls duck i; else all
such kernels of a worker share a small duck inside it. A request's inputs are packed one behind the other into the
arguments of one call, in the signature's order, and the answer's bytes are its outputs, in the same way (copied there
and back, counted). The program keeps its state between requests, as a function kernel does.

What it takes and returns is said by options of the load, or by a file beside it, ``prog.elf.json``:

    {"inputs": {"x": ["float32", ["n"]]}, "outputs": {"y": ["float32", [1024]]}, "ib": "weights.bin", "pure": true}

Without either there is one input ``args`` (uint8[n]) and one output ``ob`` (uint8, as many as it answers with). One
extent of an output may be None: it follows from the answer's size.
"""

from __future__ import annotations

import math
import os
import re
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
from msgspec import Meta

from teal._core import WorkerSlot, dtype_size
from teal.duck.duck import Duck
from teal.duck.server import Server
from teal.duck.size import nbytes as size_of
from teal.errors import InvalidArgument, KernelFailed, NotFound
from teal.host.wire import Spec
from teal.kernel.protocol import MAX_RANK, Outcome, Source, check_inputs

OPTIONS = ("inputs", "outputs", "cores", "ob", "args", "memory", "timeout", "ib", "pure")
_ARGS, _OB = 1 << 16, 1 << 20
_TIMEOUT = "60s"
_MOST_SIDECAR = 1 << 20
_DECLARED = re.compile(r"\s*([A-Za-z_]\w{0,63})\s*:\s*(\w+)\s*\[([^\]]*)\]\s*")

_sharing = threading.Lock()
_own: Server | None = None  # of this worker, made by the first program that needs it


class Sidecar(msgspec.Struct, forbid_unknown_fields=True):
    """What lies beside a program."""

    inputs: dict[str, tuple[str, list[int | str | None]]] | None = None
    outputs: dict[str, tuple[str, list[int | str | None]]] | None = None
    cores: Annotated[int, Meta(ge=1, le=64)] | None = None
    ob: str | int | None = None
    args: str | int | None = None
    memory: str | int | None = None
    timeout: str | None = None
    ib: str | None = None
    pure: bool = False


def declared(text: str, side: str) -> dict[str, tuple[str, list[int | str | None]]]:
    """``x:float32[n,3];y:int8[4]`` as the sidecar says it. Raises InvalidArgument."""
    found: dict[str, tuple[str, list[int | str | None]]] = {}
    for part in filter(str.strip, text.split(";")):
        match = _DECLARED.fullmatch(part)
        if match is None or match[1] in found:
            raise InvalidArgument(f"{part[:80]!r}, expected NAME:DTYPE[EXTENTS] such as x:float32[n,3]",
                                  path=f"$.options.{side}")  # fmt: skip
        extents: list[int | str | None] = []
        for extent in filter(None, (word.strip() for word in match[3].split(","))):
            extents.append(None if extent == "?" else int(extent) if extent.isdecimal() else extent)
        found[match[1]] = (match[2], extents)
    return found


class ElfKernel:
    """See the module."""

    def __init__(self, source: Source) -> None:
        if source.fd is None:
            raise InvalidArgument(f"program {source.shown[:200]} needs its file", path="$.source")
        said = self._settings(source)
        self.inputs = _specs(said.inputs or {"args": ("uint8", ["n"])}, "inputs")
        self.outputs = _specs(said.outputs or {"ob": ("uint8", [None])}, "outputs")
        self.pure = said.pure
        self._check_outputs()
        self._args = _bytes(said.args, max(_ARGS, _least(self.inputs)), "args")
        self._ob = _bytes(said.ob, max(_OB, _least(self.outputs)), "ob")
        self._duck = _duck_for(source)
        try:
            self._session = self._duck.open(
                _contents(source.fd, source.weights_bytes),
                name=source.name,
                cores=said.cores or 1,
                args=self._args,
                ob=self._ob,
                memory=said.memory,
                timeout=said.timeout or _TIMEOUT,
            )
            if said.ib is not None:
                self._session.map(self._buffer(source, said.ib))
        except BaseException:
            self._duck.close()
            raise
        self.engine = f"duck {self._duck.address}"

    def _settings(self, source: Source) -> Sidecar:
        said = Sidecar()
        file = Path(f"{source.reference}.json")
        if source.trusted and source.reference and file.is_file():
            try:
                said = msgspec.json.decode(file.read_bytes()[:_MOST_SIDECAR], type=Sidecar)
            except (msgspec.MsgspecError, ValueError) as error:
                raise InvalidArgument(f"{file}: {error}", path="$.source") from None
        given = dict(source.options)
        for side in ("inputs", "outputs"):
            if side in given:
                setattr(said, side, declared(given.pop(side), side))
        if "cores" in given:
            said.cores = int(_bytes(given.pop("cores"), 1, "cores"))
        if "pure" in given:
            said.pure = given.pop("pure") in ("1", "true", "yes")
        for name, value in given.items():
            if name not in OPTIONS:
                raise InvalidArgument(f"no such option of a program; there are {list(OPTIONS)}",
                                      path=f"$.options.{name[:60]}")  # fmt: skip
            setattr(said, name, value)
        return said

    def _buffer(self, source: Source, name: str) -> Path:
        """The input buffer's file: beside the program, or wherever the host's owner says."""
        if not source.trusted:
            raise InvalidArgument(
                f"{name[:200]!r} is a file of the host, which only its own user may give; ask the host's owner to load "
                "it",
                path="$.options.ib",
            )
        path = Path(os.path.dirname(source.reference), name)
        if not path.is_file():
            raise NotFound(f"{path}: no such file, of the program's input buffer (ib)")
        return path

    def _check_outputs(self) -> None:
        known = {extent for spec in self.inputs for extent in spec.shape or () if isinstance(extent, str)}
        open_ones = 0
        for i, spec in enumerate(self.outputs):
            for extent in spec.shape or ():
                if extent is None:
                    open_ones += 1
                elif isinstance(extent, str) and extent not in known:
                    raise InvalidArgument(
                        f"{extent!r}, expected an extent of an input: {sorted(known)}", path=f"$.outputs[{i}].shape"
                    )
        if open_ones > 1:
            raise InvalidArgument(f"{open_ones} extents of the outputs are open, expected at most 1", path="$.outputs")

    def bind(self, slot: WorkerSlot) -> Callable[[], Outcome]:
        extents = check_inputs(self.inputs, slot)
        views = [tensor.numpy().reshape(-1).view(np.uint8) for tensor in slot.inputs if tensor is not None]
        whole = sum(view.nbytes for view in views)
        if whole > self._args:
            raise InvalidArgument(f"{whole} bytes of inputs, the program was loaded for {self._args}; load it with the "
                                  "option args=SIZE", path="$.inputs")  # fmt: skip
        starts = np.cumsum([0, *(view.nbytes for view in views)])
        shapes = [[extents[e] if isinstance(e, str) else e for e in spec.shape or ()] for spec in self.outputs]
        session = self._session
        call, at, args = session.prepare(whole), session.number, None

        def run() -> Outcome:
            nonlocal call, at, args
            if session.number != at or args is None:  # the program died, and was opened anew
                call, at = session.prepare(whole), session.number
                args = call.args.numpy()
            for view, start in zip(views, starts, strict=False):
                args[start : start + view.nbytes] = view
                slot.count_copy_in(view.nbytes)
            return self._split(call().numpy(), shapes)

        return run

    def _split(self, answer: Any, shapes: list[list[int | None]]) -> list[Any]:
        """The outputs in the answer's bytes. Raises KernelFailed when they are not there."""
        known = sum(_extent_bytes(spec, shape) for spec, shape in zip(self.outputs, shapes, strict=True)
                    if None not in shape)  # fmt: skip
        found, at = [], 0
        for spec, shape in zip(self.outputs, shapes, strict=True):
            extents = list(shape)
            if None in extents:
                rest = answer.nbytes - known
                one = _extent_bytes(spec, [extent for extent in extents if extent is not None])
                if rest < 0 or one == 0 or rest % one:
                    raise KernelFailed(f"an answer of {answer.nbytes} bytes is no whole number of output {spec.name!r}")
                extents[extents.index(None)] = rest // one
            end = at + _extent_bytes(spec, extents)
            if end > answer.nbytes:
                raise KernelFailed(f"an answer of {answer.nbytes} bytes, output {spec.name!r} ends at byte {end}")
            found.append(answer[at:end].view(spec.dtype).reshape([int(extent or 0) for extent in extents]))
            at = end
        if at != answer.nbytes:
            raise KernelFailed(f"an answer of {answer.nbytes} bytes, the outputs have {at}")
        return found

    def close(self) -> None:
        self._session.close()
        self._duck.close()


def _duck_for(source: Source) -> Duck:
    """A connection to this worker's duck of the pool, or to the one inside the worker."""
    global _own
    if source.ducks:
        address = source.ducks[source.worker % len(source.ducks)]
        return Duck(address, key_file=source.duck_key or None)
    with _sharing:
        if _own is None:
            _own = Server(None, cache=False)
        return _own.connect()


def _contents(fd: int, start: int) -> bytes:
    """The program: what is behind ``start`` in the version's file."""
    size = os.fstat(fd).st_size
    return os.pread(fd, size - start, start)


def _bytes(given: str | int | None, otherwise: int, name: str) -> int:
    return otherwise if given is None else given if isinstance(given, int) else size_of(given, f"$.options.{name}")


def _specs(tensors: Mapping[str, tuple[str, list[int | str | None]]], side: str) -> list[Spec]:
    specs = []
    for name, (dtype, shape) in tensors.items():
        path = f"$.{side}[{name!r}]"
        if dtype == "BYTES":
            raise InvalidArgument(f"{dtype}: programs take numbers; give text as uint8", path=path)
        try:
            dtype_size(dtype)
        except InvalidArgument as error:
            raise InvalidArgument(str(error), path=path) from None
        if len(shape) > MAX_RANK:
            raise InvalidArgument(f"rank {len(shape)}, expected at most {MAX_RANK}", path=path)
        specs.append(Spec(name, dtype, list(shape)))
    return specs


def _extent_bytes(spec: Spec, shape: list[Any]) -> int:
    count: int = math.prod(shape)
    return count * dtype_size(spec.dtype or "uint8")


def _least(specs: list[Spec]) -> int:
    """Bytes of those whose shape is known."""
    return sum(
        _extent_bytes(spec, spec.shape)
        for spec in specs
        if spec.shape is not None and all(isinstance(extent, int) for extent in spec.shape)
    )
