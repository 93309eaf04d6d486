"""First in, first out, a queue for each worker: a request goes to the worker with the fewest when it comes.

With steal=1 (the default) a worker that has nothing takes the oldest request of another in turn; with steal=0 it idles,
and what is cached stays with it. Workers are known from the first word about them; requests that come before wait for
anybody, and go first.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict

from teal._core import PolicyWorker as Worker
from teal._core import Request
from teal.agents.policy import Outcome, Policy
from teal.agents.setting import Flag
from teal.agents.waiting import Part, insert


class Home:
    def __init__(self) -> None:
        self.waiting: Part = OrderedDict()  # free ones of this home
        self.bound: Part = OrderedDict()  # what it alone may run
        self.load = 0  # waiting, staged or running
        self.known = False


class FifoPerWorker(Policy):
    name = "fifo-per-worker"
    steal = Flag("1")

    def __init__(self) -> None:
        self.homes: defaultdict[int, Home] = defaultdict(Home)
        self.levels: defaultdict[int, dict[int, None]] = defaultdict(dict)  # known workers by load
        self.busy: list[int] = []  # homes with something that others might take
        self.anybodys: Part = OrderedDict()
        self.turn = 0
        self.stamp = 0

    @property
    def work_conserving(self) -> bool:  # type: ignore[override]
        return self.steal

    @property
    def moves(self) -> bool:  # type: ignore[override]
        return self.steal

    def new(self, request: Request) -> None:
        request.stamp, request.part, request.home = 0, None, None
        if request.worker is not None:
            self._settle(request, request.worker)
        super().new(request)

    def runnable(self, request: Request) -> None:
        if request.part is not None:
            self.affinity_changed(request)
        elif request.runnable:
            self._house(request)
            self.stamp += 1
            self._enter(request, self.stamp)

    def blocked(self, request: Request) -> None:
        self._leave(request)

    def done(self, request: Request) -> None:
        self._leave(request)
        self._settle(request, None)

    departed = done

    def affinity_changed(self, request: Request) -> None:
        waits = request.part is not None
        self._leave(request)
        self._house(request)
        if waits:
            self._enter(request, request.stamp)

    def latch_failed(self, request: Request, why: Outcome) -> None:
        if not request.runnable or request.part is not None:
            return
        if not request.stamp:
            self.runnable(request)
        else:
            self._house(request)
            self._enter(request, request.stamp)

    def worker_available(self, worker: Worker) -> None:
        self._meet(worker.index)

    worker_busy = worker_available

    def worker_gone(self, worker: Worker) -> None:
        home = self.homes.get(worker.index)
        if home is None or not home.known:
            return
        del self.levels[home.load][worker.index]
        home.known = False
        while home.waiting:  # the others', each at its age
            request = next(iter(home.waiting.values()))
            self._leave(request)
            self._settle(request, self._least())
            self._enter(request, request.stamp)

    def pick(self, worker: Worker) -> Request | None:
        self._meet(worker.index)
        home = self.homes[worker.index]
        parts = [part for part in (home.bound, home.waiting, self.anybodys) if part]
        if not parts and self.steal and self.busy:
            parts = [self.homes[self.busy[self.turn % len(self.busy)]].waiting]
            self.turn += 1
        if not parts:
            return None
        part = min(parts, key=lambda each: next(iter(each)))
        request = next(iter(part.values()))
        self._leave(request)
        self._settle(request, worker.index)
        return request

    def _meet(self, worker: int) -> None:
        home = self.homes[worker]
        if not home.known:
            home.known = True
            self.levels[home.load][worker] = None

    def _least(self) -> int | None:
        """The worker with the fewest; of several, the one that has had them longest."""
        load = min((load for load, level in self.levels.items() if level), default=None)
        return None if load is None else next(iter(self.levels[load]))

    def _house(self, request: Request) -> None:
        """Where it is bound, where it was, or where there is least to do."""
        if request.worker is not None:
            self._settle(request, request.worker)
        elif request.home is None or not self.homes[request.home].known:
            self._settle(request, self._least())

    def _settle(self, request: Request, worker: int | None) -> None:
        """Its home, and so who counts it."""
        if worker is not None and request.home == worker:
            return
        if request.home is not None:
            self._count(request.home, -1)
        request.home = worker
        if worker is not None:
            self._count(worker, 1)

    def _count(self, worker: int, more: int) -> None:
        home = self.homes[worker]
        if home.known:
            del self.levels[home.load][worker]
        home.load += more
        if home.known:
            self.levels[home.load][worker] = None

    def _enter(self, request: Request, stamp: int) -> None:
        request.stamp = stamp
        if request.worker is not None:
            request.part = self.homes[request.worker].bound
        elif request.home is None:
            request.part = self.anybodys
        else:
            request.part = self.homes[request.home].waiting
            if not request.part:
                self.busy.append(request.home)
        insert(request.part, stamp, request)

    def _leave(self, request: Request) -> None:
        part: Part | None = request.part
        if part is None:
            return
        del part[request.stamp]
        request.part = None
        if part or request.home is None or part is not self.homes[request.home].waiting:
            return
        at = self.busy.index(request.home)
        self.busy[at] = self.busy[-1]
        self.busy.pop()

    def dump(self) -> str:
        homes = [f"{worker} has {home.load}" for worker, home in self.homes.items() if home.load]
        return ", ".join([f"{sum(home.known for home in self.homes.values())} workers", *homes])
