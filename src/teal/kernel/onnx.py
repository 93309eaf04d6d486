"""ONNX models through onnxruntime, bound in place.

Theory of operation: a binding (onnxruntime's IOBinding) names the addresses of the slot's inputs and outputs once; a
request is then one call into the engine, with no Python in between and no copy: inputs are read and outputs written
where the client has them. Outputs whose shape is not known before the run are allocated by the engine and copied into
the slot once (counted). When a model writes another shape than its own signature promised, all outputs are allocated
by the engine from then on, and the copies show in the counters. The weights stay in the session; the file's bytes come
from a sealed memfd, so what was checked is what is loaded. Data that the model keeps in files of its own is read by the
engine from the model's folder. What classifiers of scikit-learn say of a row as a map from label to score (ZipMap) is
one row of a matrix here.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import math
import mmap
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from teal._core import Tensor, WorkerSlot
from teal.errors import InvalidArgument, KernelFailed, NotFound
from teal.host.wire import Spec
from teal.kernel import sealed
from teal.kernel.onnx_file import external, labels, unranked
from teal.kernel.protocol import Outcome, Snapshot, Source, check_inputs
from teal.kernel.sealed import SMALLEST, memory_file, one_line, seal, snapshot_key, usable
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
_Key = tuple[tuple[str, tuple[int, ...]] | None, ...]  # dtypes and shapes of inputs
_Shape = tuple[np.dtype[Any], tuple[int, ...], int]
_MOST_FOUND = 64
_SPIN_US = 200
_BOUNDED = (1, 32)  # the first onnxruntime that is known to take a bound for its spinning
# Initializers that a caller may replace are optional inputs. Old exporters list every weight like that; whoever has
# more than these few is one of them, and they stay constants.
_MOST_OPTIONAL = 16
_LARGEST = (1 << 31) - 1  # bytes; of any message of protocol buffers
# The saved graph calls its weights by a file's name, which is that of a descriptor while it is saved.
_WEIGHTS = "1021"
_MAPS = re.compile(r"seq\(map\((?:int64|string),(tensor\((?:float|double|int64)\))\)\)")  # what a ZipMap makes
_SAVED = {
    "session.optimized_model_external_initializers_file_name": _WEIGHTS,
    "session.optimized_model_external_initializers_min_size_in_bytes": "1024",
}


def check_size(nbytes: int, reference: str) -> None:
    """Raises InvalidArgument for what is too large: onnxruntime complains on stdout, tries again, and takes minutes."""
    if nbytes > _LARGEST:
        raise InvalidArgument(
            f"{reference}: {nbytes} bytes, and an ONNX file has less than 2^31; save its weights in a file of their "
            "own beside it (external data)"
        )


class OnnxKernel:
    """One InferenceSession. Raises NotFound without onnxruntime, InvalidArgument for a file that is not a model."""

    pure = True

    def __init__(self, source: Source) -> None:
        if ort is None:
            raise NotFound("onnxruntime is not installed; pip install 'teal-runtime[onnx]'")
        self.engine = f"onnxruntime {ort.__version__}"
        self.weights = "private"
        self.snapshot: Snapshot | None = None
        self.restored = False
        file = sealed.mapped(source, "an ONNX model")
        check_size(len(file), source.reference)
        self._session = self._opened(source, file)
        free = unranked(file)
        self._run_options = ort.RunOptions()
        self._lies = False  # its outputs have other shapes than its signature says
        self._found: dict[_Key, dict[str, _Shape] | None] = {}  # what came out; None: not always the same
        self.inputs = [_spec(node, source.name, free) for node in self._session.get_inputs()]
        replaceable = self._session.get_overridable_initializers()
        if len(replaceable) <= _MOST_OPTIONAL:
            self.inputs += [_spec(node, source.name, optional=True) for node in replaceable]
        made = self._session.get_outputs()
        self._maps = labels(file) if any(_MAPS.fullmatch(node.type) for node in made) else {}
        self.outputs = [_spec(node, source.name, free, maps=self._maps) for node in made]
        names = [spec.name for spec in self.outputs]
        given = {spec.name for spec in self.inputs}
        # The engine writes these nowhere: it hands over the input itself, or one tensor for both places.
        self._apart = frozenset(name for name in names if name in given or names.count(name) > 1)

    def _opened(self, source: Source, file: mmap.mmap) -> Any:
        """The session: from the snapshot that came with the load, or of the file, which makes one if it is wanted."""
        if source.precision == "bf16":
            raise InvalidArgument(
                f"{source.precision}: onnxruntime does not compute in it; leave precision= out, or take "
                "kernel='openvino'",
                path="$.precision",
            )
        kept, self.note = usable(self.engine, source)
        if kept is not None:
            try:
                session = self._restored(source, kept)
                self.restored = True
                return session
            except Exception as error:  # the engine's own
                self.note = f"its snapshot did not load, loaded from the file: {one_line(error)}"
        contents = file[:]
        if not source.wants_snapshot or len(contents) < SMALLEST:
            return _session(source, contents)
        parts = {name: memory_file(name) for name in ("graph", "weights")}
        try:
            session = _session(source, contents, parts)
            if os.fstat(parts["weights"]).st_size == 0:
                Snapshot("", parts).close()
                return session
            made = Snapshot(snapshot_key(self.engine, source), {name: seal(fd) for name, fd in parts.items()})
            del session  # it has the weights to itself
            session = self._restored(source, made)
        except InvalidArgument:
            Snapshot("", parts).close()
            raise
        except Exception as error:
            Snapshot("", parts).close()
            self.note = f"no snapshot: {one_line(error)}"
            return _session(source, contents)
        made.whole = not external(contents)
        self.snapshot = made
        return session

    def _restored(self, source: Source, kept: Snapshot) -> Any:
        """A session of the optimised graph, with its weights where they lie. Raises what the engine does."""
        self._mapping = sealed.contents(kept.parts["weights"])
        options = _options(source)
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.add_session_config_entry("session.use_external_initializer_file_buffers_directly", "1")
        options.add_external_initializers_from_files_in_memory([_WEIGHTS], [self._mapping], [len(self._mapping)])
        graph = sealed.contents(kept.parts["graph"])
        session = ort.InferenceSession(graph[:], options, providers=["CPUExecutionProvider"])
        self.weights = "mapped, packed privately"
        return session

    def bind(self, slot: WorkerSlot) -> Callable[[], Outcome]:
        check_inputs(self.inputs, slot)
        if len(slot.outputs) != len(self.outputs):
            raise InvalidArgument(f"{len(slot.outputs)} outputs, expected {len(self.outputs)}", path="$.outputs")
        if self._maps or any(tensor is not None and tensor.dtype == "BYTES" for tensor in slot.inputs):
            return functools.partial(self._run_objects, slot)
        free = functools.partial(self._bound, slot, planned=False)
        if self._lies:
            return free()
        run = self._watched(slot, self._bound(slot, planned=True), free)
        return self._guessing(slot, run) if not self._apart and any(room is not None for room in slot.rooms) else run

    def close(self) -> None:
        self._session = None

    def _guessing(self, slot: WorkerSlot, run: Callable[[], Outcome]) -> Callable[[], Outcome]:
        """``run``, until outputs whose shape only a run can tell came out once for inputs of these shapes.

        From then on they are expected to come out like that, and written in place. One that does not is run again as
        before, and for these inputs nothing is expected any more.
        """
        key = tuple(None if tensor is None else (tensor.dtype, tuple(tensor.shape)) for tensor in slot.inputs)
        guess = self._guess(slot, key)

        def guessing() -> Outcome:
            nonlocal guess
            if guess is not None:
                try:
                    return guess()
                except Exception:  # the engine has no error of its own for a buffer of the wrong shape
                    guess = None
                    outcome = run()  # fails again unless it was the shape
                    self._found[key] = None
                    return outcome
            outcome = run()
            if key not in self._found:
                while len(self._found) >= _MOST_FOUND:
                    self._found.pop(next(iter(self._found)))
                self._found[key] = {
                    spec.name: (array.dtype, array.shape, array.nbytes)
                    for spec, room, array in zip(self.outputs, slot.rooms, outcome or (), strict=False)
                    if room is not None and isinstance(array, np.ndarray)
                }
            guess = self._guess(slot, key)
            return outcome

        return guessing

    def _guess(self, slot: WorkerSlot, key: _Key) -> Callable[[], Outcome] | None:
        """Runs on this slot, all outputs in place; None unless their shapes are expected, and have room there."""
        found = self._found.get(key)
        if not found:
            return None
        arrays: list[np.ndarray[Any, Any] | None] = []
        for spec, room in zip(self.outputs, slot.rooms, strict=True):
            if room is None:
                arrays.append(None)
                continue
            if spec.name not in found or found[spec.name][2] > room[1]:
                return None
            dtype, shape, nbytes = found[spec.name]
            memory: Any = (ctypes.c_uint8 * nbytes).from_address(room[0])
            arrays.append(np.frombuffer(memory, dtype, math.prod(shape)).reshape(shape))
        run = self._bound(slot, planned=True, rooms=arrays)

        def guess() -> Outcome:
            run()
            return arrays

        return guess

    def _bound(
        self, slot: WorkerSlot, *, planned: bool, rooms: Sequence[np.ndarray[Any, Any] | None] | None = None
    ) -> Callable[[], Outcome]:
        """Runs on this slot. ``planned``: outputs whose shape is known are written in place; ``rooms``: others too."""
        binding = self._session.io_binding()
        for spec, tensor in zip(self.inputs, slot.inputs, strict=True):
            if tensor is not None:
                binding.bind_input(spec.name, "cpu", 0, _element_type(tensor), tensor.shape, tensor.address)
        left = set()
        loose: list[tuple[str, tuple[int, ...]]] = []
        nowhere: list[None] = [None] * len(self.outputs)
        places = zip(self.outputs, slot.outputs, slot.wanted, rooms or nowhere, strict=True)
        for spec, tensor, wanted, room in places:
            if room is not None:
                kind = _ELEMENT_TYPES.get(room.dtype.name) or room.dtype.type
                binding.bind_output(spec.name, "cpu", 0, kind, room.shape, room.ctypes.data)
            elif tensor is not None and planned and spec.name not in self._apart:
                if spec.dtype is not None and tensor.dtype != spec.dtype:
                    raise InvalidArgument(
                        f"output {spec.name!r} planned as {tensor.dtype}, expected {spec.dtype}", path="$.outputs"
                    )
                binding.bind_output(spec.name, "cpu", 0, _element_type(tensor), tensor.shape, tensor.address)
                if tuple(tensor.shape) in ((), (1,)):
                    loose.append((spec.name, tuple(tensor.shape)))
            elif wanted:
                left.add(spec.name)
                binding.bind_output(spec.name, "cpu")
        run: Callable[[], Outcome] = functools.partial(
            self._session._sess.run_with_iobinding, binding._iobinding, self._run_options
        )
        if loose:
            run = self._checked(slot, binding, loose, run)
        return functools.partial(self._run_collecting, slot, binding, frozenset(left), run) if left else run

    def _checked(
        self, slot: WorkerSlot, binding: Any, loose: Sequence[tuple[str, tuple[int, ...]]], run: Callable[[], Outcome]
    ) -> Callable[[], Outcome]:
        """``run``, which fails the first time if one element came out with another shape than it was bound with.

        The engine refuses a buffer of the wrong shape itself, but takes (), (1,) and more for the same.
        """
        unsure = True

        def checked() -> Outcome:
            nonlocal unsure
            outcome = run()
            if unsure:
                made, places = binding._iobinding.get_outputs(), self._places(slot)
                for name, shape in loose:
                    if (actual := tuple(made[places[name]].shape())) != shape:
                        raise ValueError(f"output {name!r} has shape {actual}, its signature says {shape}")
                unsure = False
            return outcome

        return checked

    def _places(self, slot: WorkerSlot) -> dict[str, int]:
        """Where the engine has each output: in the order of binding, a name once."""
        wanted = dict.fromkeys(spec.name for spec, wanted in zip(self.outputs, slot.wanted, strict=True) if wanted)
        return {name: place for place, name in enumerate(wanted)}

    def _watched(
        self, slot: WorkerSlot, run: Callable[[], Outcome], free: Callable[[], Callable[[], Outcome]]
    ) -> Callable[[], Outcome]:
        """``run``; when it fails, what ``free`` makes, for good if the model writes other shapes than it promised."""
        instead: Callable[[], Outcome] | None = None

        def watched() -> Outcome:
            nonlocal instead
            if instead is not None:
                return instead()
            try:
                return run()
            except Exception:  # the engine has no error of its own for a buffer of the wrong shape
                attempt = free()
            outcome = attempt()  # fails again unless it was the shape
            if any(t is not None and np.shape(o) != t.shape for t, o in zip(slot.outputs, outcome or (), strict=True)):
                self._lies = True
                instead = attempt
            return outcome

        return watched

    def _run_collecting(
        self, slot: WorkerSlot, binding: Any, left: frozenset[str], run: Callable[[], Outcome]
    ) -> Outcome:
        """Runs, and hands over the outputs that were left to the engine, as arrays over its memory."""
        try:
            run()
            made = binding._iobinding.get_outputs()
            kept = type(made)()  # a reference into `made` would not outlive the next lines
            for value in made:
                kept.push_back(value)
        finally:
            # The binding keeps what the engine allocated, and would take it for the place (and shape) of the next one.
            for name in left:
                binding.bind_output(name, "cpu")
        places = self._places(slot)
        return [
            _array(kept, places[spec.name], spec) if wanted and spec.name in left else None
            for spec, wanted in zip(self.outputs, slot.wanted, strict=True)
        ]

    def _run_objects(self, slot: WorkerSlot) -> Outcome:
        """Strings and maps have no address to use in place: decoded, run, packed; every copy is counted."""
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
            None if not wanted else _packed(next(values), spec, self._maps.get(spec.name))
            for spec, wanted in zip(self.outputs, slot.wanted, strict=True)
        ]


def _session(source: Source, contents: bytes, parts: Mapping[str, int] | None = None) -> Any:
    """parts: memory files for the optimised graph and its weights. Raises InvalidArgument."""
    options = _options(source)
    if parts is not None:
        options.optimized_model_filepath = f"/proc/self/fd/{parts['graph']}"
        for name, value in _SAVED.items():
            options.add_session_config_entry(name, value)
    try:
        with _weights_at(None if parts is None else parts["weights"]):
            return ort.InferenceSession(contents, options, providers=["CPUExecutionProvider"])
    except Exception as error:
        raise InvalidArgument(f"{source.shown}: not a model onnxruntime can load: {one_line(error)}") from None


@contextlib.contextmanager
def _weights_at(fd: int | None) -> Iterator[None]:
    """While the engine saves a graph, a descriptor has the number that the graph's weights are called by."""
    if fd is None:
        yield
        return
    number = int(_WEIGHTS)
    before = -1
    with contextlib.suppress(OSError):
        before = os.dup(number)
    os.dup2(fd, number, inheritable=False)
    try:
        yield
    finally:
        if before >= 0:
            os.dup2(before, number, inheritable=False)
            os.close(before)
        else:
            os.close(number)


def _options(source: Source) -> Any:
    options = ort.SessionOptions()
    threads = source.threads or max(1, len(os.sched_getaffinity(0)))
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 4
    # Threads that work on one run wait for each other spinning, and for the next run a moment longer, as whoever waits
    # in Teal does: asleep they cost a run a tenth to a quarter. Beyond that a resident engine must not burn cores.
    entries = {"session.intra_op.allow_spinning": "1" if threads > 1 else "0"}
    if tuple(int(part) for part in ort.__version__.split(".")[:2]) >= _BOUNDED:
        entries["session.intra_op.spin_duration_us"] = str(_SPIN_US)
    else:
        entries["session.force_spinning_stop"] = "1"  # this one would spin on and on after a run
    folder = Path(source.reference).parent
    # A model that came without a place of its own has no files beside it: left alone, the engine would look in ours.
    place = str(folder) if folder.is_absolute() and folder.is_dir() else "/dev/null"
    entries["session.model_external_initializers_file_folder_path"] = place
    for key, value in {**entries, **source.options}.items():
        options.add_session_config_entry(key, value)
    return options


def _spec(
    node: Any,
    model: str,
    free: frozenset[str] = frozenset(),
    *,
    optional: bool = False,
    maps: Mapping[str, Sequence[int | str]] | None = None,
) -> Spec:
    """``free``: inputs and outputs without a declared shape. ``maps``: outputs that are maps, and their labels."""
    if maps and node.name in maps and (of := _MAPS.fullmatch(node.type)):
        return Spec(node.name, _DTYPES[of[1]], [None, len(maps[node.name])])
    dtype = _DTYPES.get(node.type)
    if dtype is None:
        raise KernelFailed(
            f"{node.name!r} is a {node.type}; Teal passes tensors of {', '.join(sorted(_DTYPES.values()))}", model=model
        )
    shape = [_extent(extent) for extent in node.shape or ()]
    if not shape and node.name in free:
        return Spec(node.name, dtype, None, optional=optional)
    return Spec(node.name, dtype, shape, optional=optional)


def _extent(extent: Any) -> int | str | None:
    """A number, a name, or None for any. "?" is what Paddle writes for an extent that it does not know: no name."""
    if isinstance(extent, int):
        return extent if extent >= 0 else None
    return extent if isinstance(extent, str) and extent not in ("", "?") else None


def _element_type(tensor: Tensor) -> Any:
    return _ELEMENT_TYPES.get(tensor.dtype) or np.dtype(tensor.dtype).type


def _array(values: Any, place: int, spec: Spec) -> Any:
    value = values[place]
    if spec.dtype == "BYTES":
        return pack(value.numpy())
    # onnxruntime's own way to NumPy copies, and has no type for ml_dtypes'.
    dtype = _numpy_dtype(spec)
    shape = tuple(value.shape())
    nbytes = math.prod(shape) * dtype.itemsize
    if nbytes == 0:
        return np.empty(shape, dtype)
    memory = (ctypes.c_uint8 * nbytes).from_address(value.data_ptr())
    memory.owner = values  # which frees it
    return np.frombuffer(memory, dtype).reshape(shape)


def _numpy_dtype(spec: Spec) -> np.dtype[Any]:
    return np.dtype(getattr(ml_dtypes, spec.dtype) if spec.dtype in _ELEMENT_TYPES else spec.dtype)


def _packed(array: Any, spec: Spec, columns: Sequence[int | str] | None = None) -> Any:
    """``columns``: it is a list of maps, which have these keys."""
    if columns is not None:
        rows = [[row[label] for label in columns] for row in array]
        return np.array(rows, spec.dtype).reshape(len(rows), len(columns))
    return pack(array) if spec.dtype == "BYTES" else np.ascontiguousarray(array).reshape(np.shape(array))
