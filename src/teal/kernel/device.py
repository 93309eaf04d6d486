"""A systems load on a compute device, in a worker: resident kernel, launches, or the CPU.

Theory of operation. The kernel's weights are imported once, each region of a client when a slot first needs it. `bind`
decides for a slot, whose batch is fixed, how its requests run: "cpu" (the core's own kernel), "pl" (one prepared
launch each) or "apk" (the resident kernel). An "apk" slot has two entries in the resident kernel's directory. One is
the client's own line, in its session: the client asks there without ring and worker. The other is a line of ours, for
requests that come by the ring all the same: the first one, those submitted without waiting, and those whose client
found the kernel parked. Of the last kind the client's line shows that it asked already; then the kernel is woken and
serves that, and not twice.

What a client may have scribbled on decides nothing here: whether its line was served says the ledger, which no client
maps, and whether the kernel is well says the pulse.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from teal import _core
from teal.device import MappedRegion, Place, Resident, Task
from teal.errors import DeadlineExceeded, InvalidArgument, QuotaExceeded, TealError
from teal.kernel.residents import OpenDevice
from teal.kernel.systems import LOADS, signature_of
from teal.kernel.systems.task import task_of

if TYPE_CHECKING:
    from teal.device import Launch
    from teal.host.wire import Spec

Outcome = None
PATHS = ("cpu", "apk", "pl", "auto")
LINE_BYTES = 128
IDLE = 0.010  # seconds a resident kernel stays without a request
ANSWER_WITHIN = 5.0  # seconds in which a resident kernel must react
MOST_WORK = 1_000_000_000  # multiplications of one run of a resident kernel: far less than ANSWER_WITHIN on any device
_STATE_PARKED = 0


class DeviceKernel:
    """One systems load on one device. fd: its sealed file; made and closed on the loader's thread, else the loop's."""

    pure = True

    def __init__(self, load: str, offset: int, fd: int, opened: OpenDevice, path: str, idle: float = IDLE) -> None:
        """offset: of the weights in the file. Raises KernelFailed, InvalidArgument (no resident kernels there)."""
        if path not in PATHS:
            raise InvalidArgument(f"{path!r}, expected cpu, apk, pl or auto", path="$.path")
        self.inputs: list[Spec]
        self.outputs: list[Spec]
        self.inputs, self.outputs = signature_of(load)
        self._load = LOADS[load]
        self._opened, self._path = opened, path
        task = task_of(load)
        self._program = opened.device.build(task.source, task.scratch)
        weights = MappedRegion(_core.SealedPages(fd), writable=False)
        self._weights_region = opened.device.import_region(weights)
        self._weights = Place(self._weights_region, offset, weights.nbytes - offset)
        self._lines = MappedRegion.create(LINE_BYTES * 256)
        self._lines_region = opened.device.import_region(self._lines)
        self._free_lines = list(range(256))
        self.resident: Resident | None = None
        if path in ("apk", "auto"):
            self.resident = opened.resident(self._program, idle, ANSWER_WITHIN)

    # ---- binding -----------------------------------------------------------------------------------------------------

    def bind(self, slot: _core.WorkerSlot) -> Callable[[], None] | None:
        """How requests of this slot run; None: on the CPU, by the core."""
        x = slot.inputs[0]
        batch = x.shape[0] if x is not None else 0
        path = self._path_for(batch)
        if path == "cpu":
            return None
        try:
            task = self._task(slot, batch)
            bound = self._resident_call(slot, task) if path == "apk" else self._launch_call(slot, task)
        except (InvalidArgument, QuotaExceeded):
            slot.fallback = True  # off the alignment of devices, an output that is not wanted, no room
            return None
        return bound

    def _path_for(self, batch: int) -> str:
        if batch == 0:
            return "cpu"
        return "apk" if self._path == "auto" else self._path

    def _task(self, slot: _core.WorkerSlot, batch: int) -> Task:
        places = [slot.input_place(0), slot.output_place(0), slot.output_place(1)]
        x, scores, verdict = (self._opened.place(place) for place in places)
        return Task(self._weights, x, scores, verdict, batch)

    def _launch_call(self, slot: _core.WorkerSlot, task: Task) -> Callable[[], None]:
        launch = self._program.prepare(task)
        slot.path = "pl"
        return LaunchCall(self._opened, launch)

    def _resident_call(self, slot: _core.WorkerSlot, task: Task) -> Callable[[], None]:
        assert self.resident is not None
        call = ResidentCall(self._opened, self.resident, self._private_line(), task, self._free_lines)
        slot.at_end(call.close)
        if slot.current:
            line = self._opened.place((slot.session_region, slot.line, LINE_BYTES))
            call.serve(line, slot.stamp, slot.owner)
        slot.path = "apk"
        return call

    def _private_line(self) -> Place:
        if not self._free_lines:
            raise QuotaExceeded("resident kernel: all lines are taken")
        return Place(self._lines_region, LINE_BYTES * self._free_lines.pop(), LINE_BYTES)

    def close(self) -> None:
        """The device lets go of all that is the kernel's."""
        if self.resident is not None:
            self._opened.release(self.resident)
            self.resident = None
        self._weights_region.close()
        self._lines_region.close()


class LaunchCall:
    """Requests of one slot, each by a launch."""

    def __init__(self, opened: OpenDevice, launch: Launch) -> None:
        self._opened, self._launch = opened, launch

    def __call__(self) -> None:
        self._opened.make_room(None)
        self._launch.run()


class ResidentCall:
    """Requests of one slot, by the resident kernel."""

    def __init__(
        self, opened: OpenDevice, resident: Resident, line: Place, task: Task, free_lines: list[int]
    ) -> None:
        self._opened, self._resident, self._task = opened, resident, task
        self._place, self._free_lines = line, free_lines
        self._line = _core.DeviceLine(line.imported.region.bytes, line.offset)
        self._client: int | None = None
        self._own: int | None = None
        self._own = resident.add(line, task, done=self._line.asked)

    def serve(self, line: Place, stamp: int, owner: int) -> None:
        """The client's own line as well, from now on."""
        words = line.imported.region.array(line.offset, (LINE_BYTES // 4,), np.uint32)
        self._asked = words[:1]
        done = int(words[0])
        # All of it before the kernel says that it is there, which is what the client looks at first.
        words[16], words[17], words[18], words[20], words[21] = done, 0, _STATE_PARKED, stamp, owner
        self._client = self._resident.add(line, self._task, done=done)

    def __call__(self) -> None:
        self._opened.make_room(self._resident)
        if self._client is None or not self._serve_client(self._client):
            self._run_own()

    def _serve_client(self, number: int) -> bool:
        """Serves the request that stands in the client's line; False: none stands there, or it went away."""
        ledger = self._resident.directory.ledger
        done = int(ledger[number])
        if int(self._asked[0]) == done:
            return False
        self._resident.wake()
        until = time.monotonic() + ANSWER_WITHIN
        while int(ledger[number]) == done:
            if int(self._asked[0]) == done:
                return False  # its client took it back
            if time.monotonic() > until:
                self._resident.check()
                return int(ledger[number]) != done
            time.sleep(0)
        return True

    def _run_own(self) -> None:
        try:
            self._resident.run(self._line, ANSWER_WITHIN)
        except DeadlineExceeded:
            self._resident.check()
            raise

    def close(self) -> None:
        """Returns when the kernel looks at neither line nor tensors any more."""
        for number in (self._client, self._own):
            if number is not None:
                self._resident.remove(number)
        if self._own is not None:
            self._free_lines.append(self._place.offset // LINE_BYTES)
        self._client = self._own = None


def is_here(name: str) -> str:
    """Why a device cannot be opened; "" when it can. For people."""
    from teal import device

    try:
        device.open(name).close()
    except TealError as error:
        return str(error)
    return ""
