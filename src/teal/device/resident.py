"""A resident kernel and its keeper: launches it, tells it about lines, wakes it after it parked, notices when it is
lost.

Theory of operation. The kernel stays on the device and polls the request lines of its directory
(core/device/line.hpp). It leaves by itself after `idle` seconds without a request, or when told to quit, so a device
is never occupied for good and a kernel can always be replaced. A client that finds its line parked asks the worker,
which calls `wake`. A line in regions the kernel knows costs it a look at a version; a new region means that it is
launched again, as regions are its arguments.

A kernel that does not react within `answer_within` is lost: nothing can end it from outside, its context is of no
more use, and what it may still write stays in regions that must not be given to anybody else. All its lines are
marked, later calls raise, and the process that holds the device is to be replaced.
"""

from __future__ import annotations

import atexit
import contextlib
import threading
import time
import weakref
from typing import Any

from teal import _core
from teal.device.directory import LOST as STATE_LOST
from teal.device.directory import PARKED, RESIDENT, Directory, mark_line
from teal.device.protocol import Imported, Place, Program, Started, Task
from teal.errors import Closed, DeadlineExceeded, InvalidArgument, KernelFailed, TealError

DONE, INVALID, FAILED, PARKED_ANSWER, LOST_ANSWER, LATE = range(6)  # teal::Answer of core/device/line.hpp

_living: weakref.WeakSet[Resident] = weakref.WeakSet()
_abandoned: list[Any] = []  # what a lost kernel may still write to lives as long as the process


@atexit.register
def _leave_all() -> None:
    """A kernel that still runs while its driver and its memory are taken down would bring the process down with it."""
    for resident in list(_living):
        with contextlib.suppress(TealError):
            resident.close()


class Patience:
    """Time as this thread saw it pass: that a process was stopped for a while is not its kernel's fault."""

    _STEP = 0.1  # seconds at most between two looks that count

    def __init__(self, seconds: float) -> None:
        self._left, self._last = seconds, time.monotonic()

    def is_over(self) -> bool:
        now = time.monotonic()
        self._left -= min(now - self._last, self._STEP)
        self._last = now
        return self._left <= 0


class Resident:
    """Keeps one resident kernel of a program. One thread at a time may use it (it locks); lines are their clients'
    own."""

    def __init__(self, program: Program, *, idle: float = 0.010, backoff: int = 8, answer_within: float = 2.0) -> None:
        """idle, answer_within: seconds; the latter must be longer than the longest run of a task. backoff: longest
        pause between two looks, in the device's own short pauses.

        Raises InvalidArgument for a device whose running kernels do not see the host's stores, or times out of range.
        """
        can = program.device.capabilities
        if not can.live:
            raise InvalidArgument(
                f"{program.device.name}: no resident kernels here: {can.note or 'the live probe failed'}"
            )
        if not 0 < idle <= 3600 or not 0 < answer_within <= 3600 or not 0 <= backoff <= 4096:
            raise InvalidArgument(
                f"resident kernel: idle {idle} s, answer_within {answer_within} s, backoff {backoff}; "
                "expected times above 0 up to 3600 s, and a backoff of 0 to 4096"
            )
        self.program = program
        self.directory = Directory()
        self.directory.header["idle"] = max(1, int(idle * 1e9 / can.clock_ns))
        self.directory.header["backoff"] = backoff
        self._answer_within = answer_within
        self._imported: Imported | None = program.device.import_region(self.directory.region)
        self._event: Started | None = None
        self._lost: str | None = None
        self._lock = threading.RLock()
        _living.add(self)
        self._counts = {"launches": 0, "wakes": 0, "relaunched_for_regions": 0, "lost": 0}

    def add(self, line: Place, task: Task, *, done: int | None = None) -> int:
        """Serves a line from now on; returns its number. The line's generation `done` and older are not run.

        done: by default what the reply line says. The kernel need not be awake, and is not woken.
        Raises QuotaExceeded when all lines or regions are taken, InvalidArgument for places that do not fit.
        """
        with self._lock:
            self._check()
            places = (line, *task.places)
            for place in places:
                if place.imported.copied:
                    raise InvalidArgument(
                        "resident kernel: a region of this line was copied by the device; use a launch"
                    )
            if self.directory.add_regions([place.imported for place in places]) and self._running():
                self._counts["relaunched_for_regions"] += 1
                self._leave()
            if done is None:
                done = int(line.imported.region.array(line.offset + _core.LINE_DONE, (1,), "u4")[0])
            number = self.directory.write(line, task, done)
            self.directory.raise_version()
            return number

    def remove(self, number: int) -> None:
        """Returns when the kernel does not look at the line, nor at its tensors, any more. Its client finds it
        parked."""
        with self._lock:
            self._check()
            line = self.directory.silence(number)
            self._settle(self.directory.raise_version())
            mark_line(line, PARKED)
            self.directory.drop(number)

    def forget(self, imported: Imported) -> None:
        """No line uses a region any more: the kernel leaves, and its number is free for another one."""
        with self._lock:
            if self._lost is None and self._imported is not None and self.directory.number_of(imported) is not None:
                self._leave()
                self.directory.drop_region(imported)

    def wake(self) -> None:
        """Returns when the kernel is there and looks at its lines. Raises KernelFailed when it does not come up."""
        with self._lock:
            self._check()
            self._counts["wakes"] += 1
            patience = Patience(self._answer_within)
            launched = False
            while True:
                running = self._running()  # first: a kernel that has ended has said before that it came up
                if self._awake(launched, running):
                    return
                if not running and launched:
                    self._lose("ended without having come up")
                if not running:
                    self._launch()
                    launched = True
                elif patience.is_over():
                    self._lose(f"did not come up within {self._answer_within} s")
                time.sleep(0)

    def check(self) -> None:
        """Looks whether the kernel still reacts. Raises KernelFailed, and marks all lines, when it is lost."""
        with self._lock:
            self._check()
            self._settle(self.directory.raise_version())

    def quit(self) -> None:
        """Returns when the kernel has left. Requests that stand are served after the next wake()."""
        with self._lock:
            self._check()
            self._leave()

    def run(self, line: Any, timeout: float = 10.0) -> None:
        """Asks on a `_core.DeviceLine` and waits for the answer, waking the kernel when it is parked; for callers in
        this process. timeout: seconds.

        Raises DeadlineExceeded, or KernelFailed for an answer that is no success.
        """
        until = time.monotonic() + timeout
        generation = line.ask()
        while True:
            answer = line.wait(generation, max(0, int((until - time.monotonic()) * 1e9)))
            if answer == DONE:
                return
            if answer == LATE:
                raise DeadlineExceeded(f"device line: no answer within {timeout} s; the run may still happen")
            if answer != PARKED_ANSWER:
                raise KernelFailed(
                    f"device line: {('done', 'invalid entry', 'failed', 'parked', 'kernel lost')[answer]}"
                )
            self.wake()

    @property
    def parked(self) -> bool:
        """The kernel has left, or is about to."""
        return self._lost is None and (self.directory.state == PARKED or not self._running())

    @property
    def lost(self) -> str | None:
        """Why the kernel is lost, None while it is not."""
        return self._lost

    def statistics(self) -> dict[str, int]:
        pulse = self.directory.pulse
        return self._counts | {"runs": int(pulse["runs"]), "polls": int(pulse["polls"])}

    def close(self) -> None:
        """Makes the kernel leave and frees what it used; of a lost one, nothing is freed. Twice is fine."""
        with self._lock:
            if self._imported is None:
                return
            if self._lost is None:
                self._leave()
                self._imported.close()
            self._imported = None

    def __enter__(self) -> Resident:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _check(self) -> None:
        if self._lost is not None:
            raise KernelFailed(f"resident kernel is lost: {self._lost}; replace the process that holds the device")
        if self._imported is None:
            raise Closed("resident kernel: it was closed")

    def _running(self) -> bool:
        """A launch is on the device. Raises KernelFailed when it ended badly."""
        if self._event is not None:
            try:
                if self._event.done():
                    self._event = None
            except KernelFailed as error:
                self._lose(str(error))
        return self._event is not None

    def _awake(self, launched: bool, running: bool) -> bool:
        """A kernel is there that looks at the lines after this call began.

        One launched since then does once it has come up, even if it has left again. One that was there before does
        while it does not say that it parks: should it park now, it looks at the lines once more after saying so.
        """
        directory = self.directory
        came_up = int(directory.pulse["epoch"]) == int(directory.header["epoch"]) and directory.header["epoch"] > 0
        return came_up and (launched or (running and directory.state == RESIDENT))

    def _launch(self) -> None:
        assert self._imported is not None
        self.directory.quit = False
        self.directory.header["epoch"] += 1
        self._event = self.program.start(self._imported, self.directory.regions)
        self._counts["launches"] += 1

    def _leave(self) -> None:
        self.directory.quit = True
        patience = Patience(self._answer_within)
        while self._running():
            if patience.is_over():
                self._lose(f"did not leave within {self._answer_within} s of being told to")
            time.sleep(0)

    def _settle(self, version: int) -> None:
        """Waits until the kernel works from this version of the entries, or has left."""
        patience = Patience(self._answer_within)
        while self.directory.version_seen != version and self._running():
            if patience.is_over():
                self._lose(f"did not react within {self._answer_within} s")
            time.sleep(0)

    def _lose(self, why: str) -> None:
        self._lost = why
        self._counts["lost"] += 1
        _abandoned.append((self.program, self.directory, self._imported, self._event))
        self.directory.mark(STATE_LOST)
        self._check()
