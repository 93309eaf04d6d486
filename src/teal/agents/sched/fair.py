"""Weighted fair: sessions (or models) share the workers by weight, in time that requests ran.

Start-time fair queueing over flows. A flow's tag is the virtual time at which its next request starts: when one is
picked, the tag moves on by what that one is expected to take, divided by the weight, and is put right when what it took
is known. The flow with the least tag is next; one that had nothing to run starts at the present, so nobody saves up
time by idling. Within a flow: arrival. Whole numbers only, so that every machine decides alike.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict

from teal._core import Decision, Request
from teal._core import PolicyWorker as Worker
from teal.agents.policy import NameKind, Outcome, Policy
from teal.agents.setting import Choice, PerName, Time, Weight
from teal.agents.waiting import Part, insert


class Flow:
    def __init__(self, index: int) -> None:
        self.index = index
        self.waiting: Part = OrderedDict()  # for any worker
        self.tag = 0
        self.usual = 0  # ns that its last run took
        self.backlog = 0  # requests that wait, bound ones too


class Fair(Policy):
    name = "fair"
    by = Choice("model", "session", usual="session")
    weight = PerName(Weight("1"))
    quantum = Time("0", least="1us", never=True)

    def __init__(self) -> None:
        self.flows: dict[int, Flow] = {}
        self.active: dict[int, Flow] = {}  # those with something for any worker
        self.bound: defaultdict[int, Part] = defaultdict(OrderedDict)
        self.virtual = 0
        self.stamp = 0

    def new(self, request: Request) -> None:
        number = request.session if self.by == "session" else request.model
        request.flow = self.flows.setdefault(number, Flow(number))
        request.stamp, request.part, request.guess, request.ran = 0, None, 0, None
        super().new(request)

    def runnable(self, request: Request) -> None:
        if request.part is not None:
            self.affinity_changed(request)
            return
        self._settle(request)  # it runs anew
        if request.runnable:
            self.stamp += 1
            self._enter(request, self.stamp)

    def blocked(self, request: Request) -> None:
        self._settle(request)
        self._leave(request)

    done = departed = blocked

    def preempted(self, request: Request) -> None:
        self._settle(request)
        self.runnable(request)

    def affinity_changed(self, request: Request) -> None:
        if request.part is not None:
            self._leave(request)
            self._enter(request, request.stamp)

    def latch_failed(self, request: Request, why: Outcome) -> None:
        self._settle(request)
        if not request.runnable or request.part is not None:
            return
        if not request.stamp:
            self.runnable(request)
        else:
            self._enter(request, request.stamp)

    def pick(self, worker: Worker) -> Decision | None:
        request = self._best(worker.index)
        if request is None:
            return None
        flow: Flow = request.flow
        self._leave(request)
        self.virtual = max(self.virtual, flow.tag)
        left = request.expected_ns - request.ran_ns
        guess = (left if left > 0 else flow.usual) or 1000
        if self.quantum:
            guess = min(guess, self.quantum)
        request.guess, request.ran = self._scaled(flow, guess), request.ran_ns
        flow.tag += request.guess
        may = self.quantum and (request.preemptible or request.yields) and self._best(worker.index) is not None
        return Decision(request, slice_ns=self.quantum if may else 0)

    def preempt(self, worker: Worker) -> bool:
        if not self.quantum or worker.running is None or self.now < worker.since_ns + self.quantum:
            return False
        if worker.slice_ns and self.now < worker.since_ns + 2 * worker.slice_ns:
            return False
        following = self._best(worker.index)
        return following is not None and bool(following.flow.tag <= worker.running.flow.tag)

    def _scaled(self, flow: Flow, ns: int) -> int:
        kind = NameKind.SESSION if self.by == "session" else NameKind.MODEL
        return ns * 1000 // self.weight.of(kind, flow.index)

    def _settle(self, request: Request) -> None:
        """What its flow was charged becomes what it took."""
        if request.ran is None:
            return
        flow: Flow = request.flow
        took = max(request.ran_ns - request.ran, 0)
        flow.usual = took or flow.usual
        flow.tag = max(flow.tag + self._scaled(flow, took) - request.guess, 0)
        request.ran = None

    def _best(self, worker: int) -> Request | None:
        flow = min(self.active.values(), key=lambda each: (each.tag, each.index), default=None)
        bound = min(self.bound[worker].values(), key=lambda each: int(each.flow.tag), default=None)
        if bound is not None and (flow is None or bound.flow.tag <= flow.tag):
            return bound
        return None if flow is None else next(iter(flow.waiting.values()))

    def _enter(self, request: Request, stamp: int) -> None:
        flow: Flow = request.flow
        if not flow.backlog:
            flow.tag = max(flow.tag, self.virtual)
        flow.backlog += 1
        request.stamp = stamp
        request.part = flow.waiting if request.worker is None else self.bound[request.worker]
        insert(request.part, stamp, request)
        if request.worker is None:
            self.active[flow.index] = flow

    def _leave(self, request: Request) -> None:
        if request.part is None:
            return
        flow: Flow = request.flow
        flow.backlog -= 1
        del request.part[request.stamp]
        request.part = None
        if not flow.waiting:
            self.active.pop(flow.index, None)

    def dump(self) -> str:
        queues = [f"#{flow.index} {flow.backlog}" for flow in self.flows.values() if flow.backlog]
        return ", ".join([f"virtual time {self.virtual}", *queues])
