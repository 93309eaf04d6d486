"""A systems load on a compute device, in a worker: by a resident kernel, by launches, or on the CPU.

Theory of operation. The weights are imported once, each region of a client when a slot first needs it. `bind` decides
for a slot, whose batch is fixed, which path its requests take: "cpu" (the core's own kernel), "pl" (a launch each) or
"apk" (the resident kernel; device_call.py). With "auto" that is the cheapest by what was measured, by `teal tune`
before or here when a batch is first seen (cost.py), and only for as long as it is: device_call.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from teal import _core
from teal.device import MappedRegion, Place, Resident, Task
from teal.errors import InvalidArgument, KernelFailed, QuotaExceeded
from teal.kernel import cost
from teal.kernel.device_call import LINE_BYTES, Judged, LaunchCall, ResidentCall
from teal.kernel.residents import OpenDevice, Unplaced
from teal.kernel.systems import LOADS, signature_of
from teal.kernel.systems.task import task_of

if TYPE_CHECKING:
    from teal.host.wire import Spec

PATHS = ("cpu", "apk", "pl", "auto")
IDLE = 0.010  # seconds a resident kernel stays without a request
ANSWER_WITHIN = 5.0  # seconds in which a resident kernel must react
MOST_WORK = 500_000_000  # multiplications of one run of a resident kernel: well within ANSWER_WITHIN on any device
_STEPS = {"kleio": 6}  # how often a run uses each weight
_LINES = 256
_FEW = 32  # items that one group does in a launch


class DeviceKernel:
    """One systems load on one device. Made and closed on the loader's thread, bound on the loop's."""

    pure = True

    def __init__(self, fd: int, opened: OpenDevice, path: str, idle: float = IDLE) -> None:
        """fd: the model's sealed file. Raises KernelFailed, InvalidArgument (no resident kernels there)."""
        if path not in PATHS:
            raise InvalidArgument(f"{path!r}, expected cpu, apk, pl or auto", path="$.path")
        load, offset = _core.systems_file(fd)
        self.inputs: list[Spec]
        self.outputs: list[Spec]
        self.inputs, self.outputs = signature_of(load)
        self.note = ""
        self.on_bound: Callable[[int, str, str], None] = lambda batch, path, why: None
        self.on_lost: Callable[[str], None] = lambda why: None
        self._load, self._opened, self._path, self._idle = LOADS[load], opened, path, idle
        device = opened.device
        task = task_of(load)
        self._program = device.build(task.source, task.scratch)
        weights = MappedRegion(_core.SealedPages(fd), writable=False)
        self._imported = [device.hold(weights), device.import_region(MappedRegion.create(LINE_BYTES * _LINES))]
        self._weights = Place(self._imported[0], offset, weights.nbytes - offset)
        self._free_lines = list(range(_LINES))
        self._costs = cost.read(device.name, task) if path == "auto" else cost.Costs()
        self._told: dict[int, str] = {}
        self.resident = self._keeper()

    def _keeper(self) -> Resident | None:
        if self._path not in ("apk", "auto"):
            return None
        try:
            return self._opened.resident(self._program, self._idle, ANSWER_WITHIN, self.lost)
        except InvalidArgument as error:
            if self._path == "apk":
                raise
            self.note = f"without a resident kernel: {error}"
            return None

    # ---- binding -----------------------------------------------------------------------------------------------------

    def bind(self, slot: _core.WorkerSlot) -> Callable[[], None] | None:
        """How requests of this slot run; None: on the CPU, by the core."""
        x = slot.inputs[0]
        batch = 0 if x is None else x.shape[0]
        call: Callable[[], None] | None = None
        path, why = "cpu", ""
        try:
            if batch > 0 and self._path == "auto":
                path, call = self._bind_cheapest(slot, batch)
            elif batch > 0 and self._path != "cpu":
                path, call = self._bind_to(self._path, slot, self._task(slot, batch))
                if path != self._path:
                    slot.fallback, why = True, "too much work for a resident kernel, or no line is free"
        except (Unplaced, InvalidArgument, QuotaExceeded, KernelFailed) as error:
            self._check()
            path, call, why = "cpu", None, str(error)
            slot.fallback = True
        slot.path = path
        self._tell(batch, path, why)
        return call

    def _bind_to(self, path: str, slot: _core.WorkerSlot, task: Task) -> tuple[str, Callable[[], None]]:
        """What was asked for, or a launch where a resident kernel cannot do it."""
        if path == "apk":
            call = self._resident_call(slot, task)
            if call is not None:
                return "apk", call
        return "pl", LaunchCall(self._opened, self._program.prepare(task))

    def _bind_cheapest(self, slot: _core.WorkerSlot, batch: int) -> tuple[str, Callable[[], None] | None]:
        best = self._costs.best(batch)
        if best == "cpu":
            return "cpu", None
        task = self._task(slot, batch)
        launch = LaunchCall(self._opened, self._program.prepare(task))
        call = self._resident_call(slot, task) if best != "pl" else None
        if best is None:
            ways: dict[str, Callable[[], object]] = {"cpu": slot.run_native, "pl": launch}
            if call is not None:
                ways["apk"] = call.run_own
            best = self._costs.measure(batch, ways)
        limit = self._costs.limit_us(batch)
        if best == "apk" and call is not None:
            call.set_limit(limit)
        elif call is not None:
            call.close()
        chosen = call if best == "apk" else None if best == "cpu" else launch
        if chosen is None:
            return "cpu", None
        return chosen.path, Judged(chosen, slot, limit, lambda: self._tell(batch, "cpu", "the device is busy"))

    def _task(self, slot: _core.WorkerSlot, batch: int) -> Task:
        places = [slot.input_place(0), slot.output_place(0), slot.output_place(1)]
        x, scores, verdict = (self._opened.place(place) for place in places)
        parts = self._opened.device.parts
        items = 0 if batch <= _FEW else max(_FEW, -(-batch // (4 * parts)))
        strides = (x.nbytes // batch, scores.nbytes // batch, verdict.nbytes // batch)
        return Task(self._weights, x, scores, verdict, batch, items, strides)

    def _resident_call(self, slot: _core.WorkerSlot, task: Task) -> ResidentCall | None:
        weights = self._weights.nbytes // 4 * _STEPS.get(self._load.name, 1)
        if self.resident is None or weights * task.batch > MOST_WORK or not self._free_lines:
            return None
        own = Place(self._imported[1], LINE_BYTES * self._free_lines[-1], LINE_BYTES)
        try:
            call = ResidentCall(self._opened, self.resident, own, task, self.lost)
            self._free_lines.pop()
            call.on_close = lambda: self._free_lines.append(own.offset // LINE_BYTES)
            slot.at_end(call.close)
            if slot.current:
                line = self._opened.place((slot.session_region, slot.line, LINE_BYTES))
                call.serve(line, slot.stamp, slot.owner)
        except QuotaExceeded:
            return None
        return call

    def _tell(self, batch: int, path: str, why: str) -> None:
        bucket = cost.bucket_of(batch)
        if self._told.get(bucket) != path + why:
            self._told[bucket] = path + why
            self.on_bound(bucket, path, why)

    # ---- the end -----------------------------------------------------------------------------------------------------

    def lost(self, why: str) -> None:
        self.on_lost(why)

    def _check(self) -> None:
        if self.resident is not None and self.resident.lost:
            self.lost(self.resident.lost)

    def close(self) -> None:
        """The device lets go of all that is the kernel's. No binding of it is left."""
        if self.resident is not None:
            self._opened.release(self.resident)
            self.resident = None
        for imported in self._imported:
            imported.close()
