"""Shinjuku: preemptive, a queue for each type of request.

The next request is the first of the queue that has waited longest in units of its type's SLO; one that has run for
``quantum`` leaves its worker if anything waits for it, and goes to the tail of its type's queue. So a short request
waits for a quantum and not for a long request, whatever is mixed. A type is a model, or a session.
"""

from __future__ import annotations

from collections import Counter, defaultdict

from teal._core import Decision, Request
from teal._core import PolicyWorker as Worker
from teal.agents.policy import NameKind, Outcome, Policy
from teal.agents.setting import Choice, PerName, Time
from teal.agents.waiting import WaitList


class Shinjuku(Policy):
    name = "shinjuku"
    quantum = Time("50us", least="1us")
    by = Choice("model", "session")
    slo = PerName(Time("1ms", least="1us"))

    def __init__(self) -> None:
        self.types: defaultdict[int, WaitList] = defaultdict(WaitList)
        self.active: dict[int, WaitList] = {}  # those of which something waits
        self.counts: Counter[int | None] = Counter()  # waiting requests by the worker they are bound to, None: free

    def new(self, request: Request) -> None:
        request.type = request.model if self.by == "model" else request.session
        request.place = request.since = None
        super().new(request)

    def runnable(self, request: Request) -> None:
        if not request.runnable:
            return
        if request not in self.types[request.type]:
            request.since = self.now
        self._enter(request, None)

    def blocked(self, request: Request) -> None:
        self._leave(request)

    done = departed = blocked

    def affinity_changed(self, request: Request) -> None:
        if request in self.types[request.type]:
            self._enter(request, None)

    def latch_failed(self, request: Request, why: Outcome) -> None:
        if not request.runnable or request in self.types[request.type]:
            return
        if request.since is None:
            request.since = self.now
        self._enter(request, getattr(request, "stamp", None))

    def pick(self, worker: Worker) -> Decision | None:
        firsts = [each for waiting in self.active.values() if (each := waiting.first(worker.index)) is not None]
        if not firsts:
            return None
        best = firsts[0]
        for request in firsts[1:]:
            if self._before(request, best):
                best = request
        self._leave(best)
        more = self._waits_for(worker.index) and (best.preemptible or best.yields)
        return Decision(best, slice_ns=self.quantum if more else 0)

    def preempt(self, worker: Worker) -> bool:
        if worker.running is None or self.now < worker.since_ns + self.quantum:
            return False
        if worker.slice_ns and self.now < worker.since_ns + 2 * worker.slice_ns:  # its own timer is about to
            return False
        return worker.staged > 0 or self._waits_for(worker.index)

    def _before(self, a: Request, b: Request) -> bool:
        """Has ``a`` waited longer than ``b``, each in units of its SLO? Equal: the lower type."""
        kind = NameKind.MODEL if self.by == "model" else NameKind.SESSION
        left = max(self.now - a.since, 0) * self.slo.of(kind, b.type)
        right = max(self.now - b.since, 0) * self.slo.of(kind, a.type)
        before: bool = left > right if left != right else a.type < b.type
        return before

    def _waits_for(self, worker: int) -> bool:
        return self.counts[None] > 0 or self.counts[worker] > 0

    def _enter(self, request: Request, stamp: int | None) -> None:
        waiting = self.types[request.type]
        if request in waiting:
            self.counts[request.place] -= 1
        waiting.push(request, stamp)
        request.place = request.worker
        self.counts[request.place] += 1
        self.active[request.type] = waiting

    def _leave(self, request: Request) -> None:
        waiting = self.types[request.type]
        if waiting.remove(request) is None:
            return
        self.counts[request.place] -= 1
        if not waiting:
            del self.active[request.type]

    def dump(self) -> str:
        queues = [f"#{kind} {len(waiting)}" for kind, waiting in self.active.items()]
        return ", ".join([f"waiting {sum(map(len, self.active.values()))}", *queues])
