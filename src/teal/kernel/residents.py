"""The devices of one worker process: opened once each, what was imported into them, what is resident on them.

Theory of operation. A region of a client is imported when a slot first needs it and stays so until the region goes,
which the worker is told. A resident kernel occupies a part of its device for as long as it is awake; where a device
has few parts (a CPU has its cores), those that were woken longest ago are told to leave before another comes, or
before a launch that would wait for them. A thread watches over the kernels that are awake: clients talk to them
directly, so nobody else would notice one that does not react any more.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from teal import _core, device
from teal.device import Imported, MappedRegion, Place, Program, Resident
from teal.device.protocol import Device
from teal.errors import Closed, KernelFailed

_WATCH_EVERY = 1.0  # seconds

_opened: dict[str, OpenDevice] = {}
_opening = threading.Lock()


class Unplaced(Exception):
    """A tensor that no task of a device can be given."""


class OpenDevice:
    """A device, and what this process has on it. Used by the loop and the loader's thread."""

    def __init__(self, opened: Device) -> None:
        self.device = opened
        self._lock = threading.RLock()
        self._regions: dict[tuple[int, int], Imported] = {}
        self._residents: list[Resident] = []  # the one woken last at the end
        self._lost: dict[int, Callable[[str], None]] = {}
        self._most = max(1, opened.parts - 1)
        self._awake = threading.Event()
        self._watcher: threading.Thread | None = None

    def place(self, tensor: tuple[_core.WorkerRegion, int, int] | None) -> Place:
        """Bytes of a client's region, which is imported if it is not yet.

        Raises Unplaced, InvalidArgument, KernelFailed.
        """
        if tensor is None:
            raise Unplaced("an output that is not wanted")
        region, offset, nbytes = tensor
        key = (region.session, region.id)
        with self._lock:
            imported = self._regions.get(key)
            if imported is None:
                # The import's probe writes at the end of the first page, which is a header and nobody's.
                imported = self._regions[key] = self.device.import_region(MappedRegion(region))
        return Place(imported, offset, nbytes)

    def forget(self, session: int, region: int | None) -> None:
        """A region of a client goes, or with None all of a session."""
        with self._lock:
            for key in [key for key in self._regions if key[0] == session and region in (None, key[1])]:
                imported = self._regions.pop(key)
                for resident in self._residents:
                    resident.forget(imported)
                imported.close()

    def resident(self, program: Program, idle: float, answer_within: float, lost: Callable[[str], None]) -> Resident:
        """lost: called, from any thread, when the kernel does not react. Raises InvalidArgument where none can be."""
        resident = Resident(program, idle=idle, answer_within=answer_within)
        with self._lock:
            self._residents.append(resident)
            self._lost[id(resident)] = lost
            if self._watcher is None:
                self._watcher = threading.Thread(target=self._watch, name="device watch", daemon=True)
                self._watcher.start()
        return resident

    def release(self, resident: Resident) -> None:
        with self._lock:
            self._residents.remove(resident)
            lost = self._lost.pop(id(resident))
            try:
                resident.close()
            except KernelFailed as error:
                lost(str(error))

    def make_room(self, wanted: Resident | None) -> None:
        """Before a resident kernel is woken, or with None before a launch. Raises KernelFailed (one is lost)."""
        if wanted is not None:
            self._awake.set()
        if len(self._residents) < self._most or (wanted is not None and self._residents[-1] is wanted):
            return  # the one woken last is not in its own way
        with self._lock:
            if wanted is not None and wanted in self._residents:
                self._residents.remove(wanted)
                self._residents.append(wanted)
            others = [each for each in self._residents if each is not wanted and not each.parked]
            most = self._most - 1 if wanted is not None or self.device.parts == 1 else self._most
            for resident in others[: max(0, len(others) - most)]:
                try:
                    resident.quit()
                except KernelFailed as error:
                    self._lost[id(resident)](str(error))
                    raise

    def _watch(self) -> None:
        while True:
            self._awake.wait()
            time.sleep(_WATCH_EVERY)
            self._awake.clear()
            with self._lock:
                residents = [each for each in self._residents if not each.parked]
            if residents:
                self._awake.set()
            for resident in residents:
                self._check(resident)

    def _check(self, resident: Resident) -> None:
        try:
            resident.check()
        except KernelFailed as error:
            lost = self._lost.get(id(resident))
            if lost is not None:
                lost(str(error))
        except Closed:  # meanwhile
            return


def open_device(name: str) -> OpenDevice:
    """The device of that name in this process. Raises what teal.device.open() does."""
    with _opening:
        known = _opened.get(name)
        if known is None:
            known = _opened[name] = OpenDevice(device.open(name))
        return known


def forget(session: int, region: int | None) -> None:
    """A region of a client, or a whole session, is about to go."""
    for known in list(_opened.values()):
        known.forget(session, region)
