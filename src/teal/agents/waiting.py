"""Queues for policies, which know that some requests can go on at one worker only.

Theory of operation: a request waits for any worker, or is bound to one (``request.worker``: it has begun there). So
there is a free part and one part a worker, and ``first(worker)`` is the first of two. Order across them is kept by a
stamp: each push takes the next, and what comes back because its decision was refused keeps the one it had. Each removal
is O(1), or O(log n) in a heap, where removed entries are passed over later.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from teal._core import Request

Part = OrderedDict[int, "Request"]  # by stamp, ascending


class WaitList:
    """First in, first out. ``request.stamp`` is the policy's: set by the first push, kept by ``push_back``."""

    def __init__(self) -> None:
        self.free: Part = OrderedDict()
        self.bound: dict[int, Part] = {}
        self._place: dict[int, tuple[Part, int]] = {}  # by record
        self._last = 0

    def __len__(self) -> int:
        return len(self._place)

    def __contains__(self, request: Request) -> bool:
        return request.index in self._place

    def push(self, request: Request, stamp: int | None = None) -> None:
        """At the end, or where ``stamp`` belongs. One that waits already moves to the part it belongs to."""
        if request.index in self._place:
            stamp = self.remove(request)
        if stamp is None:
            self._last += 1
            stamp = self._last
        part = self.free if request.worker is None else self.bound.setdefault(request.worker, OrderedDict())
        insert(part, stamp, request)
        self._place[request.index] = (part, stamp)
        request.stamp = stamp

    def push_back(self, request: Request) -> None:
        """At the place it had, if it had one: its decision was refused."""
        self.push(request, getattr(request, "stamp", None))

    def remove(self, request: Request) -> int | None:
        """Its stamp, or None: it does not wait here."""
        place = self._place.pop(request.index, None)
        if place is None:
            return None
        del place[0][place[1]]
        return place[1]

    def first(self, worker: int) -> Request | None:
        """What has waited longest of what ``worker`` may run."""
        free = next(iter(self.free), None)
        part = self.bound.get(worker)
        bound = next(iter(part), None) if part else None
        if free is not None and (bound is None or free < bound):
            return self.free[free]
        return None if bound is None or part is None else part[bound]

    def pop(self, worker: int) -> Request | None:
        """``first``, removed."""
        request = self.first(worker)
        if request is not None:
            self.remove(request)
        return request


def insert(part: Part, stamp: int, request: Request) -> None:
    """Into a part at its stamp: at an end nearly always."""
    last = next(reversed(part), None)
    part[stamp] = request
    if last is None or last < stamp:
        return
    part.move_to_end(stamp, last=False)
    for older in sorted(other for other in part if other < stamp)[::-1]:
        part.move_to_end(older, last=False)


Entry = tuple[int, int, int, "Request"]  # key, stamp, serial: no two entries are equal


class WaitHeap:
    """Least key first, then first in, first out."""

    def __init__(self) -> None:
        self._free: list[Entry] = []
        self._bound: dict[int, list[Entry]] = {}
        self._place: dict[int, Entry] = {}  # by record: the entry that counts
        self._last = 0
        self._serial = 0

    def __len__(self) -> int:
        return len(self._place)

    def __contains__(self, request: Request) -> bool:
        return request.index in self._place

    def push(self, request: Request, key: int, stamp: int | None = None) -> None:
        """Anew, or at the place of ``stamp``. One that waits already moves to the part it belongs to."""
        if request.index in self._place:
            stamp = self.remove(request)
        if stamp is None:
            self._last += 1
            stamp = self._last
        self._serial += 1
        entry = (key, stamp, self._serial, request)
        part = self._free if request.worker is None else self._bound.setdefault(request.worker, [])
        if len(part) > 64 + 2 * len(self._place):  # mostly removed ones
            part[:] = [each for each in part if self._place.get(each[3].index) is each]
            heapq.heapify(part)
        heapq.heappush(part, entry)
        self._place[request.index] = entry
        request.stamp = stamp

    def remove(self, request: Request) -> int | None:
        """Its stamp, or None: it does not wait here."""
        entry = self._place.pop(request.index, None)
        return None if entry is None else entry[1]

    def top(self, worker: int) -> Entry | None:
        """The entry (key, stamp, serial, request) of what ``worker`` gets next."""
        free, part = self._least(self._free), self._bound.get(worker)
        bound = self._least(part) if part else None
        if free is None or bound is None:
            return bound if free is None else free
        return min(free, bound)

    def pop(self, worker: int) -> Request | None:
        """The request of ``top``, removed."""
        entry = self.top(worker)
        if entry is None:
            return None
        self.remove(entry[3])
        return entry[3]

    def _least(self, part: list[Entry]) -> Entry | None:
        while part and self._place.get(part[0][3].index) is not part[0]:
            heapq.heappop(part)
        return part[0] if part else None
