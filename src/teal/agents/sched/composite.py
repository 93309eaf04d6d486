"""Policies made of policies: requests go to parts by model, session or priority, workers to parts by rank and share.

    composite:by=model,part.fast=shinjuku,part.bulk=fifo,fast.quantum=50us,rank.fast=1,share.bulk=2,to.bert=fast,else=bulk

part.NAME=POLICY makes a part, NAME.SETTING=VALUE sets it up. to.KEY=NAME sends a model, a session, or (by=priority)
every priority of KEY and more there; else=NAME the rest (the first part unless said). A part of a higher rank.NAME goes
first, always; parts of one rank share the workers' time by share.NAME. What runs leaves its worker after ``quantum``
for a part that should go first (0: never).
"""

from __future__ import annotations

from teal._core import Decision, Request
from teal._core import PolicyWorker as Worker
from teal.agents.policy import NameKind, Outcome, Policy
from teal.agents.sched.part import Book, Part
from teal.agents.setting import Choice, Time, Weight, Whole
from teal.errors import InvalidArgument

_RANK, _SHARE = Whole("0", -(10**6), 10**6), Weight("1")
_PRIORITY = Whole("0", -(2**31), 2**31 - 1)
_MOST_PARTS = 32


class Composite(Policy):
    name = "composite"
    by = Choice("model", "session", "priority")
    quantum = Time("50us", least="1us", never=True)

    def __init__(self) -> None:
        self.parts: dict[str, Part] = {}
        self.rest = ""
        self.to: dict[str, str] = {}  # models or sessions, as they were said
        self.from_priority: dict[int, str] = {}
        self.names: dict[tuple[NameKind, int], str] = {}
        self.books: dict[int, tuple[Part, Book]] = {}  # by record

    @property
    def moves(self) -> bool:  # type: ignore[override]
        return all(part.policy.moves for part in self.parts.values())

    @property
    def depth(self) -> int:  # type: ignore[override]
        return min((part.policy.depth for part in self.parts.values()), default=1)

    @property
    def work_conserving(self) -> bool:  # type: ignore[override]
        return all(part.policy.work_conserving for part in self.parts.values())

    # ---- requests ------------------------------------------------------------------------------------------------

    def new(self, request: Request) -> None:
        part = self._route(request)
        self.books[request.index] = (part, part.admit(request))
        request.stamp = None  # of another part, when it moves
        part.at(self.now).new(request)

    def runnable(self, request: Request) -> None:
        self._pass_on(request, "runnable", settle=True)

    def preempted(self, request: Request) -> None:
        self._pass_on(request, "preempted", settle=True)

    def yielded(self, request: Request) -> None:
        self._pass_on(request, "yielded", settle=True)

    def affinity_changed(self, request: Request) -> None:
        self._pass_on(request, "affinity_changed")

    def latch_failed(self, request: Request, why: Outcome) -> None:
        self._pass_on(request, "latch_failed", why, settle=True)

    def blocked(self, request: Request) -> None:
        self._take_out(request, "blocked")

    def done(self, request: Request) -> None:
        self._take_out(request, "done")

    def departed(self, request: Request) -> None:
        self._take_out(request, "departed")

    def priority_changed(self, request: Request, before: int) -> None:
        part = self.books[request.index][0]
        part.at(self.now).priority_changed(request, before)
        if self.by != "priority" or self._route(request) is part:
            return
        self._take_out(request, "departed")
        self.new(request)

    def _pass_on(self, request: Request, event: str, *more: object, settle: bool = False) -> None:
        part, book = self.books[request.index]
        if settle:
            part.settle(request, book)
        part.mark(request, book)
        getattr(part.at(self.now), event)(request, *more)

    def _take_out(self, request: Request, event: str) -> None:
        part, book = self.books[request.index]
        part.settle(request, book)
        part.unmark(book)
        getattr(part.at(self.now), event)(request)

    def _route(self, request: Request) -> Part:
        if not self.parts:
            self._add("all", "fifo")  # nothing was said
        name = None
        if self.by == "priority":
            least = max((each for each in self.from_priority if request.priority >= each), default=None)
            name = None if least is None else self.from_priority[least]
        else:
            kind = NameKind.MODEL if self.by == "model" else NameKind.SESSION
            index = request.model if self.by == "model" else request.session
            for said, to in self.to.items():
                if said in (self.names.get((kind, index)), f"#{index}"):
                    name = to
        return self.parts[self.rest if name is None else name]

    # ---- workers -------------------------------------------------------------------------------------------------

    def worker_available(self, worker: Worker) -> None:
        self._tell("worker_available", worker)

    def worker_busy(self, worker: Worker) -> None:
        self._tell("worker_busy", worker)

    def worker_gone(self, worker: Worker) -> None:
        self._tell("worker_gone", worker)

    def _tell(self, event: str, worker: Worker) -> None:
        for part in self.parts.values():
            getattr(part.at(self.now), event)(worker)

    def pick(self, worker: Worker) -> Decision | None:
        left = [part for part in self.parts.values() if part.waiting]
        while left:
            part = min(left, key=Part.order)
            left.remove(part)
            picked = part.at(self.now).pick(worker)
            decision = Decision(picked) if isinstance(picked, Request) else picked
            if decision is not None and decision.request is not None:
                peers = [each for each in self.parts.values() if each.rank == part.rank]
                part.charge(decision.request, self.books[decision.request.index][1], self.quantum, peers)
                return decision
        return None

    def preempt(self, worker: Worker) -> bool:
        if worker.running is None or worker.running.index not in self.books:
            return False
        runs = self.books[worker.running.index][0]
        if runs.at(self.now).preempt(worker):
            return True
        if not self.quantum or self.now < worker.since_ns + self.quantum:
            return False
        return any(part is not runs and part.free and part.order() < runs.order() for part in self.parts.values())

    # ---- settings ------------------------------------------------------------------------------------------------

    def named(self, kind: NameKind, index: int, name: str) -> None:
        self.names[(kind, index)] = name
        for part in self.parts.values():
            part.named(kind, index, name)

    def set(self, name: str, value: str) -> bool:
        before, _, of = name.partition(".")
        if name == "else":
            self.rest = self._known(name, value)
        elif not of:
            return super().set(name, value)
        elif before == "part":
            self._add(of, value)
        elif before == "rank":
            self.parts[self._known("rank", of)].rank = _RANK.parse(name, value)
        elif before == "share":
            self.parts[self._known("share", of)].share = _SHARE.parse(name, value)
        elif before == "to":
            part = self._known(name, value)
            if self.by == "priority":
                self.from_priority[_PRIORITY.parse("to", of)] = part
            else:
                self.to[of] = part
        elif before in self.parts:
            self.parts[before].set(of, value)
        else:
            return False
        return True

    def settings(self) -> list[tuple[str, str]]:
        found = [*super().settings(), *((f"part.{name}", part.policy.name) for name, part in self.parts.items())]
        for name, part in self.parts.items():
            found += [(f"rank.{name}", str(part.rank)), (f"share.{name}", _SHARE.show(part.share))]
            found += [(f"{name}.{setting}", value) for setting, value in part.policy.settings()]
        found += [(f"to.{name}", to) for name, to in self.to.items()]
        found += [(f"to.{least}", to) for least, to in sorted(self.from_priority.items())]
        return found + ([("else", self.rest)] if self.parts else [])

    def _known(self, setting: str, name: str) -> str:
        if name not in self.parts:
            raise InvalidArgument(f"{setting}={name[:80]!r}: expected a part; give part.NAME=POLICY before it")
        return name

    def _add(self, name: str, policy: str) -> None:
        known = self.parts.get(name)
        if known is not None and known.policy.name == policy:
            return  # said again
        taken = known is not None or name in ("part", "to", "rank", "share")
        if taken or "." in name or len(self.parts) == _MOST_PARTS:
            raise InvalidArgument(
                f"part.{name[:80]}: expected a name that is not taken, without '.', of at most {_MOST_PARTS} parts"
            )
        part = self.parts[name] = Part(f"part.{name}", policy)
        for (kind, index), named in self.names.items():
            part.named(kind, index, named)
        self.rest = self.rest or name

    def dump(self) -> str:
        return "; ".join(f"{name}: {part.policy.dump()}" for name, part in self.parts.items())
