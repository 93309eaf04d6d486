"""A lane: one contender in a process of its own, driven block by block over its stdin and stdout.

Theory of operation. The bench starts every contender at the beginning, then lets them take turns: a contender that is
not in turn is blocked reading stdin, and its server is stopped by SIGSTOP (some of them poll). So at any moment one
client and one server use the machine, and drift of the machine hits all alike.

Protocol, one JSON object a line. The child says hello (`ready`, `note`, `versions`), then answers commands:

    {"do": "run", "variant": V, "warm": W, "n": N}  ->  {"ns": N times as base64 int64[, "inner": the same]}
    {"do": "answer", "variant": V}                  ->  {"answer": what the variant returned, as base64}
    {"do": "drop", "variant": V}                    ->  {}          forget it: the next run builds it afresh
    {"do": "flood", "variant": V} / {"do": "ebb"}   ->  {} / {"calls": C, "errors": [...]}
    {"do": "ask", "what": Q, "with": {...}}         ->  {"value": ...}

or {"error": text}. The end of stdin ends the child. Nothing is left behind, whatever kills the bench or a lane: both
lanes and servers die with their parent (PR_SET_PDEATHSIG, which also ends a stopped process). A server that has
children of its own kills its whole group when its stdin ends; should it be stopped at that moment, then the kernel
continues the group, since nobody who could is left in its session.
"""

from __future__ import annotations

import base64
import contextlib
import ctypes
import gc
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from array import array
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TextIO

PR_SET_PDEATHSIG = 1
MAX_ERRORS_KEPT = 5
READY_SECONDS = 90.0  # for a server to start; LitServe takes 4 to 8 on a quiet machine


def nothing() -> None:
    """The default of hooks that do nothing."""


@dataclass
class Variant:
    """One way in which a contender makes the call."""

    call: Callable[[], object]  # the thing that is timed
    answer: Callable[[], bytes] | None = None  # the same call, returning the bytes of its answer
    inner: Callable[[], int] | None = None  # ns that the last call spent in the maths, read outside the timing
    before: Callable[[], None] = nothing  # when its turn begins: wake its server
    after: Callable[[], None] = nothing  # when its turn ends: still its server
    alive: object = None  # what the call knows by address only and must not be freed


@dataclass
class Contender:
    """What a lane offers. Variants are built when they are first used, by calling their factory."""

    variants: Mapping[str, Callable[[], Variant]] = field(default_factory=dict)
    questions: Mapping[str, Callable[..., object]] = field(default_factory=dict)
    note: str = ""  # the configuration, in words
    versions: Mapping[str, str] = field(default_factory=dict)
    litter: list[str] = field(default_factory=list)  # glob patterns that the bench removes once the lane is dead
    close: Callable[[], None] = nothing


def timed(call: Callable[[], object], n: int) -> array[int]:
    """Times n calls; ns each. The clock's own cost (about 40 ns) is inside, the result's release too."""
    samples = array("q", bytes(8 * n))
    clock = time.perf_counter_ns
    for i in range(n):
        start = clock()
        call()
        samples[i] = clock() - start
    return samples


def timed_with_inner(call: Callable[[], object], inner: Callable[[], int], n: int) -> tuple[array[int], array[int]]:
    """As `timed`, and after each call, outside its timing, asks how long the maths took; ns each."""
    samples, inners = array("q", bytes(8 * n)), array("q", bytes(8 * n))
    clock = time.perf_counter_ns
    for i in range(n):
        start = clock()
        call()
        samples[i] = clock() - start
        inners[i] = inner()
    return samples, inners


def die_with_parent() -> None:
    """Has the kernel kill this process when its parent dies."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != int(os.environ.get("LANE_PARENT", os.getppid())):
        os._exit(1)  # the parent died before the line above


def die_with_stdin() -> None:
    """Kills this process's group when stdin ends: for servers whose children the death of their parent would orphan."""

    def wait() -> None:
        while os.read(0, 1):
            pass
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=wait, daemon=True).start()


def pin(core: int | None) -> None:
    """Binds this process, and the threads and children that it will start, to one core."""
    if core is not None:
        os.sched_setaffinity(0, {core})


class Server:
    """A contender's server: a process of its own, in a process group of its own, that dies with this one."""

    def __init__(self, module: str, config: Mapping[str, Any]) -> None:
        command = [sys.executable, "-P", "-m", module, "serve", json.dumps(dict(config))]
        environment = dict(os.environ, LANE_PARENT=str(os.getpid()))
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, process_group=0
        )
        assert self._process.stdout is not None
        if not select.select([self._process.stdout], [], [], READY_SECONDS)[0]:
            self.close()
            raise TimeoutError(f"{module}: server not ready after {READY_SECONDS:.0f} s")
        if self._process.stdout.readline() != b"ready\n":
            self.close()
            raise RuntimeError(f"{module}: server ended while starting, status {self._process.returncode}")

    @property
    def pid(self) -> int:
        return self._process.pid

    def variant(self, call: Callable[[], Any], answer: Callable[[], bytes] | None = None) -> Variant:
        """A call of this server, which is stopped while others are in turn; by default the call returns its answer."""
        return Variant(call, answer or call, before=self.resume, after=self.pause)

    def pause(self) -> None:
        """Stops the server, so that its polling takes no core from whoever is in turn."""
        os.killpg(self._process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.killpg(self._process.pid, signal.SIGCONT)

    def close(self) -> None:
        """Kills the whole group: gently first, since some contenders tidy up files of theirs."""
        with contextlib.suppress(ProcessLookupError):
            self.resume()
            os.killpg(self._process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(1.0)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


class Flood:
    """Calls of one variant in a thread, as many as will go, until told to stop."""

    def __init__(self, call: Callable[[], object]) -> None:
        self._call = call
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.calls = 0
        self.errors: list[str] = []
        self.failed = 0
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self._call()
            except Exception as error:  # a lost request is a result here, whatever its class
                self.failed += 1
                if len(self.errors) < MAX_ERRORS_KEPT:
                    self.errors.append(f"{type(error).__name__}: {error}")
            self.calls += 1

    def stop(self) -> dict[str, object]:
        self._stop.set()
        self._thread.join()
        return {"calls": self.calls, "failed": self.failed, "errors": self.errors}


class Session:
    """The child's side of the protocol: holds the variants built so far and obeys commands."""

    def __init__(self, contender: Contender) -> None:
        self._contender = contender
        self._built: dict[str, Variant] = {}
        self._flood: Flood | None = None

    def _variant(self, name: str) -> Variant:
        if name not in self._built:
            if name not in self._contender.variants:
                raise KeyError(f"no variant {name!r}; there are {sorted(self._contender.variants)}")
            self._built[name] = self._contender.variants[name]()
        return self._built[name]

    def obey(self, command: Mapping[str, Any]) -> dict[str, object]:
        """Carries out one command and returns its reply."""
        verbs = {
            "run": self._run,
            "answer": self._answer,
            "drop": self._drop,
            "flood": self._start_flood,
            "ebb": self._stop_flood,
            "ask": self._ask,
        }
        return verbs[command["do"]](command)

    def _run(self, command: Mapping[str, Any]) -> dict[str, object]:
        variant = self._variant(command["variant"])
        gc.collect()
        gc.disable()  # a collection in the middle of a block would be counted as the contender's
        variant.before()
        try:
            timed(variant.call, command["warm"])
            if variant.inner is None:
                return {"ns": encode(timed(variant.call, command["n"]))}
            samples, inners = timed_with_inner(variant.call, variant.inner, command["n"])
            return {"ns": encode(samples), "inner": encode(inners)}
        finally:
            variant.after()
            gc.enable()

    def _answer(self, command: Mapping[str, Any]) -> dict[str, object]:
        variant = self._variant(command["variant"])
        if variant.answer is None:
            return {"answer": None}
        variant.before()
        try:
            return {"answer": base64.b64encode(variant.answer()).decode()}
        finally:
            variant.after()

    def _drop(self, command: Mapping[str, Any]) -> dict[str, object]:
        self._built.pop(command["variant"], None)
        gc.collect()
        return {}

    def _start_flood(self, command: Mapping[str, Any]) -> dict[str, object]:
        self._flood = Flood(self._variant(command["variant"]).call)
        return {}

    def _stop_flood(self, command: Mapping[str, Any]) -> dict[str, object]:
        flood, self._flood = self._flood, None
        return flood.stop() if flood is not None else {"calls": 0, "failed": 0, "errors": []}

    def _ask(self, command: Mapping[str, Any]) -> dict[str, object]:
        return {"value": self._contender.questions[command["what"]](**command.get("with", {}))}


def encode(samples: array[int]) -> str:
    return base64.b64encode(samples.tobytes()).decode()


def private_stdout() -> TextIO:
    """Keeps stdout for the protocol alone: what libraries print goes to stderr, which is the lane's log."""
    protocol = os.fdopen(os.dup(1), "w", buffering=1, encoding="utf-8")
    os.dup2(2, 1)
    return protocol


def ready(protocol: TextIO) -> None:
    """A server's word that clients may come."""
    protocol.write("ready\n")
    protocol.flush()


def converse(contender: Contender, protocol: TextIO) -> None:
    """Says hello, then answers commands until stdin ends."""
    hello = {
        "ready": True,
        "note": contender.note,
        "versions": dict(contender.versions),
        "litter": contender.litter,
    }
    protocol.write(json.dumps(hello) + "\n")
    session = Session(contender)
    gc.collect()
    gc.freeze()  # what is there now stays; makes the collection before every block short
    for line in sys.stdin:
        try:
            reply = session.obey(json.loads(line))
        except Exception as error:  # whatever a contender raises is the bench's to report
            reply = {"error": f"{type(error).__name__}: {error}"}
        protocol.write(json.dumps(reply) + "\n")
        protocol.flush()


def main(
    client: Callable[[dict[str, Any]], Contender],
    serve: Callable[[dict[str, Any], TextIO], None] | None = None,
    *,
    family: bool = False,
) -> None:
    """The `__main__` of a contender: `NAME client|serve CONFIG`; the config is a JSON object, its `core` is pinned.

    family: the server starts processes of its own, so its whole group must end with its client.
    """
    role, config = sys.argv[1], json.loads(sys.argv[2])
    if role == "serve" and family:
        die_with_stdin()
    else:
        die_with_parent()
    pin(config.get("core"))
    protocol = private_stdout()
    if role == "serve":
        assert serve is not None
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        serve(config, protocol)
        return
    try:
        contender = client(config)
    except Exception as error:
        protocol.write(json.dumps({"error": f"{type(error).__name__}: {error}"}) + "\n")
        raise
    try:
        converse(contender, protocol)
    finally:
        contender.close()
