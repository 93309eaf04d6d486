"""ONNX models through onnxruntime, bound in place.

Theory of operation: a binding (onnxruntime's IOBinding) names the addresses of the slot's inputs and outputs once; a
request is then one
call into the engine, with no Python in between and no copy: inputs are read and outputs written where the client has
them. Outputs
whose shape is not known before the run are allocated by the engine and copied into the slot once (counted). When a
model writes another
shape than its own signature promised, the binding falls back to engine-allocated outputs for good, and says so in the
counters.
The weights stay in the session; the file's bytes come from a sealed memfd, so what was checked is what is loaded.
"""

from __future__ import annotations

import functools
import mmap
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from teal._core import Tensor, WorkerSlot
from teal.errors import InvalidArgument, KernelFailed, NotFound
from teal.host.wire import Spec
from teal.kernel.protocol import Outcome, Source, check_inputs
from teal.kernel.strings import decoded, pack

try:
    import onnxruntime as ort
except ImportError:  # a worker without the extra still runs other kernels
    ort = None

_DTYPES = {
    "tensor(bool)": "bool",
    "tensor(uint8)": "uint8",
    "tensor(int8)": "int8",
    "tensor(uint16)": "uint16",
    "tensor(int16)": "int16",
    "tensor(uint32)": "uint32",
    "tensor(int32)": "int32",
    "tensor(uint64)": "uint64",
    "tensor(int64)": "int64",
    "tensor(float16)": "float16",
    "tensor(float)": "float32",
    "tensor(double)": "float64",
    "tensor(complex64)": "complex64",
    "tensor(complex128)": "complex128",
    "tensor(bfloat16)": "bfloat16",
    "tensor(float8e4m3fn)": "float8_e4m3fn",
    "tensor(float8e5m2)": "float8_e5m2",
    "tensor(string)": "BYTES",
}
# onnx.TensorProto.DataType of what NumPy has no type for
_ELEMENT_TYPES: dict[str, int] = {"bfloat16": 16, "float8_e4m3fn": 17, "float8_e5m2": 19}
_SHAPE_COMPLAINTS = ("Shape mismatch", "Expected shape", "shape mismatch", "buffer size", "OrtValue shape verification")


class OnnxKernel:
    """One InferenceSession. Raises NotFound without onnxruntime, InvalidArgument for a file that is not a model."""

    pure = True

    def __init__(self, source: Source) -> None:
        if ort is None:
            raise NotFound("onnxruntime is not installed; pip install 'teal-runtime[onnx]'")
        if source.fd is None:
            raise InvalidArgument("an ONNX kernel needs its file", path="$.source")
        self._session = _session(source)
        self._run_options = ort.RunOptions()
        self.inputs = [_spec(node, source.name) for node in self._session.get_inputs()]
        self.outputs = [_spec(node, source.name) for node in self._session.get_outputs()]

    def bind(self, slot: WorkerSlot) -> Callable[[], Outcome]:
        check_inputs(self.inputs, slot)
        if len(slot.outputs) != len(self.outputs):
            raise InvalidArgument(f"{len(slot.outputs)} outputs, expected {len(self.outputs)}", path="$.outputs")
        if any(tensor is not None and tensor.dtype == "BYTES" for tensor in slot.inputs):
            return functools.partial(self._run_strings, slot)
        in_place = self._binding(slot, planned=True)
        run = functools.partial(self._session._sess.run_with_iobinding, in_place._iobinding, self._run_options)
        if self._all_in_place(slot):
            return functools.partial(_first_checked, self, slot, in_place, run)
        return functools.partial(self._run_collecting, slot, in_place, run)

    def close(self) -> None:
        self._session = None

    def _all_in_place(self, slot: WorkerSlot) -> bool:
        return all(tensor is not None or not wanted for tensor, wanted in zip(slot.outputs, slot.wanted, strict=True))

    def _binding(self, slot: WorkerSlot, *, planned: bool) -> Any:
        binding = self._session.io_binding()
        for spec, tensor in zip(self.inputs, slot.inputs, strict=True):
            if tensor is not None:
                binding.bind_input(spec.name, "cpu", 0, _element_type(tensor), tensor.shape, tensor.address)
        for spec, tensor, wanted in zip(self.outputs, slot.outputs, slot.wanted, strict=True):
            if tensor is not None and planned and tensor.dtype != "BYTES":
                if spec.dtype is not None and tensor.dtype != spec.dtype:
                    raise InvalidArgument(
                        f"output {spec.name!r} planned as {tensor.dtype}, expected {spec.dtype}", path="$.outputs"
                    )
                binding.bind_output(spec.name, "cpu", 0, _element_type(tensor), tensor.shape, tensor.address)
            elif wanted:
                binding.bind_output(spec.name, "cpu")
        return binding

    def _run_collecting(self, slot: WorkerSlot, binding: Any, run: Callable[[], None]) -> Outcome:
        """Some outputs were left to the engine: hand them over as arrays."""
        run()
        values = iter(binding._iobinding.get_outputs())
        returned: list[Any] = []
        for spec, tensor, wanted in zip(self.outputs, slot.outputs, slot.wanted, strict=True):
            value = next(values) if wanted else None
            if value is None or (tensor is not None and value.data_ptr() == tensor.address):
                returned.append(None)
            else:
                returned.append(_array(value, spec))
        return returned

    def _run_strings(self, slot: WorkerSlot) -> Outcome:
        """Strings have no address an engine could read in place: decoded, run, packed; every copy is counted."""
        feeds: dict[str, Any] = {}
        for spec, tensor in zip(self.inputs, slot.inputs, strict=True):
            if tensor is None:
                continue
            if tensor.dtype == "BYTES":
                slot.count_copy_in(tensor.nbytes)
                feeds[spec.name] = decoded(tensor.numpy().ravel(), tensor.shape)
            else:
                feeds[spec.name] = tensor.numpy()
        names = [spec.name for spec, wanted in zip(self.outputs, slot.wanted, strict=True) if wanted]
        values = iter(self._session.run(names, feeds, self._run_options))
        return [
            None if not wanted else _packed(next(values), spec)
            for spec, wanted in zip(self.outputs, slot.wanted, strict=True)
        ]


def _first_checked(kernel: OnnxKernel, slot: WorkerSlot, binding: Any, run: Callable[[], None]) -> Outcome:
    try:
        run()
    except Exception as error:
        if not any(complaint in str(error) for complaint in _SHAPE_COMPLAINTS):
            raise
        # The signature's symbolic names promised another shape. Let the engine allocate.
        free = kernel._binding(slot, planned=False)
        engine = functools.partial(kernel._session._sess.run_with_iobinding, free._iobinding, kernel._run_options)
        return kernel._run_collecting(slot, free, engine)
    return None


def _session(source: Source) -> Any:
    options = ort.SessionOptions()
    threads = source.threads or max(1, len(os.sched_getaffinity(0)))
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 4
    # A resident engine must not burn cores between requests.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    folder = Path(source.reference).parent
    if source.reference and folder.is_dir():
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(folder))
    for key, value in source.options.items():
        options.add_session_config_entry(key, value)
    assert source.fd is not None
    size = os.fstat(source.fd).st_size
    if size == 0:
        raise InvalidArgument(f"{source.reference or source.name}: the file is empty, expected an ONNX model")
    with mmap.mmap(source.fd, size, prot=mmap.PROT_READ, flags=mmap.MAP_SHARED) as contents:
        try:
            return ort.InferenceSession(bytes(contents), options, providers=["CPUExecutionProvider"])
        except Exception as error:
            raise InvalidArgument(
                f"{source.reference or source.name}: not a model onnxruntime can load: {_one_line(error)}"
            ) from None


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:600]


def _spec(node: Any, model: str) -> Spec:
    dtype = _DTYPES.get(node.type)
    if dtype is None:
        raise KernelFailed(f"{node.name!r} is a {node.type}; Teal passes tensors only", model=model)
    shape = (
        None if node.shape is None else [extent if isinstance(extent, (int, str)) else None for extent in node.shape]
    )
    return Spec(node.name, dtype, shape)


def _element_type(tensor: Tensor) -> Any:
    return _ELEMENT_TYPES.get(tensor.dtype) or np.dtype(tensor.dtype).type


def _array(value: Any, spec: Spec) -> Any:
    if spec.dtype in _ELEMENT_TYPES:
        return _Foreign(value)  # onnxruntime's NumPy bridge has no type for them; DLPack has
    return _packed(value.numpy(), spec)


class _Foreign:
    """An engine-owned value that the core reads through DLPack."""

    def __init__(self, value: Any) -> None:
        self._value = getattr(value, "_ortvalue", value)

    def __dlpack__(self, **_: Any) -> Any:
        return self._value.to_dlpack()

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0


def _packed(array: Any, spec: Spec) -> Any:
    return pack(array) if spec.dtype == "BYTES" else np.ascontiguousarray(array).reshape(np.shape(array))
