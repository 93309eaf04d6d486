"""Several agents of one pool: each decides for workers of its own, requests are dealt, and one that fails leaves only
its workers to the pool's order."""

from __future__ import annotations

import os
import random
import signal
import uuid
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from agents_fixtures import alive, odd, right, until

import teal

PATIENCE = {"heartbeat": "30s", "max_wait": "30s"}


@pytest.fixture
def host() -> Iterator[teal.Host]:
    """With four workers."""
    with teal.Host(f"agents-{uuid.uuid4().hex[:12]}", workers=4) as host:
        yield host


@pytest.fixture
def echo(host: teal.Host) -> teal.Model:
    return host.load("echo", "builtin:identity")


def seats(host: teal.Host) -> list[teal.SeatStatistics]:
    return [agent.seats["default"] for agent in host.agents.of("default")]


def test_each_decides_for_its_own_workers(host: teal.Host, echo: teal.Model) -> None:
    first = host.agents.start("default", "fifo", agents=2, **PATIENCE)
    both = host.agents.of("default")
    assert [agent.workers for agent in both] == [(0, 2), (1, 3)]
    assert (both[0].pid, both[0].parts, both[1].part) == (first.pid, 2, 1)
    assert both[0].pid != both[1].pid
    spin = host.load("spin", "builtin:spin")
    spins = [spin.submit(np.int64(200)) for _ in range(40)]
    right(echo, 400)
    assert all(int(future.result()[0].numpy()) >= 200_000 for future in spins)
    until(lambda: all(seat.queued == 0 and seat.runnable == 0 for seat in seats(host)))
    assert all(seat.completed > 20 for seat in seats(host))
    # What one took over from the other was told to both.
    assert sum(seat.completed + seat.local for seat in seats(host)) == 440
    assert all(seat.bugs == 0 for seat in seats(host))
    assert len(host.statistics().workers) == 4
    host.agents.stop("default")
    assert len(host.agents) == 0
    right(echo, 50)


def test_nobody_is_neglected_beside_workers_that_are_all_busy(host: teal.Host) -> None:
    """A request may wait longer than max_wait where no worker has nothing to do, whoever it was dealt to."""
    spin = host.load("spin", "builtin:spin")
    host.agents.start("default", "fifo", agents=2, heartbeat="30s", max_wait="50ms")
    for future in [spin.submit(np.int64(300_000)) for _ in range(8)]:
        future.result()
    assert [(agent.state, agent.fallbacks, agent.why) for agent in host.agents.of("default")] == [("online", 0, "")] * 2


def test_one_that_dies_leaves_the_other_alone(host: teal.Host, echo: teal.Model) -> None:
    host.agents.start("default", "fifo", agents=2, **PATIENCE)
    one, other = host.agents.of("default")
    right(echo, 100)
    os.kill(one.pid, signal.SIGKILL)
    right(echo, 400, 100)
    until(lambda: (a := host.agents.of("default")[0]).state == "online" and a.pid not in (0, one.pid))
    now, same = host.agents.of("default")
    assert (now.restarts, now.fallbacks, same.pid, same.fallbacks) == (1, 1, other.pid, 0)
    (fell,) = [line for line in host.agents.audit() if line.what == "fallback"]
    assert fell.more["workers"] == [0, 2]
    right(echo, 200, 500)
    until(lambda: seats(host)[0].completed > 0)
    assert seats(host)[1].bugs == 0


def test_an_upgrade_goes_from_one_to_the_next(host: teal.Host, echo: teal.Model) -> None:
    host.agents.start("default", "fifo", agents=3, **PATIENCE)
    before = {agent.pid for agent in host.agents.of("default")}
    host.agents.upgrade("default", odd("Plain"))
    after = host.agents.of("default")
    assert len(before) == 3
    assert not before & {agent.pid for agent in after}
    assert all(agent.policies[0].endswith("Plain") and agent.state == "online" for agent in after)
    until(lambda: not any(map(alive, before)))
    right(echo, 100)
    assert [agent.workers for agent in after] == [(0, 3), (1,), (2,)]
    assert host.agents.set("default", poll="sleep")["poll"] == "sleep"
    assert all(seat.settings["poll"] == "sleep" for seat in seats(host))


def test_requests_that_leave_stay_with_their_worker(host: teal.Host, echo: teal.Model) -> None:
    host.agents.start("default", "shinjuku:quantum=50us", agents=2, **PATIENCE)
    spin = host.load("spin", "builtin:spin")
    long = [spin.submit(np.int64(5_000)) for _ in range(12)]
    right(echo, 300)
    assert all(int(future.result()[0].numpy()) >= 5_000_000 for future in long)
    assert sum(seat.preempted for seat in seats(host)) > 0
    until(lambda: all(seat.queued == 0 and seat.runnable == 0 for seat in seats(host)))
    assert all(seat.bugs == 0 and seat.errors == 0 for seat in seats(host))


def test_whoever_dies_nothing_is_lost(host: teal.Host, echo: teal.Model) -> None:
    """Agents, workers and both at once, while some are away on their worker; each answer comes, and is its own."""
    chance = random.Random(9)
    spin = host.load("spin", "builtin:spin")
    host.agents.start("default", "shinjuku:quantum=100us", agents=2, **PATIENCE)
    for i in range(12):
        spins = [spin.submit(np.int64(500)) for _ in range(6)]
        futures = [echo.submit(np.full(4, k)) for k in range(100)]
        workers = [worker.pid for worker in host.statistics().workers]
        agents = [agent.pid for agent in host.agents]
        doomed = chance.choice(([chance.choice(workers)], [chance.choice(agents)], [workers[0], agents[1]]))
        for pid in filter(None, doomed):  # 0: it is being replaced
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        assert all((np.asarray(future.result()) == k).all() for k, future in enumerate(futures)), i
        assert all(int(future.result()[0].numpy()) >= 500_000 for future in spins)
    until(lambda: all(agent.state == "online" for agent in host.agents))
    right(echo, 200)
    until(lambda: all(seat.queued == 0 and seat.runnable == 0 for seat in seats(host)))
    assert all(seat.bugs == 0 for seat in seats(host))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"agents": 5}, "expected 1 to 4"),
        ({"agents": 2, "agent_core": 0}, "one core for each"),
        ({"agent_core": [0, 0]}, "different"),
    ],
)
def test_what_makes_no_sense(host: teal.Host, options: dict[str, Any], words: str) -> None:
    with pytest.raises(teal.InvalidArgument, match=words):
        host.agents.start("default", "fifo", **options)
    assert len(host.agents) == 0


def test_one_that_cannot_come_takes_the_others_along(host: teal.Host, echo: teal.Model) -> None:
    with pytest.raises(teal.InvalidArgument, match="colour"):
        host.agents.start("default", "fifo:colour=blue", agents=2)
    assert len(host.agents) == 0
    right(echo, 20)
    host.agents.start("default", "fifo", agents=2)
    with pytest.raises(teal.Busy):
        host.agents.start("default", "fifo")
    with pytest.raises(teal.InvalidArgument, match="or stop them"):
        host.agents.upgrade("default", agents=3)
    right(echo, 20)


def test_more_agents_than_workers() -> None:
    with pytest.raises(teal.InvalidArgument, match="each needs one"), teal.Host(workers=1, policy="fifo", agents=2):
        pass


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_one_a_core() -> None:
    cores = sorted(os.sched_getaffinity(0))[:2]
    with teal.Host(workers=2, policy="fifo", agent_core=cores) as host:
        echo = host.load("echo", "builtin:identity")
        both = host.agents.of("default")
        assert [agent.core for agent in both] == cores
        assert [os.sched_getaffinity(agent.pid) for agent in both] == [{core} for core in cores]
        right(echo, 50)
