"""What a person writes: a policy. One method per event, one that decides.

Theory of operation: the mechanism (a live agent, the simulator) keeps the requests and the workers, calls a method for
each event, and asks ``pick`` whenever a worker can take a decision. A policy holds no clock and no lock, and shares no
memory with anybody: time is ``self.now``, requests come in, decisions go out. So one object runs live and on a virtual
clock. All calls come from one thread.

A ``Request`` shows what is known of a request as of the last event about it. It is the same object from ``new`` until
``done`` or ``departed``, and may carry attributes of the policy's own. What ``pick`` returns is out of the policy's
hands until the mechanism says otherwise (``latch_failed``, ``preempted``, ``yielded``); one that has ended since, or
may not run now, is passed over and ``pick`` is asked again, so that a simple policy need not search its queue.

An exception in a policy is caught and counted, and the host is told: it goes on with its own order.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, ClassVar

from teal.agents.setting import Setting, settings_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from teal._core import Decision, Request
    from teal._core import PolicyWorker as Worker


class Outcome(enum.IntEnum):
    """Why a decision was not carried out. The order of the checks is that of docs/protocol.md."""

    COMPLETE = 0
    ABORTED = 1
    ALREADY_RUNNING = 2
    TARGET_STALE = 3
    NOT_FOUND = 4
    NOT_RUNNABLE = 5
    AGENT_STALE = 6
    WORKER_OFFLINE = 7
    WORKER_UNAVAILABLE = 8
    INVALID_FLAGS = 9
    INVALID_TARGET = 10
    NOT_PERMITTED = 11
    INVALID_WORKER = 12
    NO_AGENT = 13
    UNSUPPORTED_VERSION = 14
    POISONED = 15
    TIMEOUT = 16


class NameKind(enum.IntEnum):
    """What a setting may speak of by name: ``slo.bert=1ms``."""

    MODEL = 0
    SESSION = 1


class Policy:
    """Base class of policies. ``new``, ``runnable`` and ``pick`` do the work; all other methods have sound defaults.

    Attributes:
        now: nanoseconds, on the clock of ``arrived_ns`` and ``deadline_ns``; set before each call.
        wake_at: when ``timer`` is to be called; 0: never.
        depth: how many decisions may lie ready for a worker that is busy, 1 to 4.
        work_conserving: promises that no worker idles while something waits that it may run.
        moves: what lies ready behind another request may go to a worker that has nothing to do.
    """

    name: ClassVar[str] = ""
    now: int = 0
    wake_at: int = 0
    depth: int = 1
    work_conserving: bool = True
    moves: bool = True

    def new(self, request: Request) -> None:
        """A request that the policy has not seen. It may wait, be ready (``staged``) or run already."""
        if request.runnable and not request.staged:
            self.runnable(request)

    def runnable(self, request: Request) -> None:
        """It may run. ``request.worker`` is the only worker that can go on with it, or None: any."""

    def blocked(self, request: Request) -> None:
        """It may not run for now."""

    def yielded(self, request: Request) -> None:
        """It gave its worker up itself, and can go on there."""
        self.preempted(request)

    def preempted(self, request: Request) -> None:
        """Its worker was taken from it; it can go on there. ``ran_ns`` is what it had, all times together."""
        self.runnable(request)

    def done(self, request: Request) -> None:
        """It has ended, done or failed, after ``ran_ns``."""

    def departed(self, request: Request) -> None:
        """It has ended without an answer: cancelled, expired, or its client left."""

    def priority_changed(self, request: Request, before: int) -> None:
        """Its priority was ``before``."""

    def affinity_changed(self, request: Request) -> None:
        """``request.worker`` has changed."""

    def latch_failed(self, request: Request, why: Outcome) -> None:
        """A decision about it was refused. It is the policy's again if it may run still."""
        if request.runnable:
            self.runnable(request)

    def worker_available(self, worker: Worker) -> None:
        """It has nothing to do."""

    def worker_busy(self, worker: Worker) -> None:
        """It runs something that was not decided here."""

    def worker_gone(self, worker: Worker) -> None:
        """It died or was taken away. What it had is told of request by request."""

    def tick(self) -> None:
        """About once a millisecond while requests are out."""

    def timer(self) -> None:
        """``wake_at`` has come."""

    def wakeup(self) -> None:
        """Somebody rang; settings may have changed."""

    def pick(self, worker: Worker) -> Request | Decision | None:
        """What this worker does next; None: nothing for now. Asked while it has room for another decision.

        A policy of gangs may leave it out: then what is in no gang waits, for `--max-wait` at most.
        """
        return None

    def pick_group(self, workers: Sequence[Worker]) -> Sequence[tuple[Worker, Request | Decision]] | None:
        """A gang: what several of ``workers``, which all have nothing to do, begin together or not at all; None: no
        gang now. Asked before ``pick``, until it has none. Of a gang that is refused each request comes back by
        ``latch_failed``: one with the reason, the others as POISONED; so they do (TIMEOUT) when not all workers could
        begin within some milliseconds."""
        return None

    def preempt(self, worker: Worker) -> bool:
        """Should what it runs leave it now? Asked again and again while it runs something that can."""
        return False

    def named(self, kind: NameKind, index: int, name: str) -> None:
        """Model or session ``index`` is called ``name``. Settings by name (PerName) follow by themselves."""

    def set(self, name: str, value: str) -> bool:
        """One setting; False: there is none of that name. Raises InvalidArgument for a value that makes no sense."""
        before, _, of = name.partition(".")
        setting = settings_of(type(self)).get(before)  # type: ignore[arg-type]
        return setting is not None and setting.take(self, name, of, value)

    def settings(self) -> list[tuple[str, str]]:
        """All settings as ``set`` takes them."""
        known = settings_of(type(self)).values()  # type: ignore[arg-type]
        return [pair for each in known for pair in each.plain(self)] + [
            pair for each in known for pair in each.said(self)
        ]

    def dump(self) -> str:
        """Its state, for people."""
        return ""


__all__ = ["NameKind", "Outcome", "Policy", "Setting"]
