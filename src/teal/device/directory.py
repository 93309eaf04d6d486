"""The directory of a resident kernel: which lines it serves and what each of them means.

Layout: core/device/line.hpp, which has the theory; `LAYOUT` below is the same for numpy. The directory lies in a
region that only the worker maps. The worker writes header and entries, the kernel writes pulse and ledger. numpy stores
in no order of its own: what the kernel must find complete is fenced off (``_core.fence``) from what tells it to look.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from teal import _core
from teal.device.protocol import Imported, Place, Task
from teal.device.region import MappedRegion
from teal.errors import InvalidArgument, QuotaExceeded

CAPACITY = _core.DIRECTORY_CAPACITY
REGIONS = _core.DIRECTORY_REGIONS
LINE_BYTES = _core.LINE_BYTES
PARKED, RESIDENT, LOST = 0, 1, 2

HEADER = np.dtype(
    {
        "names": ["magic", "layout", "version", "quit", "count", "epoch", "idle", "backoff"],
        "formats": ["u4", "u4", "u4", "u4", "u4", "u4", "u8", "u4"],
        "offsets": [0, 4, 8, 12, 16, 20, 24, 32],
        "itemsize": 64,
    }
)
PULSE = np.dtype(
    {
        "names": ["version", "state", "epoch", "runs", "polls"],
        "formats": ["u4", "u4", "u4", "u8", "u8"],
        "offsets": [0, 4, 8, 16, 24],
        "itemsize": 64,
    }
)
ENTRY = np.dtype(
    {
        "names": ["active", "batch", "line", "regions", "offsets"],
        "formats": ["u4", "u4", "u8", ("u1", 8), ("u8", 4)],
        "offsets": [0, 4, 8, 16, 24],
        "itemsize": 64,
    }
)
LAYOUT = np.dtype([("header", HEADER), ("pulse", PULSE), ("entries", ENTRY, CAPACITY), ("ledger", "u4", CAPACITY)])


def mark_line(line: Place, state: int) -> None:
    """Writes a state into the reply line: for a kernel that does not look at it, or cannot write any more."""
    _core.fence()  # SYNC: pairs with the client's acquire of the state: what was seen of the kernel comes before
    line.imported.region.array(line.offset + _core.LINE_STATE, (1,), np.uint32)[0] = state


class Directory:
    """The worker's side of a directory in a region of its own."""

    def __init__(self) -> None:
        self.region = MappedRegion.create(LAYOUT.itemsize)
        record: Any = self.region.bytes[: LAYOUT.itemsize].view(LAYOUT)[0]
        self.header, self.pulse = record["header"], record["pulse"]
        self.entries, self.ledger = record["entries"], record["ledger"]
        # Single words, written and read one at a time (numpy's record fields cost more).
        words = self.region.bytes.view(np.uint32)
        self._version, self._quit = words[2:3], words[3:4]
        self._seen, self._state = words[16:17], words[17:18]
        self.header["magic"], self.header["layout"] = _core.DIRECTORY_MAGIC, _core.DIRECTORY_LAYOUT
        self.regions: list[Imported | None] = []  # None: a number that is free again
        self._lines: dict[int, Place] = {}

    @property
    def state(self) -> int:
        """What the kernel says of itself: PARKED or RESIDENT."""
        return int(self._state[0])

    @property
    def version(self) -> int:
        return int(self._version[0])

    @property
    def version_seen(self) -> int:
        """Entries of older versions are not in use any more."""
        return int(self._seen[0])

    @property
    def quit(self) -> bool:
        return bool(self._quit[0])

    @quit.setter
    def quit(self, value: bool) -> None:
        _core.fence()
        self._quit[0] = value

    def raise_version(self) -> int:
        """Makes the kernel read the entries again. Returns the version to wait for."""
        version = (self.version + 1) & 0xFFFFFFFF
        _core.fence()  # SYNC: pairs with the kernel's acquire after it has seen the version: the entries are complete
        self._version[0] = version
        return version

    def number_of(self, imported: Imported) -> int | None:
        """The kernel's argument number of a region, None where it has none yet."""
        return next((i for i, each in enumerate(self.regions) if each is imported), None)

    def add_regions(self, wanted: list[Imported]) -> bool:
        """Gives regions argument numbers; True if there were new ones, so that the kernel must be launched again.

        Raises QuotaExceeded when they do not fit into the kernel's arguments.
        """
        new = list({id(each): each for each in wanted if self.number_of(each) is None}.values())
        used = sum(each is not None for each in self.regions)
        if used + len(new) > REGIONS:
            raise QuotaExceeded(f"resident kernel: {used + len(new)} regions, expected at most {REGIONS}")
        for imported in new:
            number = next((i for i, each in enumerate(self.regions) if each is None), None)
            if number is None:
                self.regions.append(imported)
            else:
                self.regions[number] = imported
        return bool(new)

    def drop_region(self, imported: Imported) -> None:
        """Frees the number of a region that no line uses; the kernel must not be there."""
        number = self.number_of(imported)
        if number is not None:
            self.regions[number] = None

    def write(self, line: Place, task: Task, done: int) -> int:
        """Writes an entry and returns its number; the caller raises the version. `done`: generation served already.

        Raises QuotaExceeded when all entries are taken, InvalidArgument for a line that does not fit its place.
        """
        if line.nbytes < LINE_BYTES or line.offset % 64:
            raise InvalidArgument(
                f"line: {line.nbytes} bytes at {line.offset}, expected {LINE_BYTES} at a multiple of 64"
            )
        number = next((i for i in range(CAPACITY) if i not in self._lines), None)
        if number is None:
            raise QuotaExceeded(
                f"resident kernel: all {CAPACITY} lines are taken; release one, or open a second kernel"
            )
        numbers = [self.number_of(place.imported) for place in (line, *task.places)]
        if None in numbers:
            raise InvalidArgument("line: a region of it is not among the kernel's; add_regions() first")
        entry = self.entries[number]
        entry["batch"], entry["line"] = task.batch, line.offset
        entry["regions"][:5] = numbers
        entry["offsets"][:] = [place.offset for place in task.places]
        self.ledger[number] = done
        entry["active"] = 1
        self._lines[number] = line
        self.header["count"] = max(int(self.header["count"]), number + 1)
        return number

    def silence(self, number: int) -> Place:
        """The entry is not to be served any more; the caller raises the version, waits for the kernel, then drops it.

        Returns its line. Raises InvalidArgument for a number that is not in use.
        """
        if number not in self._lines:
            raise InvalidArgument(f"resident kernel: no line has the number {number}")
        self.entries[number]["active"] = 0
        return self._lines[number]

    def drop(self, number: int) -> None:
        del self._lines[number]

    def mark(self, state: int) -> None:
        """Writes a state into all reply lines: for a kernel that cannot do it itself any more."""
        for line in self._lines.values():
            mark_line(line, state)
