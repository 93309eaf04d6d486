"""First in, first out, one queue for all workers. What is preempted or yields goes to the end."""

from __future__ import annotations

from teal.agents.policy import Outcome, Policy
from teal.agents.waiting import WaitList
from teal._core import PolicyWorker as Worker
from teal._core import Request


class Fifo(Policy):
    name = "fifo"

    def __init__(self) -> None:
        self.waiting = WaitList()

    def runnable(self, request: Request) -> None:
        if request.runnable:
            self.waiting.push(request)

    def blocked(self, request: Request) -> None:
        self.waiting.remove(request)

    done = departed = blocked

    def affinity_changed(self, request: Request) -> None:
        if request in self.waiting:
            self.waiting.push(request)

    def latch_failed(self, request: Request, why: Outcome) -> None:
        if request.runnable:
            self.waiting.push_back(request)

    def pick(self, worker: Worker) -> Request | None:
        return self.waiting.pop(worker.index)

    def dump(self) -> str:
        return f"waiting {len(self.waiting)}"
