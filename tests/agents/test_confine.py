"""What a process that has locked itself in can still do: nothing that opens, connects, starts or signals anything."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from teal import _core

_OFFERED = _core.walls_offered()
pytestmark = pytest.mark.skipif(
    not _OFFERED["filter"], reason=f"agents cannot be locked in here: {_OFFERED['missing']}"
)

_TRIES = """
import ctypes, json, mmap, os, signal, socket, sys, threading, time
from teal import _core

held = os.open("/dev/null", os.O_WRONLY)
folder = os.open("/", os.O_RDONLY | os.O_DIRECTORY)
block = os.memfd_create("block")
os.ftruncate(block, 4096)
ours, theirs = socket.socketpair()
stop, thread_says = threading.Event(), []

def elsewhere():
    stop.wait()
    try:
        thread_says.append(os.open("/etc/passwd", os.O_RDONLY))
    except OSError as error:
        thread_says.append(error.errno)

thread = threading.Thread(target=elsewhere)
thread.start()
libc = ctypes.CDLL(None, use_errno=True)
walls = _core.confine()
stop.set()
thread.join()

def errno_of(result):
    return ctypes.get_errno() if result == -1 else 0

tries = {
    "open": lambda: os.open("/etc/passwd", os.O_RDONLY),
    "create": lambda: os.open("made-by-a-policy", os.O_CREAT | os.O_WRONLY),
    "open beside": lambda: os.open("etc/passwd", os.O_RDONLY, dir_fd=folder),
    "open itself anew": lambda: os.open(f"/proc/self/fd/{block}", os.O_RDWR),
    "unlink": lambda: os.unlink("nothing"),
    "rename": lambda: os.rename("a", "b"),
    "stat": lambda: os.stat("/"),
    "socket": lambda: socket.socket(socket.AF_INET),
    "unix socket": lambda: socket.socket(socket.AF_UNIX),
    "fork": os.fork,
    "exec": lambda: os.execv("/bin/true", ["true"]),
    "kill": lambda: os.kill(os.getppid(), 0),
    "kill a thread of another": lambda: libc.syscall(234, os.getppid(), os.getppid(), 0) == 0 or 1 / 0,
    "another core": lambda: os.sched_setaffinity(0, {0}),
    "more files": lambda: __import__("resource").setrlimit(7, (1, 1)),
    "memfd": lambda: os.memfd_create("more"),
    "grow a region": lambda: os.ftruncate(block, 8192),
    "code": lambda: mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_EXEC),
    "another user": lambda: os.setuid(65534),
}
allowed = {
    "memory": lambda: bytearray(32 << 20),
    "map what it holds": lambda: mmap.mmap(block, 4096).close(),
    "write on what it holds": lambda: os.write(held, b"x"),
    "talk on its socket": lambda: (ours.send(b"x"), theirs.recv(1)),
    "sleep": lambda: time.sleep(0.001),
    "clocks": lambda: (time.monotonic(), time.time(), time.thread_time()),
}

def outcome(act):
    try:
        act()
    except (OSError, RuntimeError, ZeroDivisionError, ValueError) as error:
        return type(error).__name__
    return "done"

said = {"walls": walls, "thread": thread_says[0],
        "refused": {name: outcome(act) for name, act in tries.items()},
        "allowed": {name: outcome(act) for name, act in allowed.items()},
        "starting a thread": outcome(lambda: threading.Thread(target=print).start())}
os.write(1, json.dumps(said).encode())
os._exit(0)
"""


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, str]]:
    code = _TRIES.replace("import ctypes, json", "import resource, ctypes, json", 1)
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        timeout=60,
        cwd=tmp_path_factory.mktemp("locked"),
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    found: dict[str, dict[str, str]] = json.loads(done.stdout)
    return found


def test_nothing_new_can_be_had(said: dict[str, dict[str, str]]) -> None:
    assert {name: what for name, what in said["refused"].items() if what == "done"} == {}
    assert said["starting a thread"] == "RuntimeError"


def test_what_it_holds_still_works(said: dict[str, dict[str, str]]) -> None:
    assert {name: what for name, what in said["allowed"].items() if what != "done"} == {}


def test_threads_that_ran_before_are_locked_in_too(said: dict[str, dict[str, str]]) -> None:
    assert said["thread"] == 1  # EPERM


def test_what_was_raised_is_said(said: dict[str, dict[str, str]]) -> None:
    assert said["walls"]["filter"]
    assert said["walls"]["landlock"] == _OFFERED["landlock"]


def test_asking_changes_nothing() -> None:
    _core.walls_offered()
    with open("/proc/self/status", encoding="ascii") as status:
        assert "NoNewPrivs:\t0" in status.read()
