"""An agent's process: ``python -m teal.agents.process CONTROL_FD``.

Theory of operation: one thread. It makes its policies, locks itself in (core/agents/confine.hpp), sits down where the
host says, and then goes round: a slice of the core's loop (drain, decide, commit, beat), a look at the control socket.
A slice ends after a few milliseconds also when nothing happens, which is what keeps the heart beating and orders
heard. A policy that raises gives its process up: its state may be half changed, and the host starts another one.
It ends when the host says so, when the host goes (the socket closes; the kernel's own signal, should the policy never
come back), and on SIGTERM. SIGUSR1 writes the state of its policies to the host's log.
"""

from __future__ import annotations

import contextlib
import gc
import os
import resource
import select
import signal
import socket
import sys
import traceback
from typing import Any, Protocol

from teal import _core
from teal.errors import InternalError, InvalidArgument, TealError
from teal.host import agent_wire as orders
from teal.host import wire
from teal.host.lifeline import die_with_host

_SLICE_NS = 5_000_000
_IDLE_S = 0.05  # between looks at the socket while it has no seat
_ENDED_BY_FAULT = 65  # exit status: a policy raised (EX_DATAERR)
_WHERE = 12  # lines of a traceback


class Loop(Protocol):
    """The core's loop of one seat: what this module needs of it."""

    def run(self, slice_ns: int, spin_ns: int) -> int: ...
    def set(self, name: str, value: str) -> None: ...
    def settings(self) -> dict[str, str]: ...
    def numbers(self) -> dict[str, int | float]: ...
    def dump(self) -> str: ...
    def ready(self) -> None: ...
    def leave(self) -> None: ...


class Seat:
    """One pool that this agent sits at."""

    def __init__(self, order: orders.TakeSeat, loop: Loop, policy: str) -> None:
        self.pool = order.pool
        self.incarnation = order.incarnation
        self.spin_ns = order.spin_ns
        self.loop = loop
        self.policy = policy

    def figures(self, dump: bool) -> orders.Figures:
        text = self.loop.dump()[: orders.LONGEST_TEXT] if dump else ""
        return orders.Figures(self.pool, self.policy, self.loop.settings(), self.loop.numbers(), text)


class Process:
    """``run`` until it is to leave; the result is the exit status."""

    def __init__(self, control: socket.socket) -> None:
        self._socket = control
        self._policies: dict[str, tuple[str, Any]] = {}  # by pool: name, policy
        self._seats: dict[str, Seat] = {}
        self._leaving = False
        self._wants_dump = False

    def run(self) -> int:
        signal.signal(signal.SIGTERM, lambda *_: setattr(self, "_leaving", True))
        signal.signal(signal.SIGUSR1, lambda *_: setattr(self, "_wants_dump", True))
        if not self._begin():
            return _ENDED_BY_FAULT
        while not self._leaving:
            self._hear(0.0 if self._seats else _IDLE_S)
            for seat in list(self._seats.values()):
                try:
                    seat.loop.run(self._slice(), seat.spin_ns)
                except Exception as error:
                    self._report(orders.Faulted(seat.pool, seat.incarnation, wire.failure_of(error), _where(error)))
                    return _ENDED_BY_FAULT
            if self._wants_dump:
                self._wants_dump = False
                self._look(dump=True)
        for seat in self._seats.values():
            seat.loop.leave()
        return 0

    def _slice(self) -> int:
        """Several seats take turns: one that is idle must not keep the others waiting."""
        return _SLICE_NS if len(self._seats) == 1 else 0

    # ---- before it decides anything ------------------------------------------------------------------------------

    def _begin(self) -> bool:
        datagram = wire.receive(self._socket)
        if datagram is None:
            return False
        order = orders.decode_order(datagram.data)
        if not isinstance(order, orders.Begin):
            raise InternalError("agent: the first order must be begin")
        begun = orders.Begun(os.getpid())
        try:
            for wanted in order.policies:
                self._policies[wanted.pool] = (_name(wanted), _made(wanted))
            gc.collect()
            gc.freeze()
            _limit(order.memory)
            begun.walls = _core.confine()
        except BaseException as error:  # SystemExit too: a policy's module may do anything
            begun.error = _failure(error)
        self._report(begun)
        return begun.error is None

    # ---- what the host says --------------------------------------------------------------------------------------

    def _hear(self, seconds: float) -> None:
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        while not self._leaving and poll.poll(seconds * 1000):
            datagram = wire.receive(self._socket)
            if datagram is None:
                self._leaving = True
                return
            try:
                self._obey(orders.decode_order(datagram.data), datagram)
            finally:
                datagram.close()
            seconds = 0.0

    def _obey(self, order: orders.AgentOrder, datagram: wire.Datagram) -> None:
        match order:
            case orders.TakeSeat():
                self._sit(order, datagram)
            case orders.LeaveSeat(pool, incarnation):
                seat = self._seats.get(pool)
                if seat is not None and seat.incarnation == incarnation:
                    self._seats.pop(pool).loop.leave()
            case orders.Change(pool, settings):
                self._report(self._changed(pool, settings))
            case orders.Look(dump):
                self._look(dump)
            case orders.Move(spin_ns):
                for seat in self._seats.values():
                    seat.spin_ns = spin_ns
            case orders.Leave():
                self._leaving = True
            case orders.Begin():
                raise InternalError("agent: it has begun already")

    def _sit(self, order: orders.TakeSeat, datagram: wire.Datagram) -> None:
        seated = orders.Seated(order.pool, order.incarnation)
        try:
            name, policy = self._policies[order.pool]
            view, desk = datagram.take_fd(), datagram.take_fd()
            seat = Seat(order, _core.AgentLoop(view, desk, policy, order.link), name)
            old = self._seats.pop(order.pool, None)
            if old is not None:
                old.loop.leave()
            self._seats[order.pool] = seat
            seat.loop.ready()
        except Exception as error:
            seated.error = wire.failure_of(error)
        self._report(seated)

    def _changed(self, pool: str, settings: dict[str, str]) -> orders.Changed:
        changed = orders.Changed(pool)
        seat = self._seats.get(pool)
        try:
            if seat is None:
                raise InvalidArgument(f"no agent sits at pool {pool!r}")
            for name, value in settings.items():
                seat.loop.set(name, value)
            changed.settings = seat.loop.settings()
        except Exception as error:
            changed.error = wire.failure_of(error)
        return changed

    def _look(self, dump: bool) -> None:
        self._report(orders.Looked([seat.figures(dump) for seat in self._seats.values()]))

    def _report(self, report: orders.AgentReport) -> None:
        with contextlib.suppress(OSError):  # the host is gone, and so are we soon
            wire.send(self._socket, report)


def _made(wanted: orders.Policy) -> Any:
    from teal.agents.making import make

    return make(wanted.target, wanted.class_name, wanted.settings)


def _name(wanted: orders.Policy) -> str:
    return f"{wanted.target}:{wanted.class_name}" if wanted.class_name else wanted.target


def _failure(error: BaseException) -> wire.Failure:
    if isinstance(error, TealError):
        return wire.failure_of(error)
    kind = type(error).__name__
    place = _where(error).strip().replace("\n", " ")
    return wire.Failure("InvalidArgument", f"the policy cannot be made: {kind}: {error} ({place[-600:]})")


def _where(error: BaseException) -> str:
    lines = "".join(traceback.format_exception(error)).splitlines()
    return "\n".join(lines[-_WHERE:])[: orders.LONGEST_TEXT]


def _limit(memory: int) -> None:
    """What is left to take: address space, and nothing that lasts beyond this process."""
    with open("/proc/self/statm", encoding="ascii") as statm:
        taken = int(statm.read().split()[0]) * resource.getpagesize()
    for kind, most in (
        (resource.RLIMIT_AS, taken + memory),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, 0),  # what it prints goes into a pipe
        (resource.RLIMIT_NOFILE, 256),
        (resource.RLIMIT_MSGQUEUE, 0),
    ):
        hard = resource.getrlimit(kind)[1]
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(kind, (most, most))


def main(argv: list[str]) -> int:
    die_with_host()
    for number in (signal.SIGINT, signal.SIGHUP):  # a terminal sends them to the whole group; the host decides
        signal.signal(number, signal.SIG_IGN)
    control = socket.socket(fileno=int(argv[1]))
    if control.family != socket.AF_UNIX:
        raise InternalError("agent: the control descriptor is not a UNIX socket")
    return Process(control).run()


if __name__ == "__main__":
    sys.exit(main(sys.argv))
