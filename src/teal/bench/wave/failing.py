"""An agent that dies or freezes under load, and one that is replaced under load.

Here the agent is a process of its own, as `teal serve --policy` starts it, on the second core; the load shares that
core with it and sleeps between its looks, so that the agent has most of it. Requests take 10 µs each.

- Death: the load keeps 64 requests out, the agent is killed (SIGKILL) or frozen (SIGSTOP) at a time that is drawn. The
  gap is the longest time from one end to the next in the whole run; the worse of the two ways is judged, in the worst
  of all tries.
- Upgrade: the load comes at 30 % of what the worker could do, the agent is replaced meanwhile. The delay is the longest
  latency, from the intended arrival, of a request that came between 10 ms before the upgrade was asked for and 50 ms
  after it was done.
"""

from __future__ import annotations

import base64
import os
import random
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from teal.bench.lanes import Lane
from teal.bench.report import Promise
from teal.bench.rivals import lane as lanes

from . import loads, seating
from .driver import Driver
from .mode import Mode
from .stage import SEED, Stage

PROMISES = {
    "wave.fallback.gap_ms": Promise(51, "lower", "ms"),
    "wave.upgrade.max_delay_ms": Promise(5, "lower", "ms"),
    "wave.upgrade.lost": Promise(0, "lower", "requests"),
}
WAYS = {"killed": signal.SIGKILL, "frozen": signal.SIGSTOP}
NAP_NS = 20_000
AROUND_NS = (10_000_000, 50_000_000)  # before an upgrade was asked for, after it was done
PATIENCE = 60.0  # seconds for an agent to come back
SHARE = 0.3
PLAIN = Mode("an agent of its own")


class Doomed:
    """A host whose agent is a process of its own, and the load."""

    def __init__(self, worker_core: int, own_core: int, link: str) -> None:
        self._driver = Driver("", worker_core, own_core)
        self._agents = seating.agents(self._driver.host)
        self._load = loads.exponential()
        self._driver.prepare(self._load)
        self._link, self._own_core = link, own_core
        self._frozen = 0
        self._start()

    def close(self) -> None:
        self._end_frozen()
        self._driver.close()

    def _start(self) -> None:
        self._agents.start("default", "fifo", link=self._link, agent_core=self._own_core)

    def _end_frozen(self) -> None:
        if self._frozen:
            with suppress(ProcessLookupError):
                os.kill(self._frozen, signal.SIGKILL)
        self._frozen = 0

    def _anew(self) -> None:
        """An agent that has never fallen: the host starts one again ever later, and the next try is not to wait so."""
        self._agents.stop("default")
        self._end_frozen()
        self._start()

    def _under_load(self, n: int, seed: int, rate: float | None, meanwhile: Callable[[], Any]) -> tuple[Any, Any]:
        """What came of the load, and of what was done meanwhile."""
        found: list[dict[str, Any]] = []
        arrivals = loads.draw(self._load, n, seed, rate)
        thread = threading.Thread(
            target=lambda: found.append(self._driver.send(PLAIN, self._load, arrivals, 64, NAP_NS))
        )
        thread.start()
        try:
            done = meanwhile()
        finally:
            thread.join()
        return found[0], done

    def death(self, way: str, n: int, seed: int, after: float) -> dict[str, Any]:
        """The agent dies `after` seconds into n requests at saturation. Returns when another one serves."""
        pid = self._agents["default"].pid

        def strike() -> int:
            time.sleep(after)
            self._frozen = pid
            os.kill(pid, WAYS[way])
            return time.monotonic_ns()

        found, struck = self._under_load(n, seed, None, strike)
        until = time.monotonic() + PATIENCE
        while (agent := self._agents["default"]).state != "online" or agent.pid == pid:
            if time.monotonic() > until:
                raise RuntimeError(f"no agent serves {PATIENCE:.0f} s after the last one was {way}: {agent.why}")
            time.sleep(0.02)
        why = self._agents["default"].why
        self._anew()
        return packed(found) | {"struck_ns": struck - found["started_ns"], "why": why}

    def upgrade(self, n: int, seed: int, rate: float, after: float) -> dict[str, Any]:
        """The agent is replaced `after` seconds into n requests at a rate."""

        def replace() -> tuple[int, int]:
            time.sleep(after)
            asked = time.monotonic_ns()
            self._agents.upgrade("default")
            return asked, time.monotonic_ns()

        found, (asked, done) = self._under_load(n, seed, rate, replace)
        start = found["started_ns"]
        return packed(found) | {"asked_ns": asked - start, "done_ns": done - start}


def packed(found: dict[str, Any]) -> dict[str, Any]:
    return found | {name: base64.b64encode(found[name]).decode() for name in ("latency_ns", "ended_ns")}


def column(found: dict[str, Any], name: str) -> NDArray[np.uint64]:
    return np.frombuffer(base64.b64decode(found[name]), np.uint64)


def longest_gap_ms(ended_ns: NDArray[np.uint64]) -> float:
    """The longest time from one end to the next."""
    return float(np.diff(np.sort(ended_ns)).max()) / 1e6


def delay_ms(arrived_ns: NDArray[Any], latency_ns: NDArray[Any], asked_ns: int, done_ns: int) -> float:
    """The longest latency of those that came around an upgrade."""
    around = (arrived_ns >= max(0, asked_ns - AROUND_NS[0])) & (arrived_ns <= done_ns + AROUND_NS[1])
    return float(latency_ns[around].max()) / 1e6


def measure(stage: Stage) -> None:
    config = {"worker_core": stage.cores.host, "own_core": stage.cores.agent, "link": "shm"}
    with stage.environment.lane("teal.bench.wave.failing", config) as lane:
        deaths(stage, lane)
        upgrades(stage, lane)


def deaths(stage: Stage, lane: Lane) -> None:
    numbers, gaps = random.Random(SEED), {way: list[float]() for way in WAYS}
    n = int(0.6e6 / loads.EXPONENTIAL_US)
    for number in range(stage.plan.deaths):
        for way in WAYS:
            stage.say(f"agent {way}, {number + 1} of {stage.plan.deaths}")
            found = lane.ask("death", way=way, n=n, seed=SEED + number, after=numbers.uniform(0.15, 0.3))
            if found["failed"]:
                raise RuntimeError(f"{found['failed']} requests failed when the agent was {way}: {found['failure']}")
            gaps[way].append(longest_gap_ms(column(found, "ended_ns")))
    for way in WAYS:
        samples = [round(gap * 1e6) for gap in gaps[way]]
        stage.report.add(f"agent {way}: longest gap", "failing", samples, f"{n:,} requests at saturation each time")
    worst = {way: max(gaps[way]) for way in WAYS}
    note = ", ".join(f"{way} {worst[way]:.1f} ms" for way in WAYS)
    stage.report.judge("wave.fallback.gap_ms", max(worst.values()), note=f"worst of {stage.plan.deaths} each: {note}")


def upgrades(stage: Stage, lane: Lane) -> None:
    rate, delays, lost = SHARE * 1e6 / loads.EXPONENTIAL_US, [], 0
    n = int(rate * 3)
    for number in range(stage.plan.deaths):
        stage.say(f"upgrade {number + 1} of {stage.plan.deaths}")
        found = lane.ask("upgrade", n=n, seed=SEED + number, rate=rate, after=0.3)
        lost += int(found["failed"])
        arrived = loads.draw(loads.exponential(), n, SEED + number, rate).at_ns
        latency = column(found, "latency_ns")
        ended = latency != np.iinfo(np.uint64).max
        delays.append(delay_ms(arrived[ended], latency[ended], found["asked_ns"], found["done_ns"]))
    samples = [round(delay * 1e6) for delay in delays]
    stage.report.add("upgrade: longest latency", "failing", samples, f"{n:,} requests at {SHARE:.0%} load each time")
    note = f"worst of {len(delays)}; the new agent begins on the core that the old one and the load share"
    stage.report.judge("wave.upgrade.max_delay_ms", max(delays), note=note)
    stage.report.judge("wave.upgrade.lost", lost, note=f"of {n * len(delays):,} requests")


def client(config: dict[str, Any]) -> lanes.Contender:
    """config: worker_core, own_core, link."""
    doomed = Doomed(config["worker_core"], config["own_core"], config["link"])
    return lanes.Contender(questions={"death": doomed.death, "upgrade": doomed.upgrade}, close=doomed.close)


if __name__ == "__main__":
    lanes.main(client)
