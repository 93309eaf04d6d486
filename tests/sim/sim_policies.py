"""Policies with one thing wrong each, and one without."""

from __future__ import annotations

import random
from typing import Any

from teal.agents import Decision, Policy, Time, WaitList


class Good(Policy):
    """First come, first served."""

    pause = Time("1us")

    def __init__(self) -> None:
        self.waiting = WaitList()

    def runnable(self, request: Any) -> None:
        if request.runnable:
            self.waiting.push(request)

    def blocked(self, request: Any) -> None:
        self.waiting.remove(request)

    done = departed = blocked

    def affinity_changed(self, request: Any) -> None:
        if request in self.waiting:
            self.waiting.push(request)

    def pick(self, worker: Any) -> Any:
        return self.waiting.pop(worker.index)


class Twice(Good):
    """Keeps what it has picked, and offers it to the next worker as well, before anything else."""

    last: Any = None

    def pick(self, worker: Any) -> Any:
        if self.last is not None and self.last.worker is None:
            offered, self.last = self.last, None
            return offered
        self.last = super().pick(worker)
        return self.last


class Forgetful(Good):
    """Every seventh request never gets its turn."""

    seen = 0

    def new(self, request: Any) -> None:
        self.seen += 1
        if self.seen % 7:
            super().new(request)


class Stale(Good):
    """Never hears that one has ended, and offers it later."""

    def blocked(self, request: Any) -> None:
        pass

    done = departed = blocked

    def __init__(self) -> None:
        super().__init__()
        self.all: list[Any] = []

    def new(self, request: Any) -> None:
        self.all.append(request)
        super().new(request)

    def pick(self, worker: Any) -> Any:
        for old in self.all[-50:]:
            if old.over:
                self.all.remove(old)
                return old
        return super().pick(worker)


class Sleepy(Good):
    """Decides nothing, every other tenth of a second."""

    def pick(self, worker: Any) -> Any:
        return None if self.now // 100_000_000 % 2 else super().pick(worker)


class Raises(Good):
    """At the hundredth request."""

    seen = 0

    def runnable(self, request: Any) -> None:
        self.seen += 1
        if self.seen == 100:
            raise ZeroDivisionError("a hundred")
        super().runnable(request)


class RaisesAtOnce(Good):
    def new(self, request: Any) -> None:
        raise LookupError("nothing goes")


class Nonsense(Good):
    def pick(self, worker: Any) -> Any:
        return 5 if self.waiting else None


class Leaves(Policy):
    """Every choice to the pool."""

    def pick(self, worker: Any) -> Any:
        return Decision(None, local_default=True)


class Impatient(Good):
    """What it decides is void a moment later."""

    def pick(self, worker: Any) -> Any:
        found = super().pick(worker)
        return None if found is None else Decision(found, expires_ns=self.now + 3_000)


class Unmakeable(Good):
    def __init__(self) -> None:
        raise OSError("no way")


class DrawsLots(Policy):
    """Any that waits, by lot; those in a set, in the order in which it has them."""

    def __init__(self) -> None:
        self.waiting: set[Any] = set()

    def runnable(self, request: Any) -> None:
        self.waiting.add(request)

    def departed(self, request: Any) -> None:
        self.waiting.discard(request)

    def pick(self, worker: Any) -> Any:
        may = [request for request in self.waiting if request.worker in (None, worker.index)]
        picked = random.choice(may) if may else None
        self.waiting.discard(picked)
        return picked
