"""Requests of one slot on a device: by launches, by the resident kernel, or by whichever is worth it.

Theory of operation. A slot of the resident kernel has two entries in its directory. One is the client's own line, in
its session: there the client asks without ring and worker. The other is a line of ours, for requests that come by the
ring all the same: the first one, those submitted without waiting, and those whose client found the kernel parked. Of
the last kind the client's line shows that it asked already; then the kernel is woken and serves that, and not twice.

What a client may have scribbled on decides nothing here: whether its line was served says the ledger, which no client
maps, and whether the kernel is well says the pulse.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from teal import _core
from teal.device import Place, Resident, Task
from teal.device.protocol import Launch
from teal.device.resident import DONE, LATE, PARKED_ANSWER, Patience
from teal.errors import KernelFailed
from teal.kernel.residents import OpenDevice

LINE_BYTES = _core.LINE_BYTES
_SERVED_WITHIN = 5.0  # seconds
_LOOK_EVERY_NS = 2_000_000_000
_PARKED = 0
_FIRST_REST, _LONGEST_REST = 1.0, 60.0  # seconds on the CPU before the device is tried again
_ASKED, _DONE, _STATUS, _STATE, _STAMP, _OWNER, _LIMIT = (  # words of a DeviceLine
    at // 4
    for at in (
        _core.LINE_ASKED,
        _core.LINE_DONE,
        _core.LINE_STATUS,
        _core.LINE_STATE,
        _core.LINE_STAMP,
        _core.LINE_OWNER,
        _core.LINE_LIMIT,
    )
)


class LaunchCall:
    """Each request is a launch."""

    path = "pl"

    def __init__(self, opened: OpenDevice, launch: Launch) -> None:
        self._opened, self._launch = opened, launch

        self.took = 0.0  # seconds

    def __call__(self) -> None:
        self._opened.make_room(None)
        start = time.perf_counter()
        self._launch.run()
        self.took = time.perf_counter() - start

    def rest(self) -> None:
        """The device is not asked for a while."""

    def resume(self) -> None:
        """It is again."""


class ResidentCall:
    """Requests are done by the resident kernel. `close` before the tensors may be anybody else's."""

    path = "apk"

    def __init__(
        self, opened: OpenDevice, resident: Resident, line: Place, task: Task, lost: Callable[[str], None]
    ) -> None:
        """line: of ours, free. Raises QuotaExceeded, InvalidArgument, KernelFailed."""
        self._opened, self._resident, self._task, self._lost = opened, resident, task, lost
        self.on_close: Callable[[], None] = lambda: None
        self._line = _core.DeviceLine(line.imported.region.bytes, line.offset)
        self._client: int | None = None
        self._served: tuple[Place, int, int] | None = None
        self._own: int | None = resident.add(line, task, done=self._line.asked)
        self.took = 0.0  # seconds of the last run, without waking the kernel

    def serve(self, line: Place, stamp: int, owner: int) -> None:
        """The client's own line as well. stamp, owner: what it looks at to know that the line is its own."""
        self._served = (line, stamp, owner)
        self._words = words = line.imported.region.array(line.offset, (LINE_BYTES // 4,), np.uint32)
        done = int(words[_ASKED])
        # All of it before the kernel says that it is there, which is what the client looks at first.
        words[_DONE], words[_STATUS], words[_STATE], words[_STAMP], words[_OWNER] = done, 0, _PARKED, stamp, owner
        self._client = self._resident.add(line, self._task, done=done)

    def set_limit(self, us: float) -> None:
        """A client whose calls take longer than that comes by the ring."""
        if self._client is not None:
            self._words[_LIMIT] = min(int(us * 1000), 0xFFFFFFFF)

    def __call__(self) -> None:
        try:
            self._wake()
            start = time.perf_counter()
            if self._client is None or not self._serve_client(self._client):
                self._run_own()
            self.took = time.perf_counter() - start
        except KernelFailed:
            if self._resident.lost:
                self._lost(self._resident.lost)
            raise

    def run_own(self) -> None:
        """On our line, whatever stands in the client's."""
        self._wake()
        self._run_own()

    def _wake(self) -> None:
        self._opened.make_room(self._resident)
        if self._resident.parked:
            self._resident.wake()

    def _serve_client(self, number: int) -> bool:
        """Serves the request that stands in the client's line; False: none stands there, or it went away."""
        ledger = self._resident.directory.ledger
        done = int(ledger[number])
        if int(self._words[_ASKED]) == done:
            return False
        patience = Patience(_SERVED_WITHIN)
        while int(ledger[number]) == done:
            if int(self._words[_ASKED]) == done:
                return False  # its client took it back
            if self._resident.parked:
                self._resident.wake()
            if patience.is_over():
                self._resident.check()
                return int(ledger[number]) != done
            time.sleep(0)
        return True

    def _run_own(self) -> None:
        generation = self._line.ask()
        while (answer := self._line.wait(generation, _LOOK_EVERY_NS)) != DONE:
            if answer == PARKED_ANSWER:
                self._resident.wake()
            elif answer == LATE:
                self._resident.check()
            else:
                self._resident.check()
                raise KernelFailed(f"the resident kernel could not run the request (answer {answer})")

    def rest(self) -> None:
        """The client's line is not served for a while: its calls come by the ring."""
        self._stop_serving()

    def resume(self) -> None:
        if self._served is not None and self._client is None and self._own is not None:
            limit = int(self._words[_LIMIT])
            self.serve(*self._served)
            self._words[_LIMIT] = limit

    def _stop_serving(self) -> None:
        if self._client is not None:
            number, self._client = self._client, None
            self._resident.remove(number)
            self._words[_STAMP] = 0
            _core.fence()  # SYNC: pairs with the client's acquire of the owner, in settled(): the kernel has let go
            self._words[_OWNER] = 0

    def close(self) -> None:
        """Returns when the kernel looks at neither lines nor tensors any more. Twice is fine."""
        if self._own is None:
            return
        try:
            self._stop_serving()
            self._resident.remove(self._own)
        except KernelFailed:
            if self._resident.lost:
                self._lost(self._resident.lost)
            raise
        self._own, self._served = None, None
        self.on_close()


class Judged:
    """A device for as long as it is worth it: where its runs become slower than `limit_us`, the CPU does them for a
    while, and longer each time that it was no better when it was tried again."""

    def __init__(
        self, call: LaunchCall | ResidentCall, slot: _core.WorkerSlot, limit_us: float, on_rest: Callable[[], None]
    ) -> None:
        self._call, self._slot, self._limit_s, self._on_rest = call, slot, limit_us / 1e6, on_rest
        self._average = self._limit_s / 2
        self._until = 0.0
        self._rest = _FIRST_REST

    def __call__(self) -> None:
        start = time.monotonic()
        if start < self._until:
            self._slot.run_native()
            return
        if self._until:
            self._until = 0.0
            self._average = self._limit_s / 2
            self._call.resume()
            self._slot.path = self._call.path
        self._call()
        # One bad run is not enough, however bad: two in a row are.
        self._average = (self._average * 3 + min(self._call.took, 2 * self._limit_s)) / 4
        if self._average > self._limit_s:
            self._give_way(time.monotonic())
        elif self._average < self._limit_s / 2:
            self._rest = _FIRST_REST

    def _give_way(self, now: float) -> None:
        self._call.rest()
        self._until = now + self._rest
        self._rest = min(self._rest * 2, _LONGEST_REST)
        self._slot.path, self._slot.fallback = "cpu", True
        self._on_rest()
