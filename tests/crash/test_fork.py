"""fork in a client: the child may look at what it has and open a connection of its own; the parent notices nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
import watch
from crash_host import CrashHost, unused_name

import teal

ATTACHED = """
import teal
import numpy as np
import os, sys, signal, threading, time

host = teal.connect(sys.argv[1])
model = host.model("identity")
x = np.arange(1000.0)
kept = model(x)[0]
loaned = model.new_inputs(x=("float64", (1000,)))
loaned["x"].numpy()[:] = x
call = model.prepare(**loaned)
call()
future = model.submit(x)
future.result()
told = threading.Event()
model.submit(x).add_done_callback(lambda _: told.set())  # starts the notifier's thread
told.wait()

def closed(function):
    try:
        function()
    except teal.Closed as error:
        assert "reopen after fork" in str(error), error
    else:
        raise AssertionError(f"{function} did not raise Closed")

def in_child():
    assert np.array_equal(kept.numpy(), x)
    for function in (
        lambda: model(x), lambda: model(**loaned), lambda: call(), lambda: model.submit(x), lambda: model.prepare(x),
        lambda: model.new_inputs(x=("float64", (3,))), lambda: host.empty((3,)), lambda: kept.release(),
        lambda: host.load("more", "builtin:identity"), lambda: host.models(), lambda: host.statistics(),
        lambda: model.submit("a"), lambda: model.statistics(),
    ):
        closed(function)
    other = teal.connect(sys.argv[1])
    assert np.array_equal(other.model("identity")(x)[0].numpy(), x)

def go_on():
    for _ in range(50):
        assert np.array_equal(model(x)[0].numpy(), x)
        assert np.array_equal(call()[0].numpy(), x)
    assert np.array_equal(kept.numpy(), x)

def child(end):
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            in_child()
            status = 0
        except BaseException:
            import traceback
            traceback.print_exc()
        end(status)
        os._exit(9)
    return pid

def reaped(pid):
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
"""


def finish(arguments: list[str], **environment: str) -> None:
    """Runs a program, and ends whatever it left behind. Fails with what it said unless it ends well."""
    paths = os.pathsep.join(path for path in (str(Path(__file__).parent), *sys.path) if path)
    with tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen(
            [sys.executable, "-W", "ignore::DeprecationWarning", "-c", *arguments],
            env={**os.environ, "PYTHONPATH": paths, **environment},
            stdout=said,
            stderr=said,
            start_new_session=True,
        )
        try:
            watch.until(lambda: watch.state(process.pid) == "Z", "the end of the program")
        finally:
            os.killpg(process.pid, signal.SIGKILL)  # it has not been reaped: the number is its own still
            process.wait()
        said.seek(0)
        assert process.returncode == 0, said.read()


def run(script: str, address: str) -> None:
    finish([ATTACHED + textwrap.dedent(script), address])


@pytest.fixture
def address(hosts: Callable[..., CrashHost]) -> str:
    host = hosts(workers=2)
    with teal.connect(host.address) as attached:
        attached.load("identity", "builtin:identity")
    return host.address


@pytest.mark.parametrize("end", ["os._exit", "sys.exit", "lambda _: os.kill(os.getpid(), signal.SIGKILL)"])
def test_child_and_parent(end: str, address: str) -> None:
    """Whichever way the child ends, also through the interpreter's own end with everything it inherited."""
    expected = -9 if "SIGKILL" in end else 0
    run(
        f"""
        pid = child({end})
        go_on()
        assert reaped(pid) == {expected}
        go_on()
        """,
        address,
    )


def test_child_does_not_scribble_into_the_parents_slots(address: str) -> None:
    run(
        """
        y = np.full(1000, 7.0)
        pids = []
        for _ in range(10):
            pid = os.fork()
            if pid == 0:
                for _ in range(100):
                    closed(lambda: model(y))
                    closed(lambda: model(**loaned))
                os._exit(0)
            pids.append(pid)
            go_on()
        assert [reaped(pid) for pid in pids] == [0] * 10
        """,
        address,
    )


def test_child_outlives_the_parent(address: str) -> None:
    """The host hears of the parent's end although a child has copies of all it had; the child's own host goes on."""
    run(
        """
        reader, writer = os.pipe()
        middle = os.fork()
        if middle == 0:  # made like the first one, by a process that is killed while its own child lives
            host = teal.connect(sys.argv[1])
            model = host.model("identity")
            model(x)
            grandchild = os.fork()
            if grandchild == 0:
                other = teal.connect(sys.argv[1])
                os.write(writer, b"r")
                signal.pause()
            os.write(writer, str(grandchild).encode())
            signal.pause()
        os.close(writer)
        seen = b""
        while b"r" not in seen or len(seen) < 2:
            seen += os.read(reader, 100)
        grandchild = int(seen.replace(b"r", b""))
        pids = lambda: sorted(client.pid for client in host.statistics().clients)
        os.kill(middle, signal.SIGKILL)
        os.waitpid(middle, 0)
        until = time.monotonic() + 60
        while middle in pids():
            assert time.monotonic() < until, "the host still has the dead parent's session"
        os.kill(grandchild, signal.SIGKILL)
        go_on()
        """,
        address,
    )


EMBEDDED = """
import os, signal, sys, time
import teal
host = teal.Host(sys.argv[1])
model = host.load("identity", "builtin:identity")
assert float(model(3.0)[0].numpy()) == 3
if os.fork() == 0:
    print(os.getpid(), flush=True)  # by the child: what it does after a fork is done by then
    signal.pause()
    os._exit(0)
signal.pause()
"""


def test_child_of_an_embedded_host_does_not_keep_it_alive() -> None:
    """Its process is killed, a forked child lives on: workers leave, and the name is free at once."""
    name = unused_name()
    paths = os.pathsep.join(path for path in sys.path if path)
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", EMBEDDED, name],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": paths},
    )
    assert process.stdout is not None
    child = int(process.stdout.readline())
    workers = watch.children(process.pid) - {child}
    process.kill()
    process.wait()
    process.stdout.close()
    try:
        watch.until(lambda: not any(watch.alive(pid) for pid in workers), "the workers' end")
        assert watch.alive(child)
        with teal.Host(name) as again:
            assert float(again.load("identity", "builtin:identity")(3.0)[0].numpy()) == 3
    finally:
        os.kill(child, signal.SIGKILL)


def test_child_of_an_embedded_host_may_end_in_any_way() -> None:
    script = """
    import os, sys
    import teal
    host = teal.Host(sys.argv[1], workers=2)
    model = host.load("identity", "builtin:identity")
    for end in (sys.exit, os._exit):
        pid = os.fork()
        if pid == 0:
            host.close()
            end(0)
        assert os.waitpid(pid, 0)[1] == 0
        assert float(model(3.0)[0].numpy()) == 3
    assert len(host.statistics().clients) == 1
    assert host.statistics().restarts == 0
    host.close()
    """
    finish([textwrap.dedent(script), unused_name()])
