"""How sessions, clients, boxes, zygotes and ducks end, wanted or not; what the others see, and that nothing is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from duck_numbers import number

import teal
from teal.duck import Server


def alive(pid: int) -> bool:
    """Is the process there, and no zombie?"""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # before the read, or during it
        return False


def until(true: Callable[[], bool], what: str, seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, f"not within {seconds} s: {what}"
        time.sleep(0.01)


def zygote_of(server: Server) -> int:
    return int(server.yards.get(None).zygote_pid)


# ---- programs --------------------------------------------------------------------------------------------------------


def test_a_program_that_dies_takes_nothing_with_it(duck: teal.Duck, program: Path) -> None:
    with duck.open(program) as one, duck.open(program) as other:
        assert number(one.call(b"c")) == number(other.call(b"c")) == 1
        with pytest.raises(teal.PeerDied, match="SIGSEGV") as caught:
            one.call(b"x")
        assert caught.value.who == "program"
        assert number(other.call(b"c")) == 2
        assert number(one.call(b"c")) == 1  # opened anew, from zero
        assert one.statistics().restarts == 1


def test_without_restart_the_session_is_over(duck: teal.Duck, program: Path) -> None:
    with duck.open(program, restart=False) as session:
        with pytest.raises(teal.PeerDied):
            session.call(b"x")
        with pytest.raises(teal.Closed, match="restart=False"):
            session.call(b"c")


def test_a_program_that_leaves(duck: teal.Duck, program: Path) -> None:
    with duck.open(program) as session:
        with pytest.raises(teal.PeerDied, match="program"):
            session.call(b"q")
        assert number(session.call(b"c")) == 1


def test_a_system_call_that_is_not_allowed(duck: teal.Duck, program: Path) -> None:
    with duck.open(program) as session:
        answer = session.call(b"k")
        assert int.from_bytes(bytes(answer.numpy()), "little", signed=True) < 0
        assert number(session.call(b"c")) == 1


def test_a_killed_box(duck: teal.Duck, program: Path) -> None:
    with duck.open(program) as session:
        number(session.call(b"c"))
        pid = session.pid
        os.kill(pid, signal.SIGKILL)
        until(lambda: not alive(pid), "the box has ended")
        with pytest.raises(teal.PeerDied):  # it had a state, which is lost: that is not passed over
            session.call(b"c")
        assert number(session.call(b"c")) == 1


def test_a_call_that_takes_too_long_is_ended(duck: teal.Duck, program: Path) -> None:
    with duck.open(program, timeout="50ms") as session:
        assert number(session.call(b"p\x01")) > 0
        with pytest.raises(teal.DeadlineExceeded, match="bound of 50 ms"):
            session.call(b"f")
        assert number(session.call(b"c")) == 1
        assert session.statistics().restarts == 1


def test_a_call_that_is_given_up_keeps_the_session_busy(duck: teal.Duck, program: Path) -> None:
    with duck.open(program) as session:
        with pytest.raises(teal.DeadlineExceeded, match="given up"):
            session.call(b"p\xfa", timeout="1ms")
        with pytest.raises(teal.Busy, match="still running"):
            session.call(b"c")
        until(lambda: not session._line.busy, "the program has returned")
        assert number(session.call(b"c")) == 1
        seen = session.statistics()
        assert (seen.given_up, seen.restarts) == (1, 0)


def test_with_cancel_kill_a_call_that_is_given_up_ends_the_program(duck: teal.Duck, program: Path) -> None:
    with duck.open(program, cancel="kill") as session:
        pid = session.pid
        with pytest.raises(teal.DeadlineExceeded):
            session.call(b"f", timeout="1ms")
        assert number(session.call(b"c")) == 1
        assert session.pid != pid
        until(lambda: not alive(pid), "the box has ended")


def test_what_dies_gives_its_memory_back(server: Server, program: Path) -> None:
    with server.connect() as duck:
        sessions = [duck.open(program) for _ in range(3)]
        for session in sessions:
            with pytest.raises(teal.PeerDied):
                session.call(b"x")
        until(lambda: server.residents.numbers()["bytes"] == 0, "nothing is kept for the dead")
        assert number(sessions[0].call(b"c")) == 1
        for session in sessions:
            session.close()
        assert server.residents.numbers()["bytes"] == 0


def test_closing_ends_the_box(duck: teal.Duck, program: Path) -> None:
    session = duck.open(program)
    pid = session.pid
    assert alive(pid)
    session.close()
    until(lambda: not alive(pid), "the box has ended")
    future_of = duck.open(program)
    future_of.submit(b"f")
    pid = future_of.pid
    future_of.close()  # a call is still running
    until(lambda: not alive(pid), "the box has ended")
    assert duck.statistics()["sessions"]["bytes"] == 0


# ---- futures ---------------------------------------------------------------------------------------------------------


def test_futures(duck: teal.Duck, program: Path) -> None:
    with duck.open(program) as session:
        future = session.submit(b"p\x14")
        with pytest.raises(teal.Busy):
            session.submit(b"c")
        with pytest.raises(TimeoutError):
            future.result(timeout=0.0001)
        assert number(future.result()) > 0
        assert future.done()
        assert not future.cancel()
        assert not future.cancelled()
        late = session.submit(b"c")
        until(lambda: not session._line.busy, "it was answered")
        session.submit(b"c").result()
        with pytest.raises(teal.Closed, match="written over"):
            late.result()
        failed = session.submit(b"n\x07")
        assert isinstance(failed.exception(), teal.KernelFailed)
        died = session.submit(b"x")
        assert isinstance(died.exception(), teal.PeerDied)
        assert number(session.submit(b"c").result(timeout=30)) == 1


def test_a_cancelled_future(duck: teal.Duck, program: Path) -> None:
    with duck.open(program, cancel="kill") as session:
        future = session.submit(b"f")
        assert not future.done()
        assert future.cancel()
        assert future.cancelled()
        with pytest.raises(teal.Cancelled, match="by client"):
            future.result()
        assert number(session.call(b"c")) == 1


def test_futures_call_back_and_can_be_awaited(duck: teal.Duck, program: Path) -> None:
    import asyncio

    with duck.open(program) as one, duck.open(program) as two:
        called = threading.Event()
        future = one.submit(b"p\x05")
        future.add_done_callback(lambda _: called.set())
        assert called.wait(20)
        assert number(future.result()) > 0

        async def both() -> list[int]:
            return [
                number(answer) for answer in await asyncio.gather(wait(one.submit(b"c")), wait(two.submit(b"p\x05")))
            ]

        async def wait(future: object) -> teal.Tensor:
            return await future  # type: ignore[misc,no-any-return]

        assert asyncio.run(both())[0] == 1


def test_threads_share_a_session(duck: teal.Duck, program: Path) -> None:
    with duck.open(program) as session:
        counted: list[int] = []

        def call() -> None:
            while len(counted) < 200:
                try:
                    counted.append(number(session.call(b"c")))
                except teal.Busy:
                    time.sleep(0)

        threads = [threading.Thread(target=call) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert number(session.call(b"c")) == len(counted) + 1


# ---- clients ---------------------------------------------------------------------------------------------------------

_CLIENT = """
import sys, teal
duck = teal.Duck(sys.argv[1])
session = duck.open(sys.argv[2])
session.submit(sys.argv[3].encode())
print(session.number, session.pid, flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("what", ["c", "f"])
def test_a_client_that_vanishes_loses_its_sessions_at_once(server: Server, program: Path, what: str) -> None:
    command = [sys.executable, "-c", _CLIENT, server.address, str(program), what]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as client:
        assert client.stdout is not None
        session, pid = map(int, client.stdout.readline().split())
        assert alive(pid)
        client.kill()
    until(lambda: not alive(pid), "the box has ended")
    until(lambda: session not in {row["session"] for row in server.residents.rows()}, "the session is gone")
    until(lambda: server.residents.numbers()["bytes"] == 0, "its memory is given back")


def test_clients_cannot_reach_each_others_sessions(server: Server, program: Path) -> None:
    from teal.duck import messages

    with server.connect() as one, server.connect() as other, one.open(program) as session:
        for message in (messages.Close(session.number), messages.Map(session.number)):
            with pytest.raises(teal.NotFound, match="of this client"):
                other._link.ask(message)
        assert number(session.call(b"c")) == 1


def test_after_a_fork_the_child_has_nothing(duck: teal.Duck, program: Path) -> None:
    with duck.open(program) as session:
        number(session.call(b"c"))
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                session.call(b"c")
            except teal.Closed:
                try:
                    duck.info()
                except teal.Closed:
                    status = 0
            finally:
                os._exit(status)
        assert os.waitpid(pid, 0)[1] == 0
        assert number(session.call(b"c")) == 2


# ---- the duck --------------------------------------------------------------------------------------------------------


def served(name: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", "from teal.cli import main; main()", "duck", "serve", "--name", name]
    process = subprocess.Popen([*command, "--cache", "none", "--memory", "1G"], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert "is ready" in process.stdout.readline()
    return process


@pytest.mark.parametrize("what", [b"c", b"f"])
def test_a_killed_duck_takes_its_boxes_along_and_can_start_again(program: Path, what: bytes) -> None:
    name = f"t{os.getpid()}-{what.decode()}"
    process = served(name)
    duck = teal.Duck(name)
    session = duck.open(program)
    number(session.call(b"c"))
    pid = session.pid
    future = session.submit(what)
    process.kill()
    process.wait()
    if what == b"f":
        assert isinstance(future.exception(), teal.PeerDied)
    until(lambda: not alive(pid), "the box has ended")
    for _ in range(3):
        with pytest.raises(teal.PeerDied):
            session.call(b"f")
    session.close()
    duck.close()
    again = served(name)  # nothing blocks a restart
    try:
        with teal.Duck(name) as duck, duck.open(program) as session:
            assert number(session.call(b"c")) == 1
    finally:
        again.terminate()
        assert again.wait() == 0


def test_a_killed_zygote_is_replaced(program: Path) -> None:
    with Server(None, cache=False, memory=1 << 30) as server, server.connect() as duck:
        session = duck.open(program)
        number(session.call(b"c"))
        before = zygote_of(server)
        os.kill(before, signal.SIGKILL)
        with pytest.raises(teal.PeerDied):
            session.call(b"f")
        assert number(session.call(b"c")) == 1
        assert zygote_of(server) != before


def test_a_stopped_duck_leaves_nothing(program: Path) -> None:
    before = set(os.listdir("/proc/self/fd"))
    threads = set(threading.enumerate())
    with Server(None, cache=False, memory=1 << 30) as server:
        zygote = zygote_of(server)
        duck = server.connect()
        session = duck.open(program)
        pid = session.pid
        number(session.call(b"c"))
    until(lambda: not alive(pid) and not alive(zygote), "box and zygote have ended")
    with pytest.raises((teal.PeerDied, teal.Closed)):
        session.call(b"c")
    session.close()
    duck.close()
    del session, duck, server
    assert {thread for thread in threading.enumerate() if thread.is_alive()} <= threads
    left = {
        os.readlink(f"/proc/self/fd/{fd}")
        for fd in set(os.listdir("/proc/self/fd")) - before
        if os.path.exists(f"/proc/self/fd/{fd}")
    }
    assert not {link for link in left if "teal" in link or "socket" in link}


def test_a_name_that_is_taken(server: Server) -> None:
    with pytest.raises(teal.Busy, match="a duck listens"):
        Server(server.address, cache=False, memory=1 << 30)


def test_nobody_there() -> None:
    with pytest.raises(teal.NotFound, match="no duck listens"):
        teal.Duck(f"nobody-{os.getpid()}")
