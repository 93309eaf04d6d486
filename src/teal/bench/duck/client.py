"""Teal's client of ducks as a lane: the calls of the public API that `teal bench duck` times.

Every use of the API lies in one of the small functions below, so that what is timed can be read off.
"""

from __future__ import annotations

import hashlib
import time
from array import array
from collections.abc import Callable
from typing import Any

import numpy as np

import teal
import teal._core as teal_core
from teal.bench.rivals import lane, work

ROUTES = ("shm", "udp", "keyed", "tcp")


class Caller:
    """Connections and sessions, each made when it is first wanted."""

    def __init__(self, config: dict[str, Any]) -> None:
        self._at = config["addresses"]
        self._programs = config["programs"]
        self._ducks: dict[str, Any] = {}
        self._sessions: dict[tuple[str, str, int], Any] = {}

    def duck(self, route: str) -> Any:
        """shm: this machine's memory; udp: without a key; keyed and tcp: with."""
        if route not in self._ducks:
            key = self._at["key"] if route in ("keyed", "tcp") else None
            address = self._at["local"] if route == "shm" else self._at["udp" if route == "udp" else "keyed"]
            self._ducks[route] = teal.Duck(address, key=key, tcp=route == "tcp")
        return self._ducks[route]

    def session(self, route: str, program: str = "echo", cores: int = 1) -> Any:
        if (route, program, cores) not in self._sessions:
            opened = self.duck(route).open(self._programs[program], cores=cores, args="64KiB", ob="8MiB")
            self._sessions[route, program, cores] = opened
        return self._sessions[route, program, cores]

    def close(self) -> None:
        for session in self._sessions.values():
            session.close()
        for duck in self._ducks.values():
            duck.close()

    # ---- variants ----------------------------------------------------------------------------------------------------

    def plain(self, route: str) -> lane.Variant:
        """session.call(bytes)."""
        session, data = self.session(route), work.payload(work.SMALL)
        return lane.Variant(lambda: session.call(data), lambda: bytes(session.call(data)))

    def prepared(self, route: str) -> lane.Variant:
        """A prepared call: the arguments lie in place."""
        call = self.session(route).prepare(work.SMALL)
        np.asarray(call.args)[:] = np.frombuffer(work.payload(work.SMALL), np.uint8)
        return lane.Variant(call, lambda: bytes(call()))

    def rows(self, cores: int, nbytes: int, columns: int) -> lane.Variant:
        """GEMV over an input buffer of so many bytes."""
        session = self.session("shm", "gemv", cores)
        weights = self.weights(nbytes)
        session.map(weights)
        x = np.linspace(-1, 1, columns, dtype=np.float32)
        return lane.Variant(lambda: session.call(x), lambda: bytes(session.call(x)[:4096]), alive=weights)

    def weights(self, nbytes: int) -> Any:
        if not hasattr(self, "_weights"):
            self._weights = self.duck("shm").empty(nbytes // 4, "float32")
            whole = self._weights.numpy()
            whole[:] = np.resize(np.arange(-8, 9, dtype=np.float32), whole.shape)
        return self._weights

    # ---- questions ---------------------------------------------------------------------------------------------------

    def maps(self, nbytes: int, rounds: int) -> dict[str, Any]:
        """Maps input buffers of so many bytes in turn: ns of each first and of each later time, and what was copied."""
        duck = self.duck("shm")
        session = self.session("shm")
        buffers = [duck.empty(nbytes) for _ in range(2)]
        first, again = array("q"), array("q")
        for number in range(2 + rounds):
            start = time.perf_counter_ns()
            session.map(buffers[number % 2])
            (first if number < 2 else again).append(time.perf_counter_ns() - start)
        copies = session.statistics().ib_copies
        session.map(None)
        return {"first": lane.encode(first), "again": lane.encode(again), "copies": copies}

    def sends(self, route: str, nbytes: int, rounds: int) -> dict[str, Any]:
        """Sends blobs of so many bytes to a duck: ns of each, and the bytes that crossed when they were sent again."""
        duck, taken, seed = self.duck(route), array("q"), time.time_ns()
        data = b""
        for number in range(rounds):
            block = hashlib.sha256(f"{seed} {number}".encode()).digest() * 128
            data = (block * (nbytes // len(block) + 1))[:nbytes]
            start = time.perf_counter_ns()
            duck.put(data)
            taken.append(time.perf_counter_ns() - start)
        before = duck.statistics()["client"]["sent_bytes"]
        duck.put(data)
        return {"ns": lane.encode(taken), "again": duck.statistics()["client"]["sent_bytes"] - before}

    def story(self, ways: list[str], nbytes: int, columns: int, calls: int) -> str:
        """GEMV calls with some of the judge's ways (story.py): process, copy, flush, sleep; ns each."""
        duck, taken = self.duck("shm"), array("q")
        weights = self.weights(nbytes)
        x = np.linspace(-1, 1, columns, dtype=np.float32)
        idle = "0ms" if "sleep" in ways else "10ms"
        session = None if "process" in ways else self._story_session(idle)
        if session is not None and "copy" not in ways:
            session.map(weights)
        for number in range(calls + 1):
            start = time.perf_counter_ns()
            used = session or duck.open(self._programs["gemv"], args="64KiB", ob="8MiB", idle=idle)
            if "copy" in ways:
                used.map(weights.numpy().tobytes())
            if "sleep" in ways:
                future = used.submit(x)
                while not future.done():
                    time.sleep(0.001)
                future.result()
            else:
                used.call(x)
            if "flush" in ways:
                teal_core.flush_lines(weights.numpy())
                teal_core.flush_lines(used.ob.numpy())
            if session is None:
                used.close()
            if number:
                taken.append(time.perf_counter_ns() - start)
        return lane.encode(taken)

    def _story_session(self, idle: str) -> Any:
        if ("story", idle, 1) not in self._sessions:
            opened = self.duck("shm").open(self._programs["gemv"], args="64KiB", ob="8MiB", idle=idle)
            self._sessions["story", idle, 1] = opened
        return self._sessions["story", idle, 1]

    def first_after(self, route: str, pause: float, rounds: int) -> str:
        """The first call after a pause, so many times; ns."""
        call, taken = self.session(route).prepare(work.SMALL), array("q")
        for _ in range(rounds):
            call()
            time.sleep(pause)
            start = time.perf_counter_ns()
            call()
            taken.append(time.perf_counter_ns() - start)
        return lane.encode(taken)


def _variant(make: Callable[..., lane.Variant], *args: Any) -> Callable[[], lane.Variant]:
    return lambda: make(*args)


def client(config: dict[str, Any]) -> lane.Contender:
    """config: core; addresses (those of server.py), programs (name -> path), gemv ([bytes, columns], optional)."""
    caller = Caller(config)
    variants = {f"{route} plain": _variant(caller.plain, route) for route in ROUTES}
    variants |= {f"{route} prepared": _variant(caller.prepared, route) for route in ROUTES}
    for cores in (1, 2):
        variants[f"gemv {cores}"] = _variant(caller.rows, cores, *config.get("gemv", (1 << 20, 1024)))
    return lane.Contender(
        variants=variants,
        questions={
            "maps": caller.maps,
            "sends": caller.sends,
            "first_after": caller.first_after,
            "story": caller.story,
        },
        note="teal.Duck, one session",
        close=caller.close,
    )


if __name__ == "__main__":
    lane.main(client)
