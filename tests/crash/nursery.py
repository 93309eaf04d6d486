"""Processes to be killed, made by the dozen: a program that has imported Teal once and forks on demand.

Theory of operation: the test writes one JSON line per child to the nursery's standard input and reads its process
number; the child does what the line says, for ever or to its end, and the test kills it when it likes. The nursery
itself makes nothing of Teal's, so its children are as good as new processes at a hundredth of the price.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import importlib
import json
import os
import random
import select
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import crash_host

HERE = Path(__file__).parent


class Child:
    """A process that somebody else reaps: its number may be anybody's once it is gone, its pidfd is its own."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        try:
            self._pidfd = os.pidfd_open(pid)
        except ProcessLookupError:  # it was quicker than we
            self._pidfd = -1

    def signal(self, number: int) -> None:
        if self._pidfd >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, number)

    def ended(self) -> bool:
        return self._pidfd < 0 or self._wait(0)

    def _wait(self, milliseconds: int | None) -> bool:
        poll = select.poll()
        poll.register(self._pidfd, select.POLLIN)
        return bool(poll.poll(milliseconds))

    def kill(self) -> None:
        """SIGKILL, and waits for the end."""
        self.signal(signal.SIGKILL)
        if self._pidfd >= 0:
            self._wait(None)

    def close(self) -> None:
        if self._pidfd >= 0:
            self.kill()
            os.close(self._pidfd)
            self._pidfd = -1


class Nursery:
    """A running nursery. ``start`` returns a new child, ``close`` ends all."""

    def __init__(self) -> None:
        self._children: list[Child] = []
        paths = os.pathsep.join([str(HERE), *(path for path in sys.path if path)])
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / "nursery.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": paths},
            text=True,
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def start(self, kind: str, **options: Any) -> Child:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"kind": kind, **options}) + "\n")
        self._process.stdin.flush()
        child = Child(int(self._process.stdout.readline()))
        self._children.append(child)
        return child

    def close(self) -> None:
        for child in self._children:
            child.close()
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()

    def __enter__(self) -> Nursery:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def client(address: str, seed: int, model_file: str) -> None:
    """Uses the host in every way there is, in random order, until it is killed."""
    import numpy as np

    import teal

    dice = random.Random(seed)
    host = teal.connect(address)
    held: list[Any] = []
    while True:
        try:
            for _ in range(dice.randint(1, 8)):
                _one_act(teal, np, host, dice, held, model_file)
        except teal.TealError:
            pass  # its models are unloaded and replaced by others of its kind
        if dice.random() < 0.2:
            held.clear()
            host.close()
            host = teal.connect(address)


def _one_act(teal: Any, np: Any, host: Any, dice: random.Random, held: list[Any], model_file: str) -> None:
    size = dice.choice([1, 7, 1000, 200_000])
    x = np.arange(size, dtype=np.float64)
    match dice.randint(0, 10):
        case 0:
            host.load(
                f"theirs-{dice.randint(0, 3)}", dice.choice(["builtin:identity", "crash_kernels:square", model_file])
            )
        case 1:
            held.extend(host.model("identity").submit(x) for _ in range(dice.randint(1, 64)))
        case 2:
            held.append(host.model("square")(x))
        case 3:
            inputs = host.model("identity").new_inputs(x=("float64", (size,)))
            inputs["x"].numpy()[:] = 1.0
            held.append(host.model("identity")(**inputs))
        case 4:
            held.append(host.model("sleep").submit(np.int64(dice.choice([10, 1000, 20_000])), deadline=0.01))
        case 5:
            held.append(host.model("count")(np.int64(dice.choice([0, 3, 70_000]))))
        case 6:
            held.append(host.empty((size,)))
        case 7:
            call = host.model("cube").prepare(x)
            for _ in range(20):
                call()
        case 8:
            for future in held[:]:
                if isinstance(future, teal.Future):
                    future.result()
            held.clear()
        case 9:
            given, out = host.empty((size,), "float64"), host.empty((size,), "float64")
            name = dice.choice(["identity", "square", "cube"])
            future = host.model(name).submit(given.numpy()[: dice.randint(0, size)] if dice.random() < 0.3 else given)
            held.append(host.model("identity").submit(given, out=out))
            if dice.random() < 0.5:
                future.cancel()
            held.append(future)
        case 10:
            square = host.model("square")
            given = square(x)[0]
            for _ in range(5):
                given = square(given, out=host.empty((size,), "float64"))[0]
            held.append(given)


def host(options: dict[str, Any]) -> None:
    asyncio.run(crash_host.serve(options, lambda: None))


def waiting(options: dict[str, Any]) -> None:
    """A client that does one thing: submits requests to ``model`` and waits to be killed."""
    import numpy as np

    import teal

    attached = teal.connect(options["address"])
    model = attached.model(options["model"])
    futures = [model.submit(**{k: np.asarray(v) for k, v in call.items()}) for call in options["calls"]]
    Path(options["flag"]).touch()
    for future in futures:
        future.result()
    signal.pause()


def caller(options: dict[str, Any]) -> None:
    """Calls as fast as it can, until it is killed or its host goes."""
    import numpy as np

    import teal

    call = teal.connect(options["address"]).model("identity").prepare(np.arange(4.0))
    while True:
        call()


def stranger(options: dict[str, Any]) -> None:
    """Becomes another user, tries one act after the other, and writes what came of each."""
    import teal
    import teal.tune.record  # wanted by the first load, and that user may not read where it is

    host: Any = None
    told: list[tuple[str, Any]] = []

    def attach() -> str:
        nonlocal host
        host = teal.connect(options["address"])
        return "in"

    def squat() -> None:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        sock.bind(b"\0" + options["address"][1:].encode())
        sock.listen()
        output.write("[]")
        output.flush()
        signal.pause()

    acts: dict[str, Callable[[], Any]] = {
        "attach": attach,
        "squat": squat,
        "call": lambda: float(host.model("identity")(3.0)[0].numpy()),
        "load": lambda: host.load("theirs", "builtin:sum").name,
        "reload": lambda: host.load("identity", "builtin:sum").name,
        "pin": lambda: host.load("identity", "builtin:sum", version=9).name,
        "unload": lambda: host.unload("identity"),
        "force": lambda: host.unload("identity", 1, force=True),
        "load again": lambda: host.load("theirs", "builtin:identity").version,
        "unload theirs": lambda: host.unload("theirs"),
        "function": lambda: host.load("evil", "os:system").name,
        "stop": lambda: host.stop(drain=True),
        "start agent": lambda: host.agents.start("default", "fifo").state,
        "upgrade agent": lambda: host.agents.upgrade("default", "edf").state,
        "set agent": lambda: host.agents.set("default", quantum="20us"),
        "stop agent": lambda: host.agents.stop("default"),
        "look at agents": lambda: host.agents["default"].state,
        "trace": lambda: host._trace("default", 0.01, 100)["pool"],
        "thief": lambda: bytes(host.load("thief", options["argument"])()[0].numpy()).decode(),
        "onnx": lambda: float(host.load("affine", options["argument"])([3.0])[0].numpy()[0]),
    }
    with open(options["output"], "w") as output:
        os.setgroups([])
        os.setgid(options["uid"])
        os.setuid(options["uid"])
        for act in options["acts"]:
            try:
                told.append(("", acts[act]()))
            except teal.TealError as error:
                told.append((type(error).__name__, str(error)))
        json.dump(told, output)


def _child(order: dict[str, Any]) -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG: nobody outlives the nursery
    devnull = os.open(os.devnull, os.O_RDWR)
    os.dup2(devnull, 0)
    os.dup2(devnull, 1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    match order.pop("kind"):
        case "client":
            client(**order)
        case "host":
            host(order)
        case "attack":  # tests/hostile/attacks.py
            importlib.import_module("attacks").attack(**order)
            os._exit(0)
        case "stranger":
            stranger(order)
        case "caller":
            caller(order)
        case "waiting":
            waiting(order)


def main() -> None:
    import numpy  # noqa: F401  (children find it imported)

    import teal  # noqa: F401

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            try:
                _child(json.loads(line))
            except BaseException as error:
                if type(error).__module__ != "teal.errors":  # hosts of this test die and stop
                    traceback.print_exc()
            finally:
                os._exit(1)
        print(pid, flush=True)


if __name__ == "__main__":
    main()
