"""Earliest deadline first.

Requests without a deadline of their own get their model's ("deadline.bert=5ms" after its arrival), or the usual one
("deadline=10ms"), or come last, in the order of arrival. With preempt=1 one that runs leaves its worker when a request
with an earlier deadline waits for it, once it has run for ``quantum``.
"""

from __future__ import annotations

from teal._core import PolicyWorker as Worker
from teal._core import Request
from teal.agents.policy import NameKind, Outcome, Policy
from teal.agents.setting import Flag, PerName, Time
from teal.agents.waiting import WaitHeap

NEVER = 2**64 - 2  # later than any deadline


class Edf(Policy):
    name = "edf"
    deadline = PerName(Time("0"))
    preempts = Flag("0", name="preempt")
    quantum = Time("50us", least="1us")

    def __init__(self) -> None:
        self.waiting = WaitHeap()

    def new(self, request: Request) -> None:
        request.key = self._key(request)
        super().new(request)

    def runnable(self, request: Request) -> None:
        if request.runnable:
            self.waiting.push(request, request.key)

    def blocked(self, request: Request) -> None:
        self.waiting.remove(request)

    done = departed = blocked

    def affinity_changed(self, request: Request) -> None:
        if request in self.waiting:
            self.waiting.push(request, request.key)

    def latch_failed(self, request: Request, why: Outcome) -> None:
        if request.runnable:
            self.waiting.push(request, request.key, getattr(request, "stamp", None))

    def pick(self, worker: Worker) -> Request | None:
        return self.waiting.pop(worker.index)

    def preempt(self, worker: Worker) -> bool:
        if not self.preempts or worker.running is None or self.now < worker.since_ns + self.quantum:
            return False
        top = self.waiting.top(worker.index)
        key: int = worker.running.key
        return top is not None and top[0] < key

    def _key(self, request: Request) -> int:
        if request.deadline_ns:
            return min(request.deadline_ns, NEVER)
        after = self.deadline.of(NameKind.MODEL, request.model)
        return request.arrived_ns + after if after else NEVER

    def dump(self) -> str:
        return f"waiting {len(self.waiting)}"
