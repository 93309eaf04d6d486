"""The sessions of a duck: opened within its budget, owned by whoever opened them, gone with their owner.

Theory of operation: a session costs its buffers, its arguments, what the program's pages take and what it may have
beside them; all of it counts against the duck's budget from the moment it is asked for. Its program and its input
buffers stay in the caches as long as it lives. Who vanishes loses all of its sessions at once, running or not.
"""

from __future__ import annotations

import itertools
import logging
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from teal import _core
from teal.duck import messages
from teal.duck.blob import Blob, pages
from teal.duck.cache import Cache
from teal.duck.journal import Journal
from teal.duck.owner import Owner
from teal.duck.yards import AnyYard, Yards
from teal.errors import InvalidArgument, NotFound, PeerDied, QuotaExceeded

log = logging.getLogger("teal.duck")

MOST_SESSIONS = 256
_MOST_PROGRAMS = 64  # read and ready, beside those in use
_LOG_BYTES = 64 << 10
_MEMORY = 64 << 20  # of a program beside its image, unless the session asks
_START_NS = 10_000_000_000
_CLOSE_NS = 500_000_000  # for duck_exit()
_MOST_MAPPED = 16  # blobs that stay mapped in one session
_LINES = 64  # of a program's log that are taken over at once


@dataclass(slots=True, eq=False)
class Resident:
    """One session on the duck's side."""

    number: int
    owner: Owner
    order: messages.Open
    program: Blob
    box: _core.DuckBox
    cost: int
    opened: float = field(default_factory=time.time)
    blobs: OrderedDict[str, Blob] = field(default_factory=OrderedDict)  # mapped, the newest last
    once: int = 0  # the current mapping's number, if it is not kept
    ib_bytes: int = 0
    maps: int = 0
    logged: int = 0  # bytes of its log that the journal has
    wire: int = 0  # its number on the network
    indirect: str = ""  # why its client cannot call it directly; empty: it can, or is on this machine
    ends: Any = None


class Residents:
    """Thread-safe."""

    def __init__(self, yards: Yards, programs: Cache, data: Cache, budget: int, idle_ns: int,
                 journal: Journal) -> None:  # fmt: skip
        self._yards = yards
        self._programs = programs
        self._data = data
        self._budget = budget
        self._idle_ns = idle_ns
        self._journal = journal
        self._guard = threading.Lock()  # guards all below
        self._numbers = itertools.count(1)
        self._sessions: dict[int, Resident] = {}
        self._ready: OrderedDict[str, _core.DuckProgram] = OrderedDict()  # by digest; least recently used first
        self._used = 0
        self.opened = self.ended = self.refused = 0

    # ---- programs ------------------------------------------------------------------------------------------------

    def program(self, blob: Blob, name: str, *, duckinfo: bool = False) -> _core.DuckProgram:
        """Read, checked (``duckinfo``: by the rules of that interface) and in memory. Raises InvalidArgument."""
        key = blob.digest + (" duckinfo" if duckinfo else "")
        with self._guard:
            found = self._ready.get(key)
            if found is not None:
                self._ready.move_to_end(key)
                return found
        made = _core.DuckProgram(blob.fd, blob.nbytes, name or f"program {blob.digest[:16]}", duckinfo)
        with self._guard:
            self._ready[key] = made
            while len(self._ready) > _MOST_PROGRAMS:
                self._ready.popitem(last=False)
        return made

    # ---- sessions ------------------------------------------------------------------------------------------------

    def open(self, owner: Owner, order: messages.Open, offer: _core.DuckOffer | None = None) -> Resident:
        """``offer``: for direct calls of a client elsewhere.

        Raises NotFound (send the program), InvalidArgument, QuotaExceeded, KernelFailed.
        """
        yard, direct, indirect = self._yard(order, offer)
        blob = self._programs.use(order.program)
        cost = 0
        try:
            program = self.program(blob, order.name)
            memory = order.memory or _MEMORY
            cost = self._take(
                pages(order.ob) + pages(order.args) + program.memory_bytes + memory + _LOG_BYTES + order.cores * 4096
            )
            asked = {
                "cores": order.cores, "pin": self._pin(order.cores), "args_bytes": order.args, "ob_bytes": order.ob,
                "log_bytes": _LOG_BYTES, "memory_bytes": memory,
                "idle_ns": self._idle_ns if order.idle_ns is None else order.idle_ns,
                "start_limit_ns": _START_NS, "call_limit_ns": order.timeout_ns,
            }  # fmt: skip
            box = yard.open(program, asked, direct)
        except BaseException:
            self._give(cost)
            self._programs.release(blob)
            self.refused += 1
            raise
        with self._guard:
            resident = Resident(next(self._numbers), owner, order, blob, box, cost, indirect=indirect)
            if not owner.gone:
                self._sessions[resident.number] = resident
                self.opened += 1
        if owner.gone:
            self._end(resident, kill=True)
            raise PeerDied("client", "it left before its session was open")
        log.info("session %d of %s: %s, %d core(s), process %d", resident.number, owner.label,
                 order.name or blob.digest[:16], order.cores, box.facts["box_pid"])  # fmt: skip
        return resident

    def _yard(self, order: messages.Open, offer: _core.DuckOffer | None) -> tuple[AnyYard, _core.DuckOffer | None, str]:
        """The yard for a session, what its box gets for direct calls, and why it gets nothing."""
        if offer is None or offer.refused:
            return self._yards.get(order.sandbox), None, "" if offer is None else offer.refused
        found = self._yards.direct(order.sandbox, sealed=offer.sealed)
        if isinstance(found, str):
            return self._yards.get(order.sandbox), None, found
        return found, offer, ""

    def _pin(self, cores: int) -> list[int]:
        """Several cores of one session do not share one; a single one goes where the system puts it."""
        usable = sorted(os.sched_getaffinity(0))
        return [usable[i % len(usable)] for i in range(cores)] if 1 < cores <= len(usable) else []

    def _take(self, cost: int) -> int:
        with self._guard:
            if len(self._sessions) >= MOST_SESSIONS:
                raise QuotaExceeded(f"{len(self._sessions)} sessions are open, the most that a duck has; close some")
            self._charge(cost, f"a session of {cost} bytes", "close some, ask for less (ob=, memory=)")
        return cost

    def _charge(self, cost: int, what: str, remedy: str) -> None:
        """Under the guard. Raises QuotaExceeded."""
        if self._used + cost > self._budget:
            raise QuotaExceeded(
                f"{what}: sessions of this duck have {self._used} of {self._budget}; {remedy}, or give the duck more "
                "--memory"
            )
        self._used += cost

    def reserve(self, nbytes: int) -> None:
        """Takes so many bytes of the budget for something else; negative: gives them back. Raises QuotaExceeded."""
        with self._guard:
            self._charge(nbytes, f"a buffer of {nbytes} bytes", "ask for less")

    @contextmanager
    def holding(self, cost: int) -> Iterator[None]:
        """So much of the budget, for as long as a run takes. Raises QuotaExceeded."""
        with self._guard:
            self._charge(cost, f"a run of {cost} bytes with its outputs", "ask for less (memory=, output=)")
        try:
            yield
        finally:
            self._give(cost)

    def _give(self, cost: int) -> None:
        with self._guard:
            self._used -= cost

    def find(self, owner: Owner, number: int) -> Resident:
        """One of its own. Raises NotFound."""
        with self._guard:
            found = self._sessions.get(number)
        if found is None or found.owner is not owner:
            raise NotFound(f"session {number} of this client: it is closed, or was opened by another one")
        return found

    def map(self, owner: Owner, order: messages.Map, fd: int | None) -> None:
        """The input buffer from now on. Raises NotFound (send it), InvalidArgument, QuotaExceeded, PeerDied."""
        resident = self.find(owner, order.session)
        for segment in order.gone:
            if resident.box.has(messages.segment_key(segment)):
                resident.box.forget(messages.segment_key(segment))
        if order.digest is not None:
            self._map_blob(resident, order.digest)
        elif fd is not None:
            _check_size(fd, order.nbytes)
            key = messages.segment_key(order.segment)
            resident.box.map(key, fd, order.nbytes)
            self._mapped(resident, order.nbytes, key if order.once else 0)
        else:
            resident.box.unmap()
            self._mapped(resident, 0, 0)

    def _map_blob(self, resident: Resident, digest: str) -> None:
        blob = self._data.use(digest, resident.owner)
        try:
            resident.box.map(messages.digest_key(digest), blob.fd, blob.nbytes)
        except BaseException:
            self._data.release(blob)
            raise
        with self._guard:
            there = resident.blobs.pop(digest, None)
            resident.blobs[digest] = blob
            oldest = resident.blobs.popitem(last=False)[1] if len(resident.blobs) > _MOST_MAPPED else None
        if there is not None:
            self._data.release(there)
        if oldest is not None:
            resident.box.forget(messages.digest_key(oldest.digest))
            self._data.release(oldest)
        self._mapped(resident, blob.nbytes, 0)

    def _mapped(self, resident: Resident, nbytes: int, once: int) -> None:
        with self._guard:
            resident.ib_bytes = nbytes
            resident.maps += 1
            before, resident.once = resident.once, once
        if before and before != once:
            resident.box.forget(before)

    def close(self, owner: Owner, number: int, *, kill: bool) -> None:
        """Raises NotFound."""
        self._remove([self.find(owner, number)], kill=kill)

    def close_all(self, owner: Owner | None) -> int:
        """Of a client that is gone, or of everybody. Returns how many there were."""
        with self._guard:
            if owner is not None:
                owner.gone = True
            mine = [one for one in self._sessions.values() if owner is None or one.owner is owner]
        self._remove(mine, kill=True)
        return len(mine)

    def finish(self) -> None:
        """Ends everything, and gives all memory back."""
        self.close_all(None)
        with self._guard:
            self._ready.clear()

    def _remove(self, residents: list[Resident], *, kill: bool) -> None:
        for resident in residents:
            with self._guard:
                if self._sessions.pop(resident.number, None) is None:
                    continue  # another thread does it
                self.ended += 1
            self._end(resident, kill=kill)

    def _end(self, resident: Resident, *, kill: bool) -> None:
        if resident.ends is not None:
            resident.ends()
        if kill:
            resident.box.kill()
            resident.box.wait_ended(_CLOSE_NS)
        else:
            resident.box.close(_CLOSE_NS)
        self._take_log(resident)
        _, detail, words = resident.box.ending
        log.info("session %d ended: %s%s", resident.number, words, f" ({detail})" if detail else "")
        self._programs.release(resident.program)
        for blob in resident.blobs.values():
            self._data.release(blob)
        self._give(resident.cost)

    # ---- what there is -------------------------------------------------------------------------------------------

    def reap(self) -> None:
        """Gives back what sessions have whose program has ended.

        Clients here have its fate mapped; those elsewhere are told when they ask next, or leave.
        """
        with self._guard:
            ended = [one for one in self._sessions.values() if one.owner.here and one.box.ending[0] != 0]
        self._remove(ended, kill=True)

    def take_logs(self) -> None:
        """What programs have said since goes to the journal."""
        with self._guard:
            sessions = list(self._sessions.values())
        for resident in sessions:
            self._take_log(resident)

    def _take_log(self, resident: Resident) -> None:
        text, start = resident.box.log(resident.logged, _LOG_BYTES)
        if start > resident.logged:
            self._journal.write(
                "program", f"session {resident.number}: {start - resident.logged} bytes were written over"
            )
        resident.logged = start + len(text)
        for line in text.decode("utf-8", "replace").splitlines()[-_LINES:]:
            self._journal.write("program", f"session {resident.number}: {line}")

    def rows(self) -> list[dict[str, Any]]:
        """One for each session."""
        with self._guard:
            sessions = list(self._sessions.values())
        return [
            {
                "session": one.number,
                "name": one.order.name,
                "program": one.program.digest,
                "owner": one.owner.label,
                "cores": one.order.cores,
                "pid": one.box.facts["box_pid"],
                "bytes": one.cost,
                "ob_bytes": one.order.ob,
                "ib_bytes": one.ib_bytes,
                "maps": one.maps,
                "direct_calls": one.box.direct_calls,
                "indirect": one.indirect,
                "state": one.box.ending[2],
                "seconds": time.time() - one.opened,
            }
            for one in sessions
        ]

    def numbers(self) -> dict[str, int]:
        """Counters; bytes: of what is open, and of the budget."""
        with self._guard:
            return {
                "open": len(self._sessions),
                "opened": self.opened,
                "ended": self.ended,
                "refused": self.refused,
                "bytes": self._used,
                "most_bytes": self._budget,
            }


def _check_size(fd: int, nbytes: int) -> None:
    try:
        size = os.fstat(fd).st_size
    except OSError as error:
        raise InvalidArgument(f"the input buffer's descriptor: {error.strerror}", path="$.nbytes") from None
    if not 0 < nbytes <= size:
        raise InvalidArgument(f"an input buffer of {nbytes} bytes in a file of {size}", path="$.nbytes")
