"""kill -9 around agents: of the host, of workers, of either process of an upgrade; and one that wakes up replaced.

After each: answers are right, nothing is lost, and the host has what it had before.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest
import watch
from crash_host import CrashHost, unused_name
from nursery import Nursery
from witness import Witness, load_all, watching

import teal

ODD = Path(__file__).parents[1] / "agents" / "odd_policies.py"
PATIENCE = {"heartbeat": "30s", "max_wait": "30s"}  # a busy machine is no reason for a fallback here


class Seated:
    """A host with an agent, a client that calls all the time, and what the host had before anything happened."""

    def __init__(self, host: CrashHost, witness: Witness, attached: teal.Host) -> None:
        self.host = host
        self.witness = witness
        self.attached = attached
        attached.agents.start("default", "fifo", **PATIENCE)
        witness.goes_on()
        self._before = self.steady()

    def steady(self) -> watch.Holdings:
        return watch.steady(lambda: watch.holdings(self.host.pid))

    def serves(self) -> int:
        """The process of the agent that serves; 0: none does."""
        agent = self.attached.agents["default"]
        return agent.pid if agent.state == "online" else 0

    def others(self) -> set[int]:
        """Agents' processes that do not serve: what comes, what stands by."""
        workers = {worker.pid for worker in self.attached.statistics().workers}
        return watch.children(self.host.pid) - workers - {self.serves()}

    def whats(self) -> list[str]:
        return [line.what for line in self.attached.agents.audit()]

    @contextmanager
    def upgrading(self, policy: str | None = None) -> Iterator[list[teal.TealError]]:
        """An upgrade beside what happens meanwhile; the list gets why it failed, if it did."""
        failed: list[teal.TealError] = []

        def upgrade() -> None:
            try:
                with teal.connect(self.host.address) as other:
                    other.agents.upgrade("default", policy)
            except teal.TealError as error:
                failed.append(error)

        thread = threading.Thread(target=upgrade)
        thread.start()
        try:
            yield failed
        finally:
            thread.join()

    def as_before(self) -> None:
        watch.until(self.serves, "an agent that serves")
        self.witness.goes_on()
        watch.settled(self._before, lambda: watch.holdings(self.host.pid), "the host")


@pytest.fixture
def seated(hosts: Callable[..., CrashHost], model_file: Path) -> Iterator[Seated]:
    host = hosts(workers=2)
    with teal.connect(host.address) as attached:
        load_all(attached, model_file)
        with watching(host.address) as witness:
            yield Seated(host, witness, attached)


def test_the_one_that_serves_dies_while_another_one_comes(seated: Seated) -> None:
    old = seated.serves()
    with seated.upgrading(f"{ODD}:MadeInAWhile") as failed:
        time.sleep(0.2)
        os.kill(old, signal.SIGKILL)
        seated.witness.goes_on()
    assert failed == []
    assert seated.serves() != old
    seated.as_before()
    assert seated.whats() == ["online", "fallback", "upgraded"]  # the newcomer serves, and no third one was started


def test_the_one_that_comes_dies(seated: Seated) -> None:
    old, there = seated.serves(), seated.others()
    with seated.upgrading(f"{ODD}:MadeSlowly") as failed:
        # What stood by is being used, or what is started now.
        (coming,) = there if there else watch.until(seated.others, "the newcomer")
        time.sleep(0.2)
        os.kill(coming, signal.SIGKILL)
    assert [type(error) for error in failed] == [teal.PeerDied]
    assert seated.serves() == old
    seated.as_before()
    assert "fallback" not in seated.whats()


@pytest.mark.crash
def test_killed_at_random_moments_of_upgrades(
    seated: Seated, dice: random.Random, rounds: Callable[[int], int]
) -> None:
    for _ in range(rounds(8)):
        old = watch.until(seated.serves, "an agent that serves")
        seated.steady()  # what stands by may be the newcomer
        others = sorted(seated.others())
        with seated.upgrading(dice.choice((None, "edf", f"{ODD}:Plain"))):
            time.sleep(dice.random() * 0.03)
            for pid in dice.choice(([old], others, [old, *others])):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
    seated.as_before()


@pytest.mark.crash
def test_workers_killed_while_an_agent_decides(
    hosts: Callable[..., CrashHost], model_file: Path, dice: random.Random, rounds: Callable[[int], int]
) -> None:
    def died(name: str, error: teal.TealError) -> bool:
        return isinstance(error, teal.PeerDied) and "signal 9 SIGKILL" in str(error)

    host = hosts(workers=2)
    with ExitStack() as stack:
        attached = stack.enter_context(teal.connect(host.address))
        load_all(attached, model_file)
        witness = stack.enter_context(watching(host.address, may_fail=died))
        seated = Seated(host, witness, attached)
        for _ in range(rounds(10)):
            time.sleep(dice.random() * 0.3)
            workers = [worker.pid for worker in attached.statistics().workers if worker.pid]
            if workers:
                with suppress(ProcessLookupError):
                    os.kill(dice.choice(workers), signal.SIGKILL)
        watch.until(lambda: all(w.pid and watch.alive(w.pid) for w in attached.statistics().workers), "two workers")
        seated.as_before()
        seat = attached.agents["default"].seats["default"]
        witness.goes_on()
        now = attached.agents["default"]
        assert (now.fallbacks, now.seats["default"].bugs) == (0, 0)
        assert now.seats["default"].completed > seat.completed  # the new workers take its decisions


@pytest.mark.parametrize("how", ["serves", "frozen"])
def test_the_hosts_end_is_the_end_of_all(how: str, nursery: Nursery) -> None:
    """Of the agent, of what stands by, and of the workers, whatever the agent does; a host of that name starts anew."""
    address = f"@teal/0/{unused_name()}"
    for _ in range(2):
        host = nursery.start("host", address=address, workers=1)
        attached = watch.until(lambda: _reached(address), f"a host at {address}")
        identity = attached.load("identity", "builtin:identity")
        agent = attached.agents.start("default", "fifo", heartbeat="30s", max_wait="30s").pid
        assert float(identity(3.0)[0].numpy()) == 3.0
        family = watch.children(host.pid)
        assert agent in family
        if how == "frozen":
            os.kill(agent, signal.SIGSTOP)
        waiting = [identity.submit(float(i)) for i in range(5)]
        host.kill()
        for future in waiting:
            with suppress(teal.PeerDied):
                future.result()
        watch.until(lambda family=family: not any(map(watch.alive, family)), "the end of all")
        attached.close()


def test_stopped_and_replaced_it_wakes_up_in_vain(seated: Seated) -> None:
    """What it has in its head is from before; by then another one decides."""
    old = seated.serves()
    pidfd = os.pidfd_open(old)
    try:
        seated.attached.agents.upgrade("default", "fifo", heartbeat="50ms", max_wait="10s", come_back="60s")
        stopped = seated.serves()
        os.close(pidfd)
        pidfd = os.pidfd_open(stopped)
        signal.pidfd_send_signal(pidfd, signal.SIGSTOP)
        watch.until(lambda: seated.attached.agents["default"].state == "frozen", "that its heart is missed")
        with seated.upgrading("fifo") as failed:
            watch.until(lambda: seated.serves() not in (0, stopped), "another one that serves")
            with suppress(ProcessLookupError):  # it has a second to leave by itself
                signal.pidfd_send_signal(pidfd, signal.SIGCONT)
            seated.witness.goes_on()
    finally:
        os.close(pidfd)
    assert failed == []
    assert seated.whats() == ["online", "upgraded", "fallback", "upgraded"]
    assert not watch.alive(stopped)
    seated.as_before()
    assert seated.attached.agents["default"].seats["default"].bugs == 0


def _reached(address: str) -> teal.Host | None:
    with suppress(teal.NotFound, teal.PeerDied):
        return teal.connect(address)
    return None
