"""The devices of one worker process: opened once each, with what was imported into them and what is resident there.

Theory of operation. A region of a client is imported when a slot first needs it and stays so until the region goes,
which the worker is told. A resident kernel occupies a part of a device for as long as it is awake; where a device has
few parts (a CPU has its cores), those that were woken longest ago are told to leave before another comes.
"""

from __future__ import annotations

from teal import _core, device
from teal.device import Imported, MappedRegion, Place, Program, Resident
from teal.device.protocol import Device
from teal.errors import InvalidArgument

_opened: dict[str, OpenDevice] = {}


class OpenDevice:
    """A device, and what this process has on it."""

    def __init__(self, opened: Device) -> None:
        self.device = opened
        self._regions: dict[tuple[int, int], Imported] = {}
        self._residents: list[Resident] = []  # the one woken last at the end
        self._most = 1

    def place(self, tensor: tuple[_core.WorkerRegion, int, int] | None) -> Place:
        """Bytes of a client's region, which is imported if it is not yet. Raises InvalidArgument, KernelFailed."""
        if tensor is None:
            raise InvalidArgument("an output that is not wanted has no place")
        region, offset, nbytes = tensor
        key = (region.session, region.id)
        imported = self._regions.get(key)
        if imported is None:
            # The end of a region's first page is nobody's: its header is read by those who map it, before.
            imported = self._regions[key] = self.device.import_region(MappedRegion(region))
        return Place(imported, offset, nbytes)

    def forget(self, session: int, region: int | None) -> None:
        """A region of a client goes, or with None all of a session."""
        for key in [key for key in self._regions if key[0] == session and region in (None, key[1])]:
            imported = self._regions.pop(key)
            for resident in self._residents:
                resident.forget(imported)
            imported.close()

    def resident(self, program: Program, idle: float, answer_within: float) -> Resident:
        resident = Resident(program, idle=idle, answer_within=answer_within)
        self._residents.append(resident)
        return resident

    def release(self, resident: Resident) -> None:
        self._residents.remove(resident)
        resident.close()

    def make_room(self, wanted: Resident | None) -> None:
        """Before a resident kernel is woken, or with None before a launch."""


def open_device(name: str) -> OpenDevice:
    """The device of that name in this process. Raises what teal.device.open() does."""
    known = _opened.get(name)
    if known is None:
        known = _opened[name] = OpenDevice(device.open(name))
    return known


def forget(session: int, region: int | None) -> None:
    """A region of a client, or a whole session, is about to go."""
    for known in _opened.values():
        known.forget(session, region)
