"""ONNX models and OpenVINO's own (.xml with .bin) through OpenVINO, bound in place.

Theory of operation: a slot gets an infer request of its own, whose input and output tensors lie on the slot's memory
from then on; a request of Teal's is one ``infer()`` with nothing to set and nothing to fetch. Requests of slots that
did not call for long are given up, and made anew should they come back. Outputs whose shape is known only after the run
are copied into the slot once (counted), as are strings. The model's bytes come from a sealed memfd; the weights of an
IR are used where they lie in it, as far as the plugin does not reorder them for its own kernels.

Precision: on a CPU with bfloat16 OpenVINO would compute in it unasked. Here float32 means float32, unless the load says
``precision="bf16"``. Threads are the load's, unpinned: the system keeps them on the worker's cores.
"""

from __future__ import annotations

import functools
import re
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ml_dtypes
import msgspec
import numpy as np

from teal._core import Tensor, WorkerSlot
from teal.errors import InvalidArgument, KernelFailed, NotFound
from teal.host.wire import Spec
from teal.kernel.onnx_file import dimensions, external, inputs, signature
from teal.kernel.protocol import Outcome, Snapshot, Source, check_inputs
from teal.kernel.sealed import (
    SMALLEST,
    contents,
    mapped,
    memory_file,
    memory_of,
    one_line,
    seal,
    snapshot_key,
    usable,
    write,
)
from teal.kernel.strings import decoded, pack

try:
    import openvino as ov
except ImportError:  # a worker without the extra still runs other kernels
    ov = None

# OpenVINO's name of an element type → Teal's
_DTYPES = {
    "boolean": "bool",
    "u8": "uint8",
    "i8": "int8",
    "u16": "uint16",
    "i16": "int16",
    "u32": "uint32",
    "i32": "int32",
    "u64": "uint64",
    "i64": "int64",
    "f16": "float16",
    "bf16": "bfloat16",
    "f32": "float32",
    "f64": "float64",
    "f8e4m3": "float8_e4m3fn",
    "f8e5m2": "float8_e5m2",
    "string": "BYTES",
}
_TYPES = {name: kind for kind, name in _DTYPES.items()}
# onnx.TensorProto.DataType
_ELEMENT_TYPES = {
    1: "float32", 2: "uint8", 3: "int8", 4: "uint16", 5: "int16", 6: "int32", 7: "int64", 8: "BYTES", 9: "bool",
    10: "float16", 11: "float64", 12: "uint32", 13: "uint64", 16: "bfloat16", 17: "float8_e4m3fn", 19: "float8_e5m2",
}  # fmt: skip
_PRECISIONS = {"fp32": "f32", "bf16": "bf16"}
_PLACES = re.compile(r"(Exception from|Check '.*' failed at) \S+:\d+:\s*|FrontEnd API failed with \w+:\s*")
_MOST_REQUESTS = 64  # infer requests of one kernel: each has buffers of its own


class OpenVinoKernel:
    """One compiled model. Raises NotFound without openvino, InvalidArgument for a file that is not a model."""

    pure = True

    def __init__(self, source: Source) -> None:
        if ov is None:
            raise NotFound("openvino is not installed; pip install 'teal-runtime[openvino]'")
        self.engine = f"openvino {ov.__version__.partition('-')[0]}"
        self.weights = "mapped, reordered privately" if source.weights_bytes else "private"
        self.snapshot: Snapshot | None = None
        self.restored = False
        self.through: frozenset[int] = frozenset()  # outputs that the engine does not write where it is told
        self._requests: OrderedDict[int, _Bound] = OrderedDict()
        core = ov.Core()
        device = _device(core, source)
        kept, self.note = usable(self.engine, source)
        if kept is not None and self._restored(core, source, kept, device):
            self.restored = True
            return
        self._mapping = mapped(source, "a model")
        model, file = _read(core, source, self._mapping)
        given, made = signature(file)
        named = dimensions(file)
        self.inputs = [_spec(port, given, named) for port in model.inputs]
        self.outputs = _outputs(model, self.inputs, made)
        self.inputs = _with_unused(self.inputs, file)
        self._model: Any = _compiled(core, source, model, device)
        self.through = _through(self._model)
        if source.wants_snapshot and len(self._mapping) >= SMALLEST and "EXPORT_IMPORT" in _abilities(core, device):
            del model
            self._keep(core, source, device)

    def _restored(self, core: Any, source: Source, kept: Snapshot, device: str) -> bool:
        """Loads the compiled form, whose weights are used where they lie. False, with a note: it could not be."""
        try:
            self._mapping = contents(kept.parts["compiled"])
            signature = msgspec.json.decode(contents(kept.parts["signature"])[:], type=list[list[Spec]])
            self.inputs, self.outputs = signature
            whole = ov.Tensor(np.frombuffer(self._mapping, np.uint8), [len(self._mapping)], ov.Type.u8)
            self._model = core.import_model(whole, device, _settings(source, device) | source.options)
            self.through = _through(self._model)
            self.weights = "mapped, reordered privately"
        except (RuntimeError, ValueError, TypeError, LookupError, msgspec.MsgspecError) as error:
            self.note = f"its snapshot did not load, made anew: {one_line(error)}"
            return False
        return True

    def _keep(self, core: Any, source: Source, device: str) -> None:
        """Exports the compiled form, and goes on with it, so that this worker has no weights that others have not."""
        parts: dict[str, int] = {}
        try:
            for name, data in (
                ("compiled", self._model.export_model().getbuffer()),
                ("signature", msgspec.json.encode([self.inputs, self.outputs])),
            ):
                parts[name] = memory_file(name)
                write(parts[name], data)
                seal(parts[name])
        except (RuntimeError, OSError) as error:
            Snapshot("", parts).close()
            self.note = f"no snapshot: {one_line(error)}"
            return
        self.snapshot = Snapshot(snapshot_key(self.engine, source), parts)
        before = self._model
        if not self._restored(core, source, self.snapshot, device):
            self._model = before
            self.snapshot.close()
            self.snapshot = None

    def bind(self, slot: WorkerSlot) -> Callable[[], Outcome]:
        check_inputs(self.inputs, slot)
        if len(slot.outputs) != len(self.outputs):
            raise InvalidArgument(f"{len(slot.outputs)} outputs, expected {len(self.outputs)}", path="$.outputs")
        for spec, tensor in zip(self.outputs, slot.outputs, strict=True):
            if tensor is not None and spec.dtype is not None and tensor.dtype != spec.dtype:
                raise InvalidArgument(
                    f"output {spec.name!r} planned as {tensor.dtype}, expected {spec.dtype}", path="$.outputs"
                )
        bound = _Bound(self, slot)
        bound.request()  # says now what it does not take
        return bound.run if bound.whole else bound.run_collecting

    def ports(self) -> list[tuple[int, int]]:
        """Positions of the inputs that the engine has, and what they are there."""
        used = [i for i, spec in enumerate(self.inputs) if not spec.optional]
        return [(i, port) for port, i in enumerate(used)]

    def request(self, bound: _Bound) -> Any:
        """A new infer request for this binding, at the cost of the one that was not used for longest."""
        self._requests[id(bound)] = bound
        while len(self._requests) > _MOST_REQUESTS:
            _, oldest = self._requests.popitem(last=False)
            oldest.give_up()
        return self._model.create_infer_request()

    def forget(self, bound: _Bound) -> None:
        self._requests.pop(id(bound), None)

    def close(self) -> None:
        for bound in self._requests.values():
            bound.give_up()
        self._requests.clear()
        self._model = None


class _Bound:
    """A slot and its infer request, if it has one."""

    def __init__(self, kernel: OpenVinoKernel, slot: WorkerSlot) -> None:
        self._kernel = kernel
        self._slot = slot
        self._infer: Callable[..., Any] | None = None
        self._request: Any = None
        self._held: list[Any] = []  # tensors on the slot's memory
        self._strings = [i for i, spec in enumerate(kernel.inputs) if spec.dtype == "BYTES"]
        self._left = [
            i
            for i, (spec, tensor) in enumerate(zip(kernel.outputs, slot.outputs, strict=True))
            if tensor is None or spec.dtype == "BYTES" or i in kernel.through
        ]
        self.whole = not (self._strings or self._left)  # known extents are the engine's own inference

    def request(self) -> Any:
        """Its infer request, made anew if it was given up. Raises InvalidArgument."""
        if self._request is None:
            request = self._kernel.request(self)
            try:
                self._place(request)
            except (RuntimeError, ValueError, TypeError) as error:
                self._kernel.forget(self)
                raise InvalidArgument(one_line(error)) from None
            self._request = request
            plain: Any = super(type(request), request)  # without what openvino's own wrapper does to arguments
            self._infer = functools.partial(plain.infer, {}, True, False)
        return self._request

    def _place(self, request: Any) -> None:
        self._held.clear()
        for i, port in self._kernel.ports():
            tensor = self._slot.inputs[i]
            if tensor is not None and i not in self._strings:
                self._held.append(_over(tensor))
                request.set_input_tensor(port, self._held[-1])
        for i, tensor in enumerate(self._slot.outputs):
            if tensor is not None and i not in self._left:
                self._held.append(_over(tensor))
                request.set_output_tensor(i, self._held[-1])

    def give_up(self) -> None:
        self._request = self._infer = None
        self._held.clear()

    def run(self) -> None:
        if self._infer is None:
            self.request()
        self._infer()  # type: ignore[misc]

    def run_collecting(self) -> Outcome:
        """With strings, or outputs that the engine allocates."""
        request = self.request()
        for i, port in self._kernel.ports():
            tensor = self._slot.inputs[i]
            if tensor is not None and i in self._strings:
                self._slot.count_copy_in(tensor.nbytes)
                request.set_input_tensor(port, ov.Tensor(decoded(tensor.numpy().ravel(), tensor.shape).astype(np.str_)))
        self.run()
        outcome: list[Any] = [None] * len(self._kernel.outputs)
        for i in self._left:
            if not self._slot.wanted[i]:
                continue
            made = request.get_output_tensor(i)
            spec = self._kernel.outputs[i]
            outcome[i] = pack(made.str_data) if spec.dtype == "BYTES" else _array(made, spec)
        return outcome


def _device(core: Any, source: Source) -> str:
    """OpenVINO's name of the device. Raises NotFound, InvalidArgument."""
    name = source.device or "CPU"
    known = list(core.available_devices)
    if name.partition(".")[0] in ("AUTO", "MULTI", "HETERO", "BATCH") or ":" in name or "," in name:
        raise InvalidArgument(f"{name[:80]!r}: one device runs a model; there are {known}", path="$.device")
    if name not in {*known, *(each.partition(".")[0] for each in known)}:
        raise NotFound(f"device {name[:80]!r}; OpenVINO sees {known}")
    if source.precision == "bf16" and "BF16" not in _abilities(core, name):
        raise InvalidArgument(f"bf16: {name} does not compute in it; leave precision= out", path="$.precision")
    return name


def _abilities(core: Any, device: str) -> list[str]:
    return list(core.get_property(device, "OPTIMIZATION_CAPABILITIES"))


def _read(core: Any, source: Source, mapping: Any) -> tuple[Any, bytes]:
    """The model, and its file if that is ONNX. Raises InvalidArgument."""
    whole = memoryview(mapping)
    try:
        if source.reference.endswith(".xml"):
            weights = (
                np.frombuffer(mapping, np.uint8, source.weights_bytes)
                if source.weights_bytes
                else np.empty(0, np.uint8)
            )
            return core.read_model(bytes(whole[source.weights_bytes :]), ov.Tensor(weights, shared_memory=True)), b""
        file = bytes(whole)
        if external(file):
            raise InvalidArgument(
                f"{source.shown}: it keeps weights in other files, which OpenVINO is not given; convert it to .xml, or "
                "take kernel='onnx'"
            )
        return core.read_model(file), file
    except (RuntimeError, ValueError, TypeError) as error:
        if isinstance(error, InvalidArgument):
            raise
        raise InvalidArgument(
            f"{source.shown}: not a model OpenVINO can load; export it anew, or take another kernel=: {_words(error)}"
        ) from None


def _words(error: BaseException) -> str:
    """What OpenVINO says, without where in its sources it says it; of operators that it lacks, their names."""
    text = str(error).partition("\nTo facilitate")[0]
    detail, _, summary = text.partition("\nSummary:\n-- ")
    return one_line(ValueError(_PLACES.sub("", (summary or detail).replace("\n-- ", "; "))))


def _compiled(core: Any, source: Source, model: Any, device: str) -> Any:
    """Raises InvalidArgument for what the device's plugin cannot run."""
    try:
        return core.compile_model(model, device, _settings(source, device) | source.options)
    except (RuntimeError, ValueError, TypeError) as error:
        raise InvalidArgument(
            f"{source.shown}: OpenVINO cannot run it on {device}; take another kernel= or device=: {_words(error)}"
        ) from None


def _through(model: Any) -> frozenset[int]:
    """Positions of outputs that are an input as it is: with nothing in between, the CPU plugin leaves the memory that
    it was given for them as it was."""
    try:
        nodes = {node.get_friendly_name(): node for node in model.get_runtime_model().get_ops()}
        names = [port.get_node().get_friendly_name() for port in model.outputs]
        return frozenset(i for i, name in enumerate(names) if name in nodes and _bare(nodes[name]))
    except RuntimeError:  # a device that does not show what it runs
        return frozenset()


def _bare(result: Any) -> bool:
    source = result.input(0).get_source_output().get_node()
    return len(source.inputs()) == 0 and source.get_rt_info()["layerType"].astype(str) == "Input"


def _settings(source: Source, device: str) -> dict[str, str]:
    settings = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": _PRECISIONS[source.precision or "fp32"]}
    if device == "CPU":
        settings["NUM_STREAMS"] = "1"
        settings["INFERENCE_NUM_THREADS"] = str(source.cores)
        settings["ENABLE_CPU_PINNING"] = "NO"
    if source.precision != "bf16":
        settings["EXECUTION_MODE_HINT"] = "ACCURACY"
    return settings


def _name(port: Any, known: Sequence[str]) -> str:
    """The one of ``known``, if it is called by several: what OpenVINO passes through has the names of both ends."""
    names = port.get_names()
    return next((str(name) for name in known if name in names), "") or str(
        port.get_any_name() if names else port.get_node().get_friendly_name()
    )


def _spec(port: Any, known: Sequence[str], named: Mapping[str, list[str | None]]) -> Spec:
    name = _name(port, known)
    kind = port.get_element_type().get_type_name()
    dtype = _DTYPES.get(kind)
    if dtype is None:
        raise KernelFailed(f"{name!r} is {kind}; Teal passes tensors of {', '.join(sorted(_DTYPES.values()))}")
    shape = port.get_partial_shape()
    if shape.rank.is_dynamic:
        return Spec(name, dtype, None)
    extents: list[int | str | None] = []
    names = named.get(name, [])
    for axis, extent in enumerate(shape):
        label = names[axis] if len(names) == len(shape) else None
        extents.append(extent.get_length() if extent.is_static else label)
    return Spec(name, dtype, extents)


def _outputs(model: Any, inputs: list[Spec], called: list[str]) -> list[Spec]:
    """The outputs' specs, with open extents named where they are an input's. Names open extents of inputs that have
    none. ``called``: the outputs' names in the file."""
    labels: list[tuple[Any, str]] = []
    known: dict[str, Any] = {}
    for i, (spec, port) in enumerate(zip(inputs, model.inputs, strict=True)):
        shape = port.get_partial_shape()
        if spec.shape is None:
            continue
        for axis, extent in enumerate(spec.shape):
            if isinstance(extent, int):
                continue
            label = extent or ("batch" if i == 0 and axis == 0 else f"{spec.name}_{axis}")
            spec.shape[axis] = label
            if label not in known:
                known[label] = ov.Symbol()
                labels.append((known[label], label))
            open_extent = shape[axis]
            open_extent.set_symbol(known[label])
            shape[axis] = open_extent
        model.inputs[i].get_node().set_partial_shape(shape)
    if labels:
        model.validate_nodes_and_infer_types()
    outputs = [_spec(port, called[i:] + called[:i], {}) for i, port in enumerate(model.outputs)]
    for spec, port in zip(outputs, model.outputs, strict=True):
        for axis, extent in enumerate(spec.shape or ()):
            if extent is None and spec.shape is not None:
                symbol = port.get_partial_shape()[axis].get_symbol()
                spec.shape[axis] = next((label for known_symbol, label in labels if known_symbol == symbol), None)
    return outputs


def _with_unused(specs: list[Spec], file: bytes) -> list[Spec]:
    """With the inputs that nothing in the file reads, where the file has them: OpenVINO drops them, callers may not."""
    known = {spec.name: spec for spec in specs}
    declared = inputs(file)
    if not set(known) <= set(declared):
        return specs
    whole = []
    for name, (kind, shape) in declared.items():
        if name in known:
            whole.append(known[name])
        elif kind in _ELEMENT_TYPES:
            whole.append(Spec(name, _ELEMENT_TYPES[kind], shape, optional=True))
    return whole


def _over(tensor: Tensor) -> Any:
    """OpenVINO's tensor on a slot's memory."""
    kind = getattr(ov.Type, _TYPES[tensor.dtype])
    if tensor.nbytes == 0:
        return ov.Tensor(kind, list(tensor.shape))
    return ov.Tensor(memory_of(tensor), list(tensor.shape), kind)


def _array(made: Any, spec: Spec) -> Any:
    """An array over the engine's memory, in Teal's dtype."""
    array = made.data
    dtype = np.dtype(getattr(ml_dtypes, str(spec.dtype), spec.dtype))
    return array if array.dtype == dtype else array.view(dtype)
