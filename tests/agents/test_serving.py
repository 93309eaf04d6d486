"""Agents that serve: answers stay right, settings change, upgrades lose nothing, and everything is given back."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from agents_fixtures import alive, odd, right, until

import teal


@pytest.mark.parametrize("policy", ["fifo", "edf", "shinjuku:quantum=1ms", "Plain"])
def test_answers_come_through_an_agent(agent_host: teal.Host, echo: teal.Model, policy: str) -> None:
    text = odd(policy) if policy == "Plain" else policy
    started = agent_host.agents.start("default", text)
    assert (started.state, started.pools, started.restarts) == ("online", ("default",), 0)
    right(echo, 300)
    seat = agent_host.agents["default"].seats["default"]
    assert seat.active
    assert seat.completed + seat.local == 300
    assert seat.completed > 0
    assert seat.bugs == 0
    assert agent_host.agents["default"].state == "online"


def test_its_stages_are_counted(agent_host: teal.Host, echo: teal.Model) -> None:
    agent_host.agents.start("default", "fifo")
    right(echo, 200)
    seat = until(lambda: (s := agent_host.agents["default"].seats["default"]).stages["done"].count >= s.completed and s)
    for stage in ("message", "decision", "commit", "run"):
        assert seat.stages[stage].count == seat.completed, stage
    assert seat.staleness.count >= seat.completed
    assert seat.events >= 400
    assert 0.0 <= seat.hit_rate <= 1.0


def test_who_left_in_the_middle_is_counted() -> None:
    """A known sequence: first nobody else wants the worker, then two take turns."""
    told, numbers = until(_turns)
    assert told.preempted == numbers.preemptions > 0
    assert told.yielded == 0
    assert told.asked <= told.preempted
    assert told.stages["decision"].count == told.stages["commit"].count == told.completed == 3 + told.preempted
    assert told.stages["message"].count == told.stages["run"].count == 3
    assert 1 <= told.stages["start"].count <= 2  # not of those that left
    assert told.hit_rate == told.hits / (told.hits + told.misses)
    assert told.staleness.count == told.hits == told.completed
    assert {"quantum": "100us", "by": "model", "slo": "1ms"}.items() <= told.settings.items()


def _turns() -> Any:
    """Nothing where its agent fell meanwhile, as on a machine that is too busy."""
    with teal.Host(policy="shinjuku:quantum=100us") as host:
        slow = host.load("slow", "builtin:spin")

        def ended(count: int) -> Any:
            while (agent := host.agents["default"]).fallbacks == 0:
                if agent.seats["default"].stages["done"].count == count:
                    return agent
            return None

        slow(np.int64(2_000))
        if (agent := ended(1)) is None:
            return None
        seat = agent.seats["default"]
        assert (seat.preempted, seat.stages["start"].count, seat.completed) == (0, 1, 1)
        futures = [slow.submit(np.int64(20_000)) for _ in range(2)]
        for future in futures:
            future.result()
        agent = ended(3)
        return None if agent is None else (agent.seats["default"], slow.statistics())


def test_a_pools_settings_bring_their_agent() -> None:
    with teal.Host(policy="fifo", pools={"fast": {"policy": "edf"}, "bare": {"policy": ""}}) as host:
        assert {agent.pools: agent.policies for agent in host.agents} == {("default",): ("fifo",), ("fast",): ("edf",)}
        with pytest.raises(teal.NotFound, match="no agent"):
            host.agents["bare"]
        model = host.load("echo", "builtin:identity", pool="fast")
        right(model, 50)
        assert host.agents["fast"].seats["fast"].completed > 0


def test_a_policy_that_cannot_be_made_is_said(agent_host: teal.Host, tmp_path: Path) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text("class Broken(:\n")
    before = threading.active_count()
    for text, words in (
        (f"{broken}:Broken", "SyntaxError"),
        (f"{tmp_path}/none.py:Broken", "no such file"),
        ("no.such.module:Policy", "no.such.module"),
        ("fastest", "fastest"),
        ("shinjuku:quantum=soon", "quantum"),
        ("fifo:colour=blue", "colour"),
        (f"{odd('Plain')}:colour=blue", "colour"),
    ):
        with pytest.raises((teal.InvalidArgument, teal.NotFound), match=words):
            agent_host.agents.start("default", text)
    assert len(agent_host.agents) == 0
    assert {line.what for line in agent_host.agents.audit()} <= {"refused"}
    assert threading.active_count() == before
    with pytest.raises(teal.InvalidArgument, match="SyntaxError"):
        teal.Host(policy=f"{broken}:Broken")


def test_settings_change_while_it_serves(agent_host: teal.Host, echo: teal.Model) -> None:
    agent_host.agents.start("default", odd("Tuned", pause=5))
    right(echo, 20)
    now = agent_host.agents.set("default", pause=9, taste="sour")
    assert (now["pause"], now["taste"]) == ("9", "sour")
    assert "pause 9, sour" in agent_host.agents.dump("default")
    with pytest.raises(teal.InvalidArgument):
        agent_host.agents.set("default", pause="nine")
    with pytest.raises(teal.InvalidArgument, match="colour"):
        agent_host.agents.set("default", colour="blue")
    right(echo, 20)
    assert [line.why for line in agent_host.agents.audit("default") if line.what == "changed"] == [
        "pause=9, taste=sour"
    ]
    pid = agent_host.agents["default"].pid
    os.kill(pid, signal.SIGKILL)
    until(lambda: (a := agent_host.agents["default"]).state == "online" and a.pid != pid)
    assert "pause 9, sour" in agent_host.agents.dump("default")  # the one that took its place was told too


_CHANGES = [
    ("fifo-per-worker", {"steal": "0"}, {"steal": "no"}, {"steal": "perhaps"}),
    ("edf", {"deadline": "2ms", "deadline.echo": "1ms"}, {"deadline": "3ms"}, {"deadline": "soon"}),
    ("fair", {"weight": "2", "weight.echo": "0.5", "by": "session"}, {"by": "model"}, {"weight": "0"}),
    ("shinjuku", {"quantum": "20us", "slo": "2ms", "slo.echo": "100us"}, {"quantum": "50us"}, {"quantum": "1ns"}),
    ("composite:part.a=fifo,part.b=edf,else=b", {"to.echo": "a"}, {"else": "a"}, {"else": "c"}),
]


@pytest.mark.parametrize(("policy", "new", "then", "wrong"), _CHANGES, ids=lambda value: str(value)[:9])
def test_each_policys_settings_change_while_it_serves(
    agent_host: teal.Host,
    echo: teal.Model,
    policy: str,
    new: dict[str, str],
    then: dict[str, str],
    wrong: dict[str, str],
) -> None:
    agent_host.agents.start("default", policy)
    right(echo, 20)
    now = agent_host.agents.set("default", **new)
    assert new.items() <= now.items()
    right(echo, 20)
    now = agent_host.agents.set("default", **then)
    right(echo, 20)
    with pytest.raises(teal.InvalidArgument, match=next(iter(wrong)).partition(".")[0]):
        agent_host.agents.set("default", **{**new, **wrong, "colour": "blue"})
    agent = agent_host.agents["default"]
    assert agent.seats["default"].settings == now  # all or none
    assert all(f"{name}={value}" in agent.policies[0] for name, value in ({**new, **then}).items())
    right(echo, 20)


class Load(threading.Thread):
    """Calls one after the other until stopped; keeps what went wrong."""

    def __init__(self, host: teal.Host, model: str) -> None:
        super().__init__()
        self._address = host.address
        self._model = model
        self.stopped = threading.Event()
        self.calls = 0
        self.errors: list[BaseException] = []

    def run(self) -> None:
        try:
            with teal.connect(self._address) as host:
                model = host.model(self._model)
                while not self.stopped.is_set():
                    right(model, 8, self.calls)
                    self.calls += 8
        except BaseException as error:
            self.errors.append(error)


@pytest.fixture
def load(agent_host: teal.Host, echo: teal.Model) -> Iterator[Load]:
    thread = Load(agent_host, echo.info.name)
    thread.start()
    yield thread
    thread.stopped.set()
    thread.join()
    assert thread.errors == []


def test_upgrades_under_load_lose_nothing(agent_host: teal.Host, load: Load) -> None:
    agent_host.agents.start("default", "fifo", heartbeat="30s", max_wait="30s")
    pids = [agent_host.agents["default"].pid]
    for policy in ("edf", odd("Plain"), None, "shinjuku"):
        before = load.calls
        upgraded = agent_host.agents.upgrade("default", policy)
        pids.append(upgraded.pid)
        until(lambda before=before: load.calls > before or load.errors)
    agent = agent_host.agents["default"]
    assert (agent.state, agent.policies, agent.upgrades, agent.restarts) == ("online", ("shinjuku",), 4, 0)
    assert len(set(pids)) == 5
    until(lambda: not any(alive(pid) for pid in pids[:-1]))
    assert [line.what for line in agent_host.agents.audit()] == ["online"] + ["upgraded"] * 4


def test_an_upgrade_that_fails_changes_nothing(agent_host: teal.Host, echo: teal.Model, load: Load) -> None:
    agent_host.agents.start("default", "fifo")
    pid = agent_host.agents["default"].pid
    with pytest.raises(teal.InvalidArgument):
        agent_host.agents.upgrade("default", "fifo:colour=blue")
    agent = agent_host.agents["default"]
    assert (agent.pid, agent.state, agent.policies) == (pid, "online", ("fifo",))
    right(echo, 20)


def test_one_agent_for_several_pools_shares_its_process(pools_host: teal.Host) -> None:
    echo, other = pools_host.model("echo"), pools_host.model("other")
    agent = pools_host.agents.start(["default", "other"], odd("Counts"))
    assert set(agent.seats) == {"default", "other"}
    right(echo, 60)
    right(other, 40)
    assert all(seat.completed > 0 for seat in pools_host.agents["other"].seats.values())
    assert pools_host.agents.dump("default").splitlines()[-1] == pools_host.agents.dump("other").splitlines()[-1]
    assert "together 100" in pools_host.agents.dump("other")
    with pytest.raises(teal.Busy, match="has an agent already"):
        pools_host.agents.start("other", "fifo")
    pools_host.agents.stop("other")
    assert len(pools_host.agents) == 0
    right(echo, 10)
    right(other, 10)


def test_two_policies_in_one_process(pools_host: teal.Host) -> None:
    echo, other = pools_host.model("echo"), pools_host.model("other")
    agent = pools_host.agents.start("default,other", ["fifo", "edf"])
    assert agent.policies == ("fifo", "edf")
    right(echo, 50)
    right(other, 50)
    with pytest.raises(teal.InvalidArgument, match="policies for"):
        pools_host.agents.upgrade("default", ["fifo", "edf", "fair"])


def test_one_agent_a_core(pools_host: teal.Host) -> None:
    core = min(os.sched_getaffinity(0))
    agent = pools_host.agents.start("default", "fifo", agent_core=core)
    assert os.sched_getaffinity(agent.pid) == {core}
    assert agent.place == "offload"
    with pytest.raises(teal.Busy, match=f"core {core} has the agent"):
        pools_host.agents.start("other", "fifo", agent_core=core)
    pools_host.agents.start("other", "fifo", placement="host")
    assert pools_host.agents["other"].place == "host"
    assert pools_host.agents.upgrade("default").core == core


def test_stopping_gives_everything_back(agent_host: teal.Host, echo: teal.Model) -> None:
    right(echo, 10)

    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))

    workers = [worker.pid for worker in agent_host.statistics().workers]

    def of_workers() -> list[int]:
        return [len(os.listdir(f"/proc/{pid}/fd")) for pid in workers]

    agent_host.agents.start("default", "fifo")
    right(echo, 10)
    agent_host.agents.stop("default")
    gc.collect()  # what other tests left to it
    before, before_workers = descriptors(), of_workers()
    for _ in range(3):
        pid = agent_host.agents.start("default", "fifo").pid
        right(echo, 50)
        agent_host.agents.upgrade("default", "edf")
        right(echo, 50)
        agent_host.agents.stop("default")
        assert not alive(pid)
    assert descriptors() <= before
    until(lambda: of_workers() == before_workers)
    right(echo, 10)


def test_numbers_for_programs(agent_host: teal.Host, echo: teal.Model) -> None:
    agent_host.start_agent("default", "fifo")
    right(echo, 10)
    assert "default" in agent_host.agents
    assert "other" not in agent_host.agents
    assert [line.what for line in agent_host.agents.audit("default")] == ["online"]
    assert np.isfinite(agent_host.agents["default"].served_s)


def test_policies_know_models_by_name(agent_host: teal.Host, echo: teal.Model) -> None:
    agent_host.agents.start("default", odd("Names"))
    later = agent_host.load("later", "builtin:identity")
    right(echo, 10)
    right(later, 10)
    said = agent_host.agents.dump("default")
    assert "seen echo later" in said
    assert said.split("clients ")[1].split() == [f"{os.getuid()}/{os.getpid()}"]  # one that came before the agent


def test_policies_know_clients_that_come_later(agent_host: teal.Host, echo: teal.Model) -> None:
    agent_host.agents.start("default", odd("Names"))
    script = (
        "import sys, numpy, teal\n"
        "with teal.connect(sys.argv[1]) as host:\n"
        "    for i in range(100):\n"
        "        host.model('echo')(numpy.full(4, i))\n"
    )
    other = subprocess.Popen([sys.executable, "-c", script, agent_host.address])
    assert other.wait() == 0
    assert f"{os.getuid()}/{other.pid}" in agent_host.agents.dump("default").split()


def test_it_moves_with_the_load(agent_host: teal.Host, echo: teal.Model) -> None:
    core, all_cores = max(os.sched_getaffinity(0)), os.sched_getaffinity(0)
    if len(all_cores) < 2:
        pytest.skip("one core only: there is nowhere to move")
    pid = agent_host.agents.start(
        "default", odd("Thinks"), agent_core=core, placement="auto", heartbeat="30s", max_wait="30s"
    ).pid
    assert agent_host.agents["default"].place == "offload"
    until(lambda: agent_host.agents["default"].place == "host")  # nothing to do: its core is free for others
    assert os.sched_getaffinity(pid) == all_cores

    def busy() -> bool:
        right(echo, 100)
        return agent_host.agents["default"].place == "offload"

    until(busy)
    assert os.sched_getaffinity(pid) == {core}
    agent = agent_host.agents["default"]
    assert (agent.pid, agent.moves, agent.restarts) == (pid, 2, 0)
    assert [line.what for line in agent_host.agents.audit()] == ["online", "moved", "moved"]


def test_what_finds_an_idle_worker_need_not_wait(agent_host: teal.Host, echo: teal.Model) -> None:
    agent_host.agents.start("default", "fifo", local_fast_path=True)
    for i in range(50):
        right(echo, 1, i)
    seat = agent_host.agents["default"].seats["default"]
    assert seat.local > 0
    assert seat.local + seat.completed == 50
    right(echo, 300)
    seat = agent_host.agents["default"].seats["default"]
    assert seat.completed > 0
    assert seat.local + seat.completed == 350
    assert seat.bugs == 0


def test_over_an_emulated_link(agent_host: teal.Host, echo: teal.Model) -> None:
    agent = agent_host.agents.start("default", "fifo", link="pcie")
    assert agent.link == "pcie"
    right(echo, 200)
    assert agent_host.agents["default"].seats["default"].completed == 200
    with pytest.raises(teal.InvalidArgument, match="link"):
        agent_host.agents.upgrade("default", link="string")
    agent_host.agents.upgrade("default", link="cxl")
    right(echo, 200)
    assert agent_host.agents["default"].seats["default"].completed == 200
