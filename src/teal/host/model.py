"""A model as its callers see it: loaned memory, calls, futures.

Theory of operation: for each set of input shapes there is a *home* of slots (core/host/client.hpp). A plain call loans
a slot, copies the arrays in (counted), submits, waits, and returns tensors that show the slot's outputs; the slot goes
home when the last of them is gone. ``new_inputs`` loans a slot whose input tensors are filled in place; a call with
those tensors copies nothing, and takes other outputs while somebody looks at the last ones. ``prepare`` keeps one slot
for itself.
"""

from __future__ import annotations

import operator
import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from teal import _core
from teal.errors import (
    Cancelled,
    DeadlineExceeded,
    InternalError,
    InvalidArgument,
    KernelFailed,
    NotFound,
    PeerDied,
    QuotaExceeded,
    TealError,
)
from teal.host import callers, wire
from teal.host.event import Event, awaited
from teal.host.future import Future
from teal.host.outputs import Outputs
from teal.host.plan import PlanEntry, Shapes, plan_bytes, plan_inputs, plan_outputs
from teal.host.process import how_detail_reads
from teal.host.records import Histogram, ModelInfo, ModelStatistics, TensorSpec, merged, place
from teal.kernel.strings import is_strings, pack

if TYPE_CHECKING:
    from teal.host.host import Host

_DONE, _FAILED, _CANCELLED, _EXPIRED = 4, 5, 6, 7
_REASON_INVALID, _REASON_NOT_FOUND, _REASON_QUOTA, _REASON_WORKER_DIED = 1, 2, 3, 5
_REASON_SPILLED = 10
_CANCELLED_BY = {
    6: ("client", "cancel() was called"),
    7: ("host", "its client is gone"),
    9: ("host", "the host is stopping"),
    12: ("unload", "the version was unloaded by force"),
    13: ("dependency", "what it waited for (after=) did not end well"),
}
_MOST_HOMES = 256  # shapes remembered per model


class Inputs(Mapping[str, Any]):
    """Input tensors in shared memory, by name: fill them, then ``model(**inputs)``."""

    def __init__(self, tensors: dict[str, _core.Tensor]) -> None:
        self._tensors = tensors

    def __getitem__(self, name: str) -> _core.Tensor:
        return self._tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def __repr__(self) -> str:
        return f"Inputs({self._tensors!r})"


class _Home:
    """The slots of one set of shapes, and what makes one."""

    __slots__ = ("core", "nbytes")

    def __init__(self, core: _core.SlotHome, nbytes: int) -> None:
        self.core = core
        self.nbytes = nbytes


class Model:
    """A loaded model. Made by ``host.load`` and ``host.model``; call it with arrays by input name.

    Without a pinned version, calls go to whatever version is current when the request is taken: a reload under load
    loses no call.
    """

    def __init__(self, host: Host, described: Mapping[str, Any], *, pinned: bool) -> None:
        self._host = host
        self._index: int = described["index"]
        self._pinned = described["version"] if pinned else 0
        self._session = host._connection.session(described["pool"])
        self._session.register(self)
        self._notifier = self._session.notifier
        self._lock = threading.Lock()
        self._homes: dict[Any, _Home] = {}
        self._capacities: dict[Any, dict[int, int]] = {}
        self._unplannable: set[int] = set()
        self._describe(described)

    def _describe(self, described: Mapping[str, Any]) -> None:
        self.name: str = described["name"]
        self._described = dict(described)
        self._input_specs = [_spec(item) for item in described["inputs"]]
        self._output_specs = [_spec(item) for item in described["outputs"]]
        self._input_names = tuple(spec.name for spec in self._input_specs)
        self._positions = {name: i for i, name in enumerate(self._input_names)}
        self._output_names = tuple(spec.name for spec in self._output_specs)
        if (idle := described.get("idle_ns")) is not None:
            self._session.core.raise_idle(idle)
        # An engine that uses every core has none left for a caller that spins while it waits.
        self._may_spin = int(described["threads"]) < (os.cpu_count() or 1)

    # ---- what it is ----------------------------------------------------------------------------------------------

    @property
    def version(self) -> int:
        """The version this handle was made for (pinned), or that was current then."""
        return int(self._described["version"])

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """Signature of the inputs, in the model's order."""
        return tuple(_public(spec) for spec in self._input_specs)

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """Signature of the outputs, in the model's order."""
        return tuple(_public(spec) for spec in self._output_specs)

    @property
    def info(self) -> ModelInfo:
        """What is loaded: source, digest, size, load time."""
        return info_of(self._described)

    # ---- calling -------------------------------------------------------------------------------------------------

    def __call__(self, *arrays: Any, deadline: float | None = None, priority: int = 0, **inputs: Any) -> Outputs:
        """Runs the model on arrays given by input name (or in order, or as one mapping).

        NumPy, torch (CPU) and DLPack arrays are copied once into shared memory; tensors of ``new_inputs`` are used
        where they are. ``deadline``: seconds
        from now; ``priority``: larger goes first. Returns tensors in shared memory.
        Raises InvalidArgument, DeadlineExceeded, KernelFailed, PeerDied, Cancelled, QuotaExceeded, NotFound, Closed.
        """
        slot = self._filled(arrays, inputs)
        self._submit(slot, deadline, priority)
        slot.wait(0)
        return self._ended(slot)

    def submit(
        self,
        *arrays: Any,
        deadline: float | None = None,
        priority: int = 0,
        after: Event | Future | Sequence[Event | Future] | None = None,
        **inputs: Any,
    ) -> Future:
        """The same without waiting: a Future with result(), cancel(), done(), and awaitable.

        after: futures and events (``host.event()``), at most 7: it runs once all of them have ended well, without a
        way back to this process; when one ends otherwise it is cancelled.
        """
        slot = self._filled(arrays, inputs)
        self._submit(slot, deadline, priority, after)
        return Future(self, slot)

    def new_inputs(self, **dims: Any) -> Inputs:
        """Input tensors in shared memory, to be filled in place.

        Keywords are the model's symbolic dimensions (``batch=1``) or whole shapes by input name (``x=(1, 3)``); a
        shape of an input without a dtype in the
        signature is given as ``x=("float32", (1, 3))``. Raises InvalidArgument naming what is missing, QuotaExceeded.
        """
        slot = self._loan(self._shapes_from(dims))
        tensors = ((name, slot.input(i)) for i, name in enumerate(self._input_names))
        return Inputs({name: tensor for name, tensor in tensors if tensor is not None})

    def _shapes_from(self, dims: Mapping[str, Any]) -> Shapes:
        shapes = tuple(self._shape_from(i, spec, dims) for i, spec in enumerate(self._input_specs))
        known = {e for spec in self._input_specs for e in (spec.shape or ()) if isinstance(e, str)} | set(
            self._input_names
        )
        if unknown := sorted(set(dims) - known):
            raise InvalidArgument(f"{unknown}: neither dimensions nor inputs of {self.name!r}; it has {sorted(known)}")
        return shapes

    def prepare(self, *arrays: Any, deadline: float | None = None, priority: int = 0, **inputs: Any) -> _core.Call:
        """A prepared call: ``call()`` runs on these inputs, read anew each time, and returns the same Outputs object.

        With tensors of ``new_inputs`` nothing is ever copied; arrays are copied once, now. ``deadline``: seconds, for
        each call.
        """
        slot = self._filled(arrays, inputs)
        names = self._output_names
        tensors = [slot.output(i) for i in range(len(names))]
        outputs = Outputs.of([tensor for tensor in tensors if tensor is not None], names)
        timeout = 0 if deadline is None else max(1, _nanoseconds(deadline))
        return _core.Call(slot, outputs, self._ended, timeout, _priority(priority))

    # ---- numbers -------------------------------------------------------------------------------------------------

    def statistics(self) -> ModelStatistics:
        """Counters and stage histograms of the version that is current (or pinned), since it was loaded."""
        raw = self._host._raw_statistics()
        wanted = ("version", self._pinned) if self._pinned else ("current", True)
        mine = [line for line in raw["models"] if line["name"] == self.name and line[wanted[0]] == wanted[1]]
        if not mine:
            self._host._ask(wire.Lookup(self.name, self._pinned or None))  # says what there is instead
            raise NotFound(f"model {self.name!r} is not loaded any more")
        numbers = raw["versions"][place(mine[0]["pool"], mine[0]["line"])]
        stages = numbers["stages"]
        seen = raw["callers"].get(place(mine[0]["pool"], self._index)) or callers.summed([])
        return ModelStatistics(
            requests=numbers["requests"],
            failed=numbers["failed"],
            cancelled=numbers["cancelled"],
            expired=numbers["expired"],
            in_flight=numbers["in_flight"],
            copies_in=numbers["copies_in"] + seen["copies_in"],
            copies_out=numbers["copies_out"],
            bytes_copied=numbers["bytes_copied"] + seen["bytes_in"],
            bindings=numbers["bindings"],
            stages={
                "queue": Histogram.of(_pairs(stages["queue"])),
                "run": Histogram.of(_pairs(stages["run"])),
                "copy": Histogram.of(merged(_pairs(stages["copy"]), _pairs(seen["copy"]))),
                "wake": Histogram.of(_pairs(seen["wake"])),
                "total": Histogram.of(_pairs(seen["total"])),
            },
        )

    def unload(self) -> None:
        """Unloads the pinned version, or every version of this name. Requests in flight finish first."""
        self._host.unload(self.name, self._pinned or None)

    def __repr__(self) -> str:
        return f"teal.Model({self.name!r}, version={self.version}{', pinned' if self._pinned else ''})"

    # ---- inside --------------------------------------------------------------------------------------------------

    def _named(self, arrays: tuple[Any, ...], inputs: dict[str, Any]) -> Mapping[str, Any]:
        if not arrays:
            return inputs
        if not all(isinstance(name, str) for array in arrays if isinstance(array, Mapping) for name in array):
            raise InvalidArgument("a mapping whose keys are not all names of inputs")
        if len(arrays) == 1 and isinstance(arrays[0], Mapping):
            named = dict(arrays[0])
        else:
            if len(arrays) > len(self._input_names):
                raise InvalidArgument(
                    f"{len(arrays)} inputs given, {self.name!r} has {len(self._input_names)}: {list(self._input_names)}"
                )
            named = dict(zip(self._input_names, arrays, strict=False))
        if twice := sorted(set(named) & set(inputs)):
            raise InvalidArgument(f"given twice: {twice}")
        return {**named, **inputs}

    def _filled(self, arrays: tuple[Any, ...], inputs: dict[str, Any]) -> _core.Slot:
        """A slot that holds these inputs."""
        named = self._named(arrays, inputs)
        if slot := self._slot_of(named):
            return self._ready(slot)
        prepared: list[Any] = []
        shapes: list[Any] = []
        for i, spec in enumerate(self._input_specs):
            value = named.get(spec.name)
            array, shape = (None, None) if value is None else self._described_array(value, spec, f"$.inputs[{i}]")
            prepared.append(array)
            shapes.append(shape)
        if len(named) > len(self._positions) or any(name not in self._positions for name in named):
            unknown = sorted(name for name in named if name not in self._positions)
            raise InvalidArgument(f"{unknown}: not inputs of {self.name!r}; it has {list(self._input_names)}")
        slot = self._loan(tuple(shapes))
        for i, array in enumerate(prepared):
            if array is None:
                continue
            if isinstance(array, bytes):
                slot.write_packed(i, array)
            else:
                slot.write(i, array)
        return slot

    def _submit(self, slot: _core.Slot, deadline: float | None, priority: int, after: object = None) -> None:
        until = 0 if deadline is None else max(1, time.monotonic_ns() + _nanoseconds(deadline))
        try:
            if after is None:
                slot.submit(priority, until)
            else:
                slot.submit_after(priority, until, awaited(self._session, after))
        except BaseException as error:
            slot.give_up()
            if isinstance(error, TypeError):  # only what comes from outside: an order of priority that is no number
                _priority(priority)
            raise

    def _slot_of(self, named: Mapping[str, Any]) -> _core.Slot | None:
        """The slot all of these tensors are the inputs of, if there is one."""
        for value in named.values():
            slot = _core.slot_of(value) if type(value) is _core.Tensor else None
            return slot if slot is not None and self._owns(slot, named) else None
        return None

    def _ready(self, slot: _core.Slot) -> _core.Slot:
        """The slot, or one with outputs of its own on the same inputs while somebody looks at this one's."""
        try:
            chosen = slot.ready()
        except QuotaExceeded:
            chosen = None
        return chosen or self._session.with_room(slot.ready, slot.nbytes)

    def _owns(self, slot: _core.Slot, named: Mapping[str, Any]) -> bool:
        given = 0
        for name, value in named.items():
            position = self._positions.get(name)
            if position is None or type(value) is not _core.Tensor or slot.place_of(value) != position:
                return False
            given += 1
        return given == slot.n_given and slot.is_for(self._session.core, self._index, self._pinned)

    def _described_array(self, value: Any, spec: wire.Spec, path: str) -> tuple[Any, Any]:
        """(what slot.write takes, (dtype, shape, bytes)) of one input."""
        if type(value) is np.ndarray and (name := _PLAIN_DTYPES.get(value.dtype)) is not None:
            return value, (name, value.shape, 0)  # nearly all there is
        if isinstance(value, _core.Tensor) and value.dtype == "BYTES":
            value = value.numpy()
        if spec.dtype == "BYTES" or (spec.dtype is None and is_strings(value)):
            shape, packed = pack(value.numpy() if isinstance(value, _core.Tensor) else value, path)
            return packed, ("BYTES", shape, _room(len(packed)))
        if isinstance(value, np.ndarray):
            if hasattr(value, "mask"):  # without importing numpy.ma, which takes 12 ms
                raise InvalidArgument("a masked array would lose its mask; give .filled(…)", path=path)
            if (name := _PLAIN_DTYPES.get(value.dtype)) is not None:
                return value, (name, value.shape, 0)
            value = _plain_view(value, path)
            if isinstance(value, tuple):
                return value[1], (value[0], value[1].shape, 0)
        elif isinstance(value, (int, float, bool, complex, list, tuple, np.generic)):
            value = _from_python(value, spec, path)
            return value, (value.dtype.name, value.shape, 0)
        try:
            dtype, shape, _ = _core.describe(value)
        except TypeError as error:
            raise InvalidArgument(f"{type(value).__name__} is {error}", path=path) from None
        return value, (dtype, shape, 0)

    def _shape_from(self, i: int, spec: wire.Spec, dims: Mapping[str, Any]) -> Any:
        given = dims.get(spec.name)
        dtype = spec.dtype
        if given is not None and not isinstance(given, int):
            if len(given) == 2 and isinstance(given[0], str):
                dtype, given = given
            shape = tuple(_extent(extent, f"$.inputs[{i}].shape[{axis}]") for axis, extent in enumerate(given))
        elif spec.shape is None:
            if spec.optional:
                return None
            raise InvalidArgument(f"give its shape, as in {spec.name}=(1, 3)", path=f"$.inputs[{i}]")
        else:
            missing = [
                extent
                for extent in spec.shape
                if not isinstance(extent, int) and (extent is None or extent not in dims)
            ]
            if missing:
                raise InvalidArgument(
                    f"input {spec.name!r} has shape {spec.shape}: give "
                    + (", ".join(f"{name}=" for name in missing if name) or f"{spec.name}=(…)"),
                    path=f"$.inputs[{i}].shape",
                )
            shape = tuple(
                _extent(dims[extent], f"$.{extent}") if isinstance(extent, str) else int(extent or 0)
                for extent in spec.shape
            )
        if dtype is None:
            raise InvalidArgument(
                f"give its dtype too, as in {spec.name}=('float32', {shape})", path=f"$.inputs[{i}].dtype"
            )
        if dtype == "BYTES":
            raise InvalidArgument("strings cannot be filled in place; pass them to the call", path=f"$.inputs[{i}]")
        if any(not 0 <= extent < 1 << 63 for extent in shape):
            raise InvalidArgument(f"{shape}, expected extents of 0 to 2^63 - 1", path=f"$.inputs[{i}].shape")
        return dtype, shape, 0

    def _loan(self, shapes: Shapes) -> _core.Slot:
        home = self._homes.get(shapes)
        if home is None:
            home = self._new_home(shapes)
        try:
            slot = home.core.loan()
        except QuotaExceeded:  # every line is taken, though perhaps by idle slots of other shapes
            slot = None
        return slot or self._session.with_room(home.core.loan, home.nbytes)

    def forget_idle(self) -> None:
        """Gives the memory of slots that nobody holds back to the session."""
        for home in list(self._homes.values()):
            home.core.forget_idle()

    def _plans(self, shapes: Shapes) -> tuple[list[PlanEntry], list[PlanEntry]]:
        """Plans of inputs and outputs for a call with these shapes."""
        inputs, extents = plan_inputs(self._input_specs, shapes)
        by_name: dict[str, PlanEntry] = dict(zip(self._input_names, inputs, strict=True))
        capacities = self._capacities.get(shapes, {})
        return inputs, plan_outputs(self._output_specs, by_name, extents, capacities, self._unplannable)

    def _new_home(self, shapes: Shapes) -> _Home:
        self._host._connection.check_not_forked()
        with self._lock:
            inputs, outputs = self._plans(shapes)
            core = _core.SlotHome(self._session.core, self._index, self._pinned, inputs, outputs, self._may_spin)
            home = _Home(core, plan_bytes(inputs) + plan_bytes(outputs))
            while len(self._homes) >= _MOST_HOMES:
                self._homes.pop(next(iter(self._homes)))
            self._homes[shapes] = home
        return home

    def _ended(self, slot: _core.Slot) -> Outputs:
        """The outputs of a slot whose request has ended. Raises what ended it."""
        state, reason, detail, *_ = slot.result()
        if state == _DONE:
            tensors = slot.outputs()
            if reason == _REASON_SPILLED:
                self._take_spilled(slot, detail, tensors)
            return Outputs.of([tensor for tensor in tensors if tensor is not None], self._output_names)
        message = slot.message()
        slot.give_up()
        raise self._error(state, reason, detail, message)

    def _take_spilled(self, slot: _core.Slot, number: int, tensors: list[_core.Tensor | None]) -> None:
        """Outputs larger than planned: taken from the host, and planned for from now on."""
        layout, fds = self._session.take_spill(number)
        spilled = _core.spilled_tensors(
            fds[0], [(dtype, tuple(shape), at, size) for _, dtype, shape, at, size in layout]
        )
        for (index, *_), tensor in zip(layout, spilled, strict=True):
            tensors[index] = tensor
        with self._lock:
            shapes = next((shapes for shapes, home in self._homes.items() if home.core.made(slot)), None)
            if shapes is None:
                return  # another thread's call has taught us already
            del self._homes[shapes]
            while len(self._capacities) >= _MOST_HOMES:
                self._capacities.pop(next(iter(self._capacities)))
            learned = self._capacities.setdefault(shapes, {})
            for index, _, _, _, size in layout:
                learned[index] = max(_room(size), learned.get(index, 0))
                self._unplannable.add(index)

    def _error(self, state: int, reason: int, detail: int, message: str) -> TealError:
        if state == _EXPIRED:
            return DeadlineExceeded(f"{self.name}: the deadline passed before the answer came")
        if state == _CANCELLED:
            source, why = _CANCELLED_BY.get(reason, ("host", f"reason {reason}"))
            return Cancelled(self.name, source=source, reason=why)
        if reason == _REASON_INVALID:
            return InvalidArgument(message or f"{self.name}: the request was malformed")
        if reason == _REASON_NOT_FOUND:
            number = f"version {self._pinned} of " if self._pinned else ""
            return NotFound(f"{number}model {self.name!r} is not loaded any more{': ' + message if message else ''}")
        if reason == _REASON_QUOTA:
            return QuotaExceeded(
                f"{self.name}: an output does not fit this client's quota of {self._session.limit} bytes (Limits.bytes)"
            )
        if reason == _REASON_WORKER_DIED:
            return PeerDied("worker", f"{how_detail_reads(detail)} while it ran {self.name!r}")
        if reason == 4:
            return KernelFailed(message or "no message", model=self.name)
        return InternalError(f"{self.name}: request ended in state {state} for reason {reason}: {message}")


_WIDE = ("bfloat16", "float8_e4m3fn", "float8_e5m2")  # ml_dtypes'
_PLAIN = frozenset(_core.dtype_names()) - {"BYTES", *_WIDE}
_PLAIN_DTYPES = {np.dtype(name): name for name in _PLAIN}  # in this machine's byte order
_RANKS = {
    "b": 0,
    "u": 1,
    "i": 1,
    "f": 2,
    "V": 2,
    "c": 3,
}  # kinds of NumPy dtypes: a number goes into its own or a higher


def _plain_view(array: np.ndarray[Any, Any], path: str) -> Any:
    """Arrays NumPy itself has no buffer for: ml_dtypes, and byte orders other than the machine's."""
    name = array.dtype.name
    if name in _WIDE:
        return name, array
    if array.dtype.newbyteorder("=").name in _PLAIN and not array.dtype.isnative:
        raise InvalidArgument(
            f"{array.dtype} has a foreign byte order; convert it with .astype({name!r})", path=f"{path}.dtype"
        )
    raise InvalidArgument(f"{array.dtype} is not one of Teal's dtypes", path=f"{path}.dtype")


def _from_python(value: Any, spec: wire.Spec, path: str) -> np.ndarray[Any, Any]:
    """A number or nested list, in the dtype the signature asks for. Nothing is cut off on the way."""
    try:
        array = np.asarray(value)
    except ValueError as error:  # rows of different lengths
        raise InvalidArgument(str(error), path=path) from None
    if spec.dtype is not None:
        array = _converted(array, value, spec.dtype, path)
    if array.dtype.name not in _PLAIN and array.dtype.name not in _WIDE:
        raise InvalidArgument(f"{type(value).__name__} that makes {array.dtype}; give an array", path=path)
    return array


def _converted(array: np.ndarray[Any, Any], value: Any, name: str, path: str) -> np.ndarray[Any, Any]:
    wanted = np.dtype(getattr(ml_dtypes, name) if name in _WIDE else name)
    if array.dtype == wanted:
        return array
    complaint = f"{type(value).__name__} does not convert to {name}"
    if array.size > 0 and _RANKS.get(array.dtype.kind, 9) > _RANKS[wanted.kind]:
        raise InvalidArgument(f"{complaint}: it makes {array.dtype}", path=path)
    try:
        with np.errstate(over="ignore"):
            result = np.asarray(value, dtype=wanted)
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidArgument(f"{complaint}: {error}", path=path) from None
    infinite = np.any(np.isfinite(array) & ~np.isfinite(result))  # a fraction may lose digits, and no more
    if infinite or (wanted.kind in "ui" and not np.array_equal(result, array)):
        raise InvalidArgument(f"{complaint}: a number is out of its range", path=path)
    return result


def _extent(value: Any, path: str) -> int:
    try:
        return operator.index(value)
    except TypeError:
        raise InvalidArgument(f"{value!r}, expected a whole number", path=path) from None


def _room(nbytes: int) -> int:
    """Capacity for contents of varying size: the next power of two, so that few homes serve many lengths."""
    return max(256, 1 << (nbytes - 1).bit_length()) if nbytes else 256


def _nanoseconds(deadline: float) -> int:
    """Nanoseconds from now; a deadline of 0 or less has passed already."""
    if not -1e9 < deadline < 1e9:
        raise InvalidArgument(f"{deadline!r}, expected seconds from now", path="$.deadline")
    return int(deadline * 1e9)


def _priority(value: int) -> int:
    if not isinstance(value, int) or not -(1 << 31) <= value < 1 << 31:
        raise InvalidArgument(f"{value!r}, expected a whole number from -2^31 to 2^31 - 1", path="$.priority")
    return value


def _pairs(buckets: Any) -> list[tuple[int, int]]:
    return [(int(floor), int(count)) for floor, count in buckets]


def _spec(item: Mapping[str, Any]) -> wire.Spec:
    return wire.Spec(**item)


def _public(spec: wire.Spec) -> TensorSpec:
    shape = None if spec.shape is None else tuple(spec.shape)
    return TensorSpec(spec.name, spec.dtype, shape, spec.like, spec.optional, spec.in_place)


def info_of(described: Mapping[str, Any]) -> ModelInfo:
    """The public record of what a host says of a version."""
    fields = (
        "name",
        "version",
        "kernel",
        "source",
        "pool",
        "current",
        "pinned",
        "pure",
        "idempotent",
        "bytes",
        "digest",
        "seconds",
        "uid",
    )
    return ModelInfo(
        **{name: described[name] for name in fields},
        inputs=tuple(_public(_spec(item)) for item in described["inputs"]),
        outputs=tuple(_public(_spec(item)) for item in described["outputs"]),
    )
