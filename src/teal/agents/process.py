"""An agent's process: ``python -m teal.agents.process CONTROL_FD``.

Theory of operation: one thread. It makes its policies, locks itself in (core/agents/confine.hpp), sits down where the
host says, and then goes round: a slice of the core's loop (drain, decide, commit, beat), a look at the control socket.
A slice ends after some milliseconds, after a sleep that brought no message, and when the host has sent something (which
it says on the seat, core/agents/host_seat.hpp). A policy that raises gives its process up: its state may be half
changed, and the host starts another one.
It ends when the host says so, when the host goes (the socket closes; the kernel's own signal, should the policy never
come back), and on SIGTERM. SIGUSR1 writes the state of its policies to the host's log.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import importlib
import os
import resource
import select
import signal
import socket
import sys
import traceback

from teal import _core
from teal.errors import InternalError, InvalidArgument, TealError
from teal.host import agent_wire as orders
from teal.host import wire
from teal.host.lifeline import die_with_host

_SLICE_NS = 20_000_000
_IDLE_S = 0.5  # between looks for a signal while it has no seat
_ENDED_BY_FAULT = 65  # exit status: a policy raised (EX_DATAERR)
_MODEL, _SESSION = 0, 1  # NameKind
_OF_THE_LOOP = ("poll", "coalesce")  # settings of the mechanism, not of the policy
_WHERE = 12  # lines of a traceback
_MOST_SETTINGS = 32_000  # characters; those of all its pools go into one report (wire.MAX_MESSAGE)
_LONG_TO_MAKE_S = 3.0  # a policy that is not made by then has the log say where it is
_NOT_INSIDE = (  # what the walls say to a method, and what to do about it
    ("ModuleNotFoundError", "a policy opens nothing once it serves: import at the top of its file"),
    ("ImportError", "a policy opens nothing once it serves: import at the top of its file"),
    ("PermissionError", "a policy is locked in once it serves, without files, network and processes: read in __init__"),
    ("RuntimeError: can't start new thread", "a policy is locked in once it serves: it starts no threads"),
    ("MemoryError", "more than its --agent-memory"),
)


class Seat:
    """One pool that this agent sits at."""

    def __init__(self, order: orders.TakeSeat, loop: _core.AgentLoop, name: str, policy: _core.Policy) -> None:
        self.pool = order.pool
        self.incarnation = order.incarnation
        self.loop = loop
        self.name = name
        self.policy = policy

    def figures(self, dump: bool) -> orders.Figures:
        text = self.loop.dump()[: orders.LONGEST_TEXT] if dump else ""
        settings = self.settings()
        while settings and _size(settings) > _MOST_SETTINGS:  # what it was refused, and cannot take back
            settings = dict(list(settings.items())[: len(settings) // 2])
        return orders.Figures(self.pool, self.name, settings, self.loop.numbers(), text)

    def settings(self) -> dict[str, str]:
        """Of the policy, and of the mechanism around it."""
        return dict(self.policy.settings()) | dict(self.loop.settings())

    def set(self, name: str, value: str) -> None:
        """Raises InvalidArgument."""
        if name in _OF_THE_LOOP:
            self.loop.set(name, value)
        else:
            _check_reachable(name, value)
            self.policy.set(name, value)


class Process:
    """``run`` until it is to leave; the result is the exit status."""

    def __init__(self, control: socket.socket) -> None:
        self._socket = control
        self._wanted: dict[str, orders.Policy] = {}  # by pool
        self._made: dict[str, _core.Policy] = {}  # not at a seat yet
        self._seats: dict[str, Seat] = {}
        self._rounds = _core.Rounds()
        self._leaving = False
        self._wants_dump = False

    def run(self) -> int:
        signal.signal(signal.SIGTERM, lambda *_: setattr(self, "_leaving", True))
        signal.signal(signal.SIGUSR1, lambda *_: setattr(self, "_wants_dump", True))
        if not self._begin():
            return _ENDED_BY_FAULT
        while not self._leaving:
            self._hear(0.0 if self._seats else _IDLE_S)
            if not self._leaving:  # a round may sleep for a while
                self._rounds.run(_SLICE_NS)
            for seat in self._seats.values():
                if seat.policy.errors:
                    self._report(_fault(seat))
                    return _ENDED_BY_FAULT
            if self._wants_dump:
                self._wants_dump = False
                self._look(dump=True)
        for seat in self._seats.values():
            seat.loop.leave()
        return 0

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
            faulthandler.dump_traceback_later(_LONG_TO_MAKE_S)
            try:
                for wanted in order.policies:
                    self._wanted[wanted.pool] = wanted
                    self._made[wanted.pool] = self._make(wanted)
            finally:
                faulthandler.cancel_dump_traceback_later()  # its thread would have no walls
            gc.collect()
            gc.freeze()
            _limit(order.memory)
            begun.walls = _core.confine()
        except BaseException as error:  # SystemExit too: a policy's module may do anything
            begun.error = _failure(error)
        self._report(begun)
        return begun.error is None

    def _make(self, wanted: orders.Policy) -> _core.Policy:
        from teal.agents import make

        settings = {name: value for name, value in wanted.settings.items() if name not in _OF_THE_LOOP}
        for name, value in settings.items():
            _check_reachable(name, value)
        return make(wanted.target, wanted.class_name, settings)

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
                    self._stand_up(pool)
            case orders.NameModel(pool, index, name):
                if (seat := self._seats.get(pool)) is not None:
                    seat.policy.named(_MODEL, index, name)
                self._report(orders.Named(pool, index))
            case orders.NameClient(pool, index, name):
                if (seat := self._seats.get(pool)) is not None:
                    seat.policy.named(_SESSION, index, name)
            case orders.Change(pool, settings):
                self._report(self._changed(pool, settings))
            case orders.Look(dump):
                self._look(dump)
            case orders.Move(spin_ns):
                for seat in self._seats.values():
                    seat.loop.set_idle(spin_ns)
            case orders.Leave():
                self._leaving = True
            case orders.Begin():
                raise InternalError("agent: it has begun already")

    def _sit(self, order: orders.TakeSeat, datagram: wire.Datagram) -> None:
        seated = orders.Seated(order.pool, order.incarnation)
        try:
            wanted = self._wanted[order.pool]
            self._stand_up(order.pool)
            # Another one for each seat: what the one before had in its books was that seat's.
            policy = self._made.pop(order.pool, None) or self._make(wanted)
            for index, name in order.models.items():
                policy.named(_MODEL, index, name)
            for index, name in order.clients.items():
                policy.named(_SESSION, index, name)
            loop = _core.AgentLoop(datagram.take_fd(), datagram.take_fd(), policy, order.link, order.spin_ns)
            seat = Seat(order, loop, _name(wanted), policy)
            for name in _OF_THE_LOOP:
                if name in wanted.settings:
                    seat.set(name, wanted.settings[name])
            self._rounds.add(loop)
            self._seats[order.pool] = seat
            settings = seat.settings()
            _check_size(settings)
            seated.settings = settings
            if policy.errors:
                raise InvalidArgument(f"the policy cannot serve: {_last_line(policy)}")
        except TealError as error:
            seated.error = wire.failure_of(error)
        except Exception as error:  # of the policy's own methods
            seated.error = _failure(error)
        self._report(seated)

    def _stand_up(self, pool: str) -> None:
        seat = self._seats.pop(pool, None)
        if seat is not None:
            self._rounds.remove(seat.loop)
            seat.loop.leave()

    def _changed(self, pool: str, settings: dict[str, str]) -> orders.Changed:
        changed = orders.Changed(pool)
        seat = self._seats.get(pool)
        try:
            if seat is None:
                raise InvalidArgument(f"no agent sits at pool {pool!r}")
            _set_all(seat, settings)
            changed.settings = seat.settings()
            self._wanted[pool].settings.update(settings)
        except Exception as error:
            changed.error = wire.failure_of(error)
        return changed

    def _look(self, dump: bool) -> None:
        self._report(orders.Looked([seat.figures(dump) for seat in self._seats.values()]))

    def _report(self, report: orders.AgentReport) -> None:
        with contextlib.suppress(OSError):  # the host is gone, and so are we soon
            wire.send(self._socket, report)


def _set_all(seat: Seat, settings: dict[str, str]) -> None:
    """All of them or none. Raises what is wrong with the first that is refused."""
    before = seat.settings()
    done: list[str] = []
    try:
        for name, value in settings.items():
            seat.set(name, value)
            done.append(name)
        _check_size(seat.settings())
    except Exception as error:
        kept = [name for name in done if name not in before]  # slo.NAME and the like, which nobody can take back
        for name in done:
            if name in before:
                seat.set(name, before[name])
        words = wire.text_of(error) if isinstance(error, TealError) else _words(error)
        if kept:
            raise InvalidArgument(f"{words}; {', '.join(kept)} was new, and is set") from error
        if isinstance(error, TealError):
            raise
        raise InvalidArgument(f"the policy does not take it: {words}") from error


def _size(settings: dict[str, str]) -> int:
    return sum(len(name) + len(value) for name, value in settings.items())


def _check_size(settings: dict[str, str]) -> None:
    """Raises InvalidArgument when there are more than a report can tell."""
    if (size := _size(settings)) > _MOST_SETTINGS:
        raise InvalidArgument(
            f"the policy has {len(settings)} settings, {size} characters in all: expected at most {_MOST_SETTINGS}"
        )


def _check_reachable(name: str, value: str) -> None:
    """Raises InvalidArgument for a quantum that no worker here can keep to; in a simulation it may be shorter."""
    if name.rpartition(".")[2] != "quantum" or value == "0":
        return
    try:
        ns = _core.parse_time(name, value, 0)
    except InvalidArgument:
        return  # the policy's own business
    if ns < _core.SHORTEST_QUANTUM_NS:
        raise InvalidArgument(
            f"quantum {value[:40]!r}: a request can leave its worker after 20us at the earliest; "
            "give 20us or more, or 0"
        )


def _fault(seat: Seat) -> orders.Faulted:
    """What its policy did wrong; the last line says it, those before say where."""
    message = _last_line(seat.policy)
    advice = next((advice for said, advice in _NOT_INSIDE if message.startswith(said)), "")
    if advice:
        message += f" ({advice})"
    lines = seat.policy.last_error.splitlines()
    return orders.Faulted(seat.pool, seat.incarnation, message, "\n".join(lines[-_WHERE:]))


def _last_line(policy: _core.Policy) -> str:
    return (policy.last_error.strip().splitlines() or ["it does not say what"])[-1]


def _name(wanted: orders.Policy) -> str:
    return f"{wanted.target}:{wanted.class_name}" if wanted.class_name else wanted.target


def _failure(error: BaseException) -> wire.Failure:
    if isinstance(error, TealError):
        return wire.failure_of(error)
    return wire.Failure("InvalidArgument", f"the policy cannot be made: {_words(error)} ({_where(error)})")


def _words(error: BaseException) -> str:
    return f"{type(error).__name__}: {wire.text_of(error)}"


def _where(error: BaseException) -> str:
    """File and line of what raised."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}"
    frames = traceback.extract_tb(error.__traceback__)
    return f"{frames[-1].filename}:{frames[-1].lineno}" if frames else "no place is known"


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


def _get_ready() -> None:
    """All that can be done before it is known whose agent this is: it may be a spare for now (host/agent_spare.py)."""
    importlib.import_module("teal.agents")
    gc.collect()
    gc.freeze()


def main(argv: list[str]) -> int:
    die_with_host()
    for number in (signal.SIGINT, signal.SIGHUP):  # a terminal sends them to the whole group; the host decides
        signal.signal(number, signal.SIG_IGN)
    _get_ready()
    control = socket.socket(fileno=int(argv[1]))
    if control.family != socket.AF_UNIX:
        raise InternalError("agent: the control descriptor is not a UNIX socket")
    with contextlib.suppress(OSError):  # the host is gone; what comes next finds that out
        wire.send(control, orders.Ready())
    return Process(control).run()


if __name__ == "__main__":
    status = main(sys.argv)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(status)  # at once: whoever takes its place may serve on this core
