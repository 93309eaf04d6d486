"""Agents that die, freeze, raise, lie or talk: the pool goes on, answers stay right, one line says why."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import re
import signal
import threading
import time

import pytest
from agents_fixtures import alive, odd, right, until

import teal
from teal import _core
from teal.host.crew import Crew


def fell(host: teal.Host, pool: str = "default") -> str:
    """Why the agent of that pool fell last; waits until it has."""
    return str(until(lambda: [line.why for line in host.agents.audit(pool) if line.what == "fallback"][-1:])[0])


def back(host: teal.Host, pid: int, pool: str = "default") -> teal.Host:
    """Waits until another process serves."""
    until(lambda: (a := host.agents[pool]).state == "online" and a.pid not in (0, pid))
    return host


def test_killed_it_is_replaced(agent_host: teal.Host, echo: teal.Model) -> None:
    pid = agent_host.agents.start("default", "fifo").pid
    right(echo, 100)
    os.kill(pid, signal.SIGKILL)
    right(echo, 100, 100)
    assert "SIGKILL" in fell(agent_host)
    back(agent_host, pid)
    right(echo, 100, 200)
    agent = agent_host.agents["default"]
    assert agent.restarts == 1
    assert agent.seats["default"].completed > 0
    assert [line.what for line in agent_host.agents.audit()] == ["online", "fallback", "restart"]


def test_killed_at_random_points_under_load(agent_host: teal.Host, echo: teal.Model) -> None:
    chance = random.Random(5)
    agent_host.agents.start("default", "fifo")
    stop = threading.Event()

    def kill() -> None:
        while not stop.wait(chance.uniform(0.0, 0.3)):
            for agent in agent_host.agents:
                if agent.pid:
                    os.kill(agent.pid, chance.choice((signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM)))

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        start = time.monotonic()
        calls = fallen = 0
        while (passed := time.monotonic() - start) < 60.0 and (passed < 4.0 or fallen < 2):
            right(echo, 50, calls)
            calls += 50
            fallen = sum(line.what == "fallback" for line in agent_host.agents.audit())
    finally:
        stop.set()
        thread.join()
    assert fallen >= 2
    assert calls > 0


def test_frozen_it_is_replaced(agent_host: teal.Host, echo: teal.Model) -> None:
    # How long one request may wait is another bound; on a busy machine it could be the first to be noticed.
    pid = agent_host.agents.start("default", "fifo", max_wait="30s").pid
    right(echo, 20)
    os.kill(pid, signal.SIGSTOP)
    right(echo, 200, 20)  # the first of them waits until the heart is missed
    assert "heart" in fell(agent_host)
    back(agent_host, pid)
    until(lambda: not alive(pid))
    right(echo, 20, 220)


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        ("Raises", "seen enough"),
        ("RaisesInPick", "no such thing"),
        ("Nonsense", ""),
        ("ImportsLate", "import at the top of its file"),
        ("OpensLate", "a policy is locked in once it serves"),
        ("StartsAThread", "it starts no threads"),
        ("Ends", "exit status 7"),
        ("Freezes", "heart"),
        ("Eats", "MemoryError"),
    ],
)
def test_a_policy_that_fails_costs_nobody_an_answer(
    agent_host: teal.Host, echo: teal.Model, policy: str, words: str
) -> None:
    beat = "50ms" if policy == "Freezes" else "30s"  # some take long over it: who notices first is not the question
    agent_host.agents.start("default", odd(policy), max_wait="30s", heartbeat=beat, agent_memory=128 << 20)
    right(echo, 200)
    assert words in fell(agent_host)
    right(echo, 100, 200)
    agent = agent_host.agents["default"]
    assert agent.state in ("frozen", "fallen", "online")
    agent_host.agents.upgrade("default", "fifo")  # whoever mends it need not wait
    right(echo, 50)
    assert agent_host.agents["default"].state == "online"


def test_one_that_never_decides_is_put_off(agent_host: teal.Host, echo: teal.Model) -> None:
    agent_host.agents.start("default", odd("NeverPicks"), max_wait="20ms")
    right(echo, 50)
    assert "waited" in fell(agent_host)


@pytest.mark.parametrize(("policy", "falls"), [("Newest", True), ("Plain", False)])
def test_one_that_passes_a_request_over_is_put_off(agent_host: teal.Host, policy: str, falls: bool) -> None:
    """All workers are busy, so nothing waits beside an idle one; what waits longest is overtaken, or in its turn."""
    sleep = agent_host.load("sleep", "builtin:sleep")
    patience = {"max_wait": "60s", "heartbeat": "60s"}
    agent_host.agents.start("default", odd(policy), max_overtaken="50ms", **patience)
    waiting = [sleep.submit(microseconds=2000) for _ in range(8)]

    def fallen() -> bool:
        return any(line.what == "fallback" for line in agent_host.agents.audit())

    ran = 0
    while not fallen() if falls else ran < 300:
        for at, future in enumerate(waiting):
            if future.done():
                ran += 1
                waiting[at] = sleep.submit(microseconds=2000)
        assert ran < 20_000, "it is overtaken for ever"
    assert fallen() is falls
    if falls:
        assert re.search(r"a request waits while one runs that came \d+ ms after it", fell(agent_host))
    for future in waiting:
        future.result(timeout=60)


def test_a_slow_one_may_stay(agent_host: teal.Host, echo: teal.Model) -> None:
    agent_host.agents.start("default", odd("Slow"), max_wait="10s")
    right(echo, 60)
    agent = agent_host.agents["default"]
    assert (agent.state, agent.restarts) == ("online", 0)


def test_another_policy_begins_with_no_delay_of_the_one_before(agent_host: teal.Host, echo: teal.Model) -> None:
    agent_host.agents.start("default", odd("RaisesInPick"))

    def falls() -> list[float]:
        right(echo, 1)
        return [line.more["again_in_s"] for line in agent_host.agents.audit() if line.what == "fallback"]

    until(lambda: len(falls()) >= 3)
    pid = agent_host.agents.upgrade("default", "fifo", max_wait="30s", heartbeat="30s").pid
    before = falls()
    os.kill(pid, signal.SIGKILL)
    after = until(lambda: len(found := falls()) > len(before) and found)
    assert after[len(before)] == 0.1


def test_delays_double_while_it_keeps_failing(agent_host: teal.Host, echo: teal.Model) -> None:
    agent_host.agents.start("default", odd("RaisesInPick"))

    def falls() -> list[float]:
        right(echo, 1)
        return [line.more["again_in_s"] for line in agent_host.agents.audit() if line.what == "fallback"]

    until(lambda: len(falls()) >= 3)
    assert falls()[:3] == [0.1, 0.2, 0.4]


def test_what_it_prints_is_bounded(agent_host: teal.Host, echo: teal.Model, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "teal.host"):
        agent_host.agents.start("default", odd("Talks"))
        for i in range(10):
            right(echo, 50, 50 * i)
    printed = [record.getMessage() for record in caplog.records if "look at me" in record.getMessage()]
    assert 0 < len(printed) < 200
    assert all(line.isprintable() for line in printed)


def test_it_cannot_leave_its_walls(agent_host: teal.Host, echo: teal.Model) -> None:
    if not _core.walls_offered()["filter"]:
        pytest.skip("this kernel has no seccomp filters")
    agent = agent_host.agents.start("default", odd("Escapes"))
    assert agent.walls["filter"]
    assert agent.walls["missing"] == ""
    right(echo, 10)
    said = agent_host.agents.dump("default")
    assert "read a file: PermissionError" in said
    assert "write through the view: OSError" in said
    assert ": done" not in said
    with open(f"/proc/{agent.pid}/status", encoding="ascii") as status:
        text = status.read()
    assert "NoNewPrivs:\t1" in text
    assert "Seccomp:\t2" in text
    assert "CapEff:\t0000000000000000" in text
    links = [os.readlink(f"/proc/{agent.pid}/fd/{fd}") for fd in os.listdir(f"/proc/{agent.pid}/fd")]
    assert all(link.startswith(("socket:", "pipe:", "/memfd:", "/dev/null")) for link in links)
    assert sum(link.startswith("socket:") for link in links) == 1
    assert agent_host.agents["default"].state == "online"


def test_sigusr1_writes_its_state_to_the_log(
    agent_host: teal.Host, echo: teal.Model, caplog: pytest.LogCaptureFixture
) -> None:
    agent = agent_host.agents.start("default", odd("Tuned"))
    right(echo, 10)
    with caplog.at_level(logging.INFO, "teal.host"):
        os.kill(agent.pid, signal.SIGUSR1)
        until(lambda: any("pause 3, sweet" in record.getMessage() for record in caplog.records))
    assert agent_host.agents["default"].state == "online"


def test_the_hosts_end_is_its_end() -> None:
    with teal.Host(policy="fifo") as host:
        pid = host.agents["default"].pid
    assert not alive(pid)


def test_workers_that_die_are_told_of_the_seat(agent_host: teal.Host, echo: teal.Model) -> None:
    agent_host.agents.start("default", "fifo")
    right(echo, 50)
    for worker in agent_host.statistics().workers:
        if worker.pool == "default":
            os.kill(worker.pid, signal.SIGKILL)
    until(lambda: agent_host.statistics().restarts >= 2)
    right(echo, 100)
    until(lambda: all(w.state not in ("absent", "starting") for w in agent_host.statistics().workers))
    before = agent_host.agents["default"].seats["default"].completed
    right(echo, 100)
    assert agent_host.agents["default"].seats["default"].completed > before


@pytest.mark.parametrize("policy", ["Scribbles", "Forges"])
def test_a_liar_changes_no_answer(agent_host: teal.Host, echo: teal.Model, policy: str) -> None:
    agent_host.agents.start("default", odd(policy))
    for i in range(20):
        right(echo, 50, 50 * i)
    if policy == "Forges":
        assert fell(agent_host)
    agent_host.agents.upgrade("default", "fifo")
    right(echo, 200)
    assert agent_host.statistics().restarts == 0  # no worker of ours minded
    assert agent_host.agents["default"].seats["default"].bugs == 0


def test_a_newcomer_that_dies_at_the_last_moment(
    agent_host: teal.Host, echo: teal.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All was ready, and only its decisions did not count yet: the one that serves goes on, and nothing is lost."""
    old = agent_host.agents.start("default", "fifo").pid
    right(echo, 5)
    sit = Crew.sit

    async def dies(crew: Crew) -> None:
        await sit(crew)
        crew.process.signal(signal.SIGKILL)
        while not crew.process.gone:
            await asyncio.sleep(0)

    monkeypatch.setattr(Crew, "sit", dies)
    with pytest.raises(teal.PeerDied):
        agent_host.agents.upgrade("default", "edf")
    monkeypatch.undo()
    agent = agent_host.agents["default"]
    assert (agent.pid, agent.state, agent.policies) == (old, "online", ("fifo",))
    right(echo, 20)
    assert agent_host.agents.upgrade("default", "edf").pid != old
    right(echo, 5)
