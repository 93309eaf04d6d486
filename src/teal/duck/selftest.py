"""The self-test of a duck: real programs, run as any client's would be, in each back end; and what the machine lacks.

Theory of operation: one program (core/duck/programs/selftest.c) that comes with Teal does what it is told: answers,
meets on several cores, adds up an input buffer, dies, never returns, asks for what it may not have. What should happen
is compared with what does. Each row says PASS, FAIL, or CAUTION: it works, but not as well as this machine could, with
the command that changes that.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from teal import _core
from teal.duck.yards import SANDBOXES, kvm_missing
from teal.errors import DeadlineExceeded, PeerDied, TealError

if TYPE_CHECKING:
    from teal.duck.duck import Duck
    from teal.duck.server import Server
    from teal.duck.session import Session

_CALLS = 2000
_GUARD_FIXES = {
    "user namespace": "sysctl -w kernel.unprivileged_userns_clone=1",
    "namespaces": "sysctl -w user.max_user_namespaces=10000",
    "seccomp": "boot a kernel with CONFIG_SECCOMP_FILTER",
    "landlock": "boot a kernel with Landlock: lsm=landlock,…",
}


@dataclass(frozen=True, slots=True)
class Result:
    """One row. outcome: PASS, FAIL or CAUTION; fix: a command, or empty."""

    name: str
    outcome: str
    detail: str
    fix: str = ""


def selftest_program() -> Path:
    """The program's file."""
    return Path(_core.__file__).parent / "duck" / "bin" / "selftest.elf"


def selftest(server: Server) -> list[Result]:
    """Of a duck in this process; takes about a second."""
    results = []
    with server.connect() as duck:
        for sandbox in SANDBOXES:
            if sandbox == "kvm" and (why := kvm_missing()):
                results.append(_kvm(why))
                continue
            for name, test in _TESTS.items():
                results.append(_ran(f"{sandbox}: {name}", duck, sandbox, test))
    for kind, yard in server.yards.there().items():
        for name, used, detail in yard.report():
            if not used and not detail.startswith(("not needed", "not used")):
                results.append(Result(f"guard of {kind}: {name}", "CAUTION", detail, _GUARD_FIXES.get(name, "")))
    for cache in (server.programs.numbers(), server.data.numbers()):
        if cache.note:
            results.append(Result(f"cache: {cache.kind}", "CAUTION", cache.note, "export XDG_CACHE_HOME=DIR"))
    return results


def _ran(name: str, duck: Duck, sandbox: str, test: Callable[[Opener], str]) -> Result:
    try:
        return Result(name, "PASS", test(Opener(duck, sandbox)))
    except (TealError, AssertionError) as error:
        return Result(name, "FAIL", f"{type(error).__name__}: {error}"[:400])


@dataclass(frozen=True, slots=True)
class Opener:
    """Opens the program in one kind of sandbox."""

    duck: Duck
    sandbox: str

    def open(self, **settings: Any) -> Session:
        return self.duck.open(selftest_program(), name="selftest", sandbox=self.sandbox, **settings)


def _number(answer: _core.Tensor) -> int:
    return int.from_bytes(bytes(answer.numpy()), "little")


def _expect(true: bool, what: str) -> None:
    if not true:
        raise AssertionError(what)


def _answers(duck: Opener) -> str:
    with duck.open() as session:
        call = session.prepare(64)
        call.args.numpy()[:] = ord("e")
        times = []
        for _ in range(_CALLS):
            start = time.perf_counter_ns()
            answer = call()
            times.append(time.perf_counter_ns() - start)
        _expect(bytes(answer.numpy()) == b"e" * 64, "the answer is not what was sent")
        _expect([_number(session.call(b"c")) for _ in range(3)] == [1, 2, 3], "state did not stay between calls")
        return f"64 bytes there and back, p50 {sorted(times)[_CALLS // 2] / 1000:.2f} us"


def _cores(duck: Opener) -> str:
    count = min(len(os.sched_getaffinity(0)), 4)
    with duck.open(cores=count) as session:
        _expect(all(_number(session.call(b"m")) == count for _ in range(100)), "not all cores came")
    return f"{count} cores meet at a barrier"


def _buffer(duck: Opener) -> str:
    with duck.open() as session:
        shared = duck.duck.empty(1 << 20)
        shared.numpy()[:] = 3
        session.map(shared)
        _expect(_number(session.call(b"s")) == 3 << 20, "the input buffer is not what was mapped")
        _expect(session.statistics().ib_copies == 0, "the input buffer was copied")
        try:
            session.call(b"w")
        except PeerDied:
            pass
        _expect(int(shared.numpy().sum()) == 3 << 20, "the program wrote into its input buffer")
    return "mapped without a copy, and read-only"


def _dies(duck: Opener) -> str:
    with duck.open() as session, duck.open() as other:
        _number(other.call(b"c"))
        try:
            session.call(b"x")
        except PeerDied as error:
            _expect("SIGSEGV" in str(error), str(error))
        else:
            raise AssertionError("it did not die")
        start = time.perf_counter()
        _expect(_number(session.call(b"c")) == 1, "not opened anew from zero")
        took = time.perf_counter() - start
        _expect(_number(other.call(b"c")) == 2, "another session lost its state")
    return f"a crash ends one session; the next call works {took * 1000:.1f} ms later"


def _loops(duck: Opener) -> str:
    with duck.open(timeout="30ms") as session:
        try:
            session.call(b"f")
        except DeadlineExceeded:
            return "a call without an end is ended after its bound"
        raise AssertionError("it returned")


def _asks(duck: Opener) -> str:
    with duck.open() as session:
        try:
            answer = session.call(b"k")
        except PeerDied as error:
            return f"a system call that is not allowed: {error.how}"
        number = int.from_bytes(bytes(answer.numpy()), "little", signed=True)
        _expect(number < 0, f"it could open a socket: {number}")
        return f"a system call that is not allowed: errno {-number}"


_TESTS: dict[str, Callable[[Opener], str]] = {
    "calls": _answers,
    "cores": _cores,
    "input buffer": _buffer,
    "crash": _dies,
    "endless loop": _loops,
    "forbidden system call": _asks,
}


def _kvm(why: str) -> Result:
    fix = "modprobe kvm_amd || modprobe kvm_intel"
    if "TEAL_KVM_DEVICE" in os.environ:
        fix = "unset TEAL_KVM_DEVICE"
    elif os.path.exists("/dev/kvm") and not os.access("/dev/kvm", os.R_OK | os.W_OK):
        fix = "usermod -aG kvm $USER, and log in again"
    return Result("kvm", "CAUTION", f"no guests here, programs run in processes: {why}", fix)
