"""A resident kernel that parks: src/teal/device/source/kernels.h (teal_wait, teal_mark, teal_scan, teal_answer),
core/device/line.cpp (ask, await), src/teal/device/resident.py (wake, add).

The client here is stricter than await(), which goes on looking at reply.state while it waits: it looks once after its
fence, and once it was told that the kernel is awake it looks at nothing but reply.generation. So one look is proven to
be enough. Idle time may end at any moment. A launch starts when the one before has ended, as on a device's queue, and
the end of a kernel comes after all its stores. `broken`: as in pool.py.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from .explore import Model, Process
from .operation import BrokenError, Memory, Steps, act, call, choose, fence, goto, load, store, swap, when

Broken = frozenset[str]
LINES = (0, 1)


def memory() -> dict[Hashable, Any]:
    line: dict[Hashable, Any] = {}
    for number in LINES:
        line |= {("request", number): 0, ("reply", number): 0, ("state", number): "parked", ("ledger", number): 0}
        line |= {("input", number): 0, ("output", number): 0, ("runs", number): 0}  # what a run reads and leaves
        line |= {("asked", number): 0, ("awake", number): 0}  # client → worker → client
    pulse: dict[Hashable, Any] = {"pulse.state": "parked", "pulse.epoch": 0}
    return {**line, **pulse, "version": 1, "quit": 0, "epoch": 0, "launch": 0, "event": 0}


def lines_of(version: int) -> tuple[int, ...]:
    """The entries of a version of the directory: the second line is added later."""
    return LINES[:version]


# ---- the client: core/device/line.cpp --------------------------------------------------------------------------------


def client(broken: Broken, line: int, generations: int) -> Steps:
    yield when(lambda m: bool(m["version"] > line), "its line is in the directory")
    for generation in range(1, generations + 1):
        yield call(run, broken, line, generation)


def run(broken: Broken, line: int, generation: int) -> Steps:
    if "the input is stored after the request" not in broken:
        yield store(("input", line), generation)
    yield store(("request", line), generation, release=True)  # request.generation.store(generation, release)
    if "the input is stored after the request" in broken:
        yield store(("input", line), generation)
    if "ask() does not fence" not in broken:
        yield fence()  # atomic_thread_fence(seq_cst)
    reply = yield load(("reply", line))  # reply.generation.load(acquire) == generation
    if reply != generation:
        state = yield load(("state", line))  # reply.state.load(relaxed)
        if state != "resident":
            yield swap(("asked", line), 1)  # Answer::parked: asks the worker
            yield when(lambda m: bool(m["awake", line]), "the worker says: awake")
            yield act(lambda m: m.__setitem__(("awake", line), 0), "reads the worker's answer")
        yield when(lambda m: bool(m["reply", line] == generation), "reply.generation == generation")
    output = yield load(("output", line))
    if output != generation:
        yield act(_stale, "reads the output")


def _stale(m: Memory) -> None:
    raise BrokenError("an output of an earlier run")


# ---- the worker: src/teal/device/resident.py -------------------------------------------------------------------------


def worker(broken: Broken) -> Steps:
    """Serves whoever asks, and at some moment adds the second line."""
    what = yield choose("serve", "add")
    if what == "add":
        version = yield load("version")
        if version == 1:
            yield store("version", 2, release=True)  # directory.write(...), directory.raise_version()
        yield goto(worker_serves, broken)
    yield goto(worker_serves, broken)


def worker_serves(broken: Broken) -> Steps:
    yield when(lambda m: bool(m["asked", 0] or m["asked", 1] or m["version"] == 1), "something to do")
    who = yield act(_first_asking, "takes a question")
    if who is None:
        yield store("version", 2, release=True)  # nobody asks: the second line comes now, at the latest
    else:
        yield call(wake, broken)
        yield swap(("awake", who), 1)
    yield goto(worker, broken)


def _first_asking(m: Memory) -> int | None:
    for line in LINES:
        if m["asked", line]:
            m["asked", line] = 0
            return line
    return None


def wake(broken: Broken, launched: bool = False) -> Steps:
    """Resident.wake()."""
    if "wake() looks at the event last" not in broken:
        running = yield load("event")  # running = self._running()
    epoch = yield load("epoch")
    came_up = yield load("pulse.epoch", lambda seen: seen == epoch and epoch > 0)
    state = yield load("pulse.state")
    if "wake() looks at the event last" in broken:
        running = yield load("event")
    if came_up and (launched or (running and state == "resident")):
        return
    if came_up and "wake() takes a parked kernel for awake" in broken:
        return
    if not running and launched:
        yield act(_never_came, "lost")
    if not running or "wake() does not wait for the end" in broken:
        yield swap("epoch", epoch + 1)  # header["epoch"] += 1
        yield act(_launch, "program.start(...)")
        yield goto(wake, broken, True)
    yield when(
        lambda m: not m["event"] or (m["pulse.epoch"] == m["epoch"] and (launched or m["pulse.state"] == "resident")),
        "the kernel has left, come up, or taken parked back",
    )
    yield goto(wake, broken, launched)


def _never_came(m: Memory) -> None:
    raise BrokenError("a kernel that came up is taken for lost")


def _launch(m: Memory) -> None:
    m["launch"] += 1
    m["event"] += 1


# ---- the kernel: kernels.h -------------------------------------------------------------------------------------------


def queue(broken: Broken) -> Steps:
    """The device's queue."""
    yield when(lambda m: bool(m["launch"]), "a launch")
    yield act(lambda m: m.__setitem__("launch", m["launch"] - 1), "starts")
    yield goto(kernel, broken, 0)


def kernel(broken: Broken, version: int) -> Steps:
    """One turn of teal_wait(), and the run it leads to; `version`: of its copy."""
    news = yield load("version")  # news = TEAL_U64(directory, 8)
    if news != version:
        yield call(mark, broken, news, "resident")
        yield goto(kernel, broken, news)
    found = yield call(scan, broken, version)
    if found is not None:
        yield call(answer, broken, version, *found)
        yield goto(kernel, broken, version)
    idle_ended = yield choose(True, False)
    if not idle_ended:
        yield when(lambda m: _something_new(m, version), "a request, or a new version")
        yield goto(kernel, broken, version)
    yield goto(park, broken, version)


def _something_new(m: Memory, version: int) -> bool:
    return m["version"] != version or any(m["request", line] != m["ledger", line] for line in lines_of(version))


def park(broken: Broken, version: int) -> Steps:
    early = None
    if "the lines are looked at before parked is stored" in broken:
        early = yield call(scan, broken, version)
    if "parked is not stored" not in broken:
        yield call(mark, broken, version, "parked")
    if "the kernel does not fence" not in broken:
        yield fence()  # TEAL_FENCE()
    fresh = yield load("version", lambda seen: seen != version)
    if "a new version is not looked at" in broken:
        fresh = False
    if broken & {"the lines are looked at before parked is stored", "the lines are not looked at again"}:
        found = early
    else:
        found = yield call(scan, broken, version)
    if found is None and not fresh:
        yield swap("event", 0)  # the end of a kernel comes after its stores
        yield goto(queue, broken)
    if "parked is not taken back" not in broken:
        yield call(mark, broken, version, "resident")
    if not fresh:
        yield call(answer, broken, version, *found)
    yield goto(kernel, broken, version)


def mark(broken: Broken, version: int, state: str) -> Steps:
    """teal_mark()"""
    epoch = yield load("epoch")
    for line in lines_of(version):
        yield store(("state", line), state, release=True)
    yield store("pulse.epoch", epoch)
    yield store("pulse.state", state, release=True)


def scan(broken: Broken, version: int) -> Steps:
    """teal_scan(): always from the first line on, which is the least fair order."""
    for line in lines_of(version):
        asked = yield load(("request", line))
        done = yield load(("ledger", line))
        if asked != done:
            return line, asked
    return None


def answer(broken: Broken, version: int, line: int, generation: int) -> Steps:
    """The task, then teal_answer()"""
    given = yield load(("input", line))
    yield act(_count, "runs the task", line, generation)
    if "the reply is stored before the output" in broken:
        yield store(("reply", line), generation, release=True)
    yield store(("output", line), given)
    if "the reply is stored before the output" not in broken:
        yield store(("reply", line), generation, release=True)
    if "the ledger is not kept" not in broken:
        yield store(("ledger", line), generation)


def _count(m: Memory, line: int, generation: int) -> None:
    m["runs", line] += 1
    if m["runs", line] > generation:
        raise BrokenError(f"generation {generation} of line {line} runs twice")


def model(broken: Broken = frozenset(), generations: tuple[int, int] = (2, 1), order: str = "tso") -> Model:
    clients = [Process(f"client {line}", client, (broken, line, generations[line])) for line in LINES]
    rest = [Process("worker", worker, (broken,), daemon=True), Process("kernel", queue, (broken,), daemon=True)]
    return Model([*clients, *rest], memory(), order=order)
