"""Pools that help others (`helps=`): whose idle workers run what waits there, and what they hold for it."""

from __future__ import annotations

import asyncio
import itertools
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import teal
from teal.host.process import WorkerProcess
from teal.host.residence import Residence

MB = 1 << 20
HELPS = {"b": {"helps": ["default"]}}
ZERO = np.int64(0)


@pytest.fixture
def helped() -> Iterator[teal.Host]:
    """Pool b, with one worker, helps default, with one worker."""
    with teal.Host(pools=HELPS) as host:
        yield host


@pytest.fixture
def busy(tmp_path: Path) -> Iterator[Callable[[teal.Model], Callable[[], int]]]:
    """``let = busy(model)``: a worker is in it (lent_kernels:until) until ``let()``, which returns the worker's pid."""
    numbers = itertools.count()
    gates: list[Path] = []

    def busy(model: teal.Model) -> Callable[[], int]:
        number = next(numbers)
        gate, begun = tmp_path / f"gate{number}", tmp_path / f"begun{number}"
        gates.append(gate)
        future = model.submit(gate=str(gate), begun=str(begun))
        soon(begun.exists)

        def let() -> int:
            gate.touch()
            return pid_of(future.result())

        return let

    yield busy
    for gate in gates:
        gate.touch()


def soon(condition: Callable[[], Any]) -> None:
    """Waits for it."""
    until = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < until, "it does not come"
        time.sleep(0.002)


def pid_of(outputs: Any) -> int:
    return int(outputs["pid"].numpy())


def pool(host: teal.Host, name: str = "default") -> Any:
    return next(one for one in host.statistics().pools if one.name == name)


def pids(host: teal.Host, name: str, lent_by: str | None = None) -> list[int]:
    return [w.pid for w in host.statistics().workers if (w.pool, w.lent_by) == (name, lent_by)]


def taken(host: teal.Host, model: teal.Model, let: Callable[[], int]) -> int:
    """The pid that answers while ``let`` holds the only worker of the model's pool."""
    answer = pid_of(model(ZERO))
    let()
    return answer


def test_an_idle_worker_takes_what_waits_elsewhere(helped: teal.Host, busy: Any) -> None:
    until, who = helped.load("until", "lent_kernels:until"), helped.load("who", "lent_kernels:who")
    (own,), (lent,) = pids(helped, "default"), pids(helped, "default", "b")
    assert pids(helped, "b") not in ([own], [lent])
    let = busy(until)
    assert [pid_of(who(ZERO)) for _ in range(5)] == [lent] * 5
    assert let() == own
    soon(lambda: (pool(helped).stolen, pool(helped, "b").helped) == (5, 5))  # counted after the answer
    assert (pool(helped, "b").helps, pool(helped).helps) == (("default",), ())


def test_what_it_runs_itself_a_pool_does_not_hand_out(helped: teal.Host) -> None:
    """It has nothing to do when the request comes: it sleeps, and is not held up by the system after the last one."""
    who = helped.load("who", "lent_kernels:who")

    def own() -> Any:
        return next(w for w in helped.statistics().workers if (w.pool, w.lent_by) == ("default", None))

    for _ in range(20):
        before = own()
        assert pid_of(who(ZERO)) == before.pid
        soon(lambda before=before: own().sleeps > before.sleeps)
    assert pool(helped).stolen == 0


def test_a_backlog_is_shared(helped: teal.Host) -> None:
    """Each of the two takes some, and everything is answered once."""
    model = helped.load("twice", "lent_kernels:one")
    futures = [model.submit(np.int64(k)) for k in range(300)]
    assert all(int(f.result()["a"].numpy()) == 1 for f in futures)
    soon(lambda: model.statistics().in_flight == 0)
    assert model.statistics().requests == 300
    assert 0 < pool(helped).stolen < 300


def test_a_worker_with_work_of_its_own_does_not_help(helped: teal.Host, busy: Any) -> None:
    here, who = helped.load("here", "lent_kernels:until"), helped.load("who", "lent_kernels:who")
    there = helped.load("there", "lent_kernels:until", pool="b")
    let_there, let_here = busy(there), busy(here)
    future = who.submit(ZERO)
    time.sleep(0.1)
    assert not future.done()
    let_there()  # now it has time
    assert pid_of(future.result()) in pids(helped, "default", "b")
    let_here()


def test_a_long_one_that_it_runs_for_others_holds_up_nobody(helped: teal.Host, busy: Any) -> None:
    long, mine = helped.load("long", "lent_kernels:until"), helped.load("mine", "lent_kernels:who", pool="b")
    first, second = busy(long), busy(long)
    assert {pid_of(mine(ZERO)) for _ in range(20)} == set(pids(helped, "b"))
    assert {first(), second()} == {*pids(helped, "default"), *pids(helped, "default", "b")}


def test_what_may_have_a_state_stays_at_home(helped: teal.Host, busy: Any) -> None:
    until, who = helped.load("until", "lent_kernels:until"), helped.load("who", "lent_kernels:impure_who")
    pure = helped.load("pure", "lent_kernels:who")
    let = busy(until)
    future = who.submit(ZERO)
    assert pid_of(pure(ZERO)) in pids(helped, "default", "b")  # it passes the other one by
    assert not future.done()
    assert let() == pid_of(future.result())


def test_engines_and_builtins_are_lent_too(helped: teal.Host, busy: Any, mlp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    until = helped.load("until", "lent_kernels:until")
    mlp, echo = helped.load("mlp", mlp_path, threads=1), helped.load("echo", "builtin:identity")
    x = np.ones((2, 64), np.float32)
    expected = mlp(x)[0].numpy().copy()
    let = busy(until)
    np.testing.assert_array_equal(mlp(x)[0].numpy(), expected)
    np.testing.assert_array_equal(echo(x)[0].numpy(), x)
    let()
    soon(lambda: pool(helped).stolen == 2)


def test_chains_and_outputs_of_any_size(helped: teal.Host, busy: Any) -> None:
    until = helped.load("until", "lent_kernels:until")
    count, add = helped.load("count", "lent_kernels:count_up"), helped.load("add", "lent_kernels:add_up")
    let = busy(until)
    for n in (3, 100_000, 10):
        made = count.submit(np.int64(n))
        added = add.submit(made).result()
        assert int(added["sum"].numpy()) == n * (n - 1) // 2
        assert made.result()["y"].numpy().shape == (n,)
    let()
    soon(lambda: pool(helped).stolen == 6)


def test_cancelled_and_late_ones(helped: teal.Host, busy: Any) -> None:
    until, who = helped.load("until", "lent_kernels:until"), helped.load("who", "lent_kernels:who")
    first, second = busy(until), busy(until)
    future = who.submit(ZERO)
    assert future.cancel()
    with pytest.raises(teal.Cancelled):
        future.result()
    with pytest.raises(teal.DeadlineExceeded):
        who(ZERO, deadline=0.01)
    first(), second()
    assert pid_of(who(ZERO)) in pids(helped, "default")


def test_updates_under_load(helped: teal.Host) -> None:
    """Replaced and rolled back while both pools' processes answer: each answer is of one version."""
    model = helped.load("m", "lent_kernels:one")
    stop, wrong, count = threading.Event(), [], [0]

    def call() -> None:
        with teal.connect(helped.address) as own:
            mine = own.model("m")
            while not stop.is_set():
                futures = [mine.submit(ZERO) for _ in range(4)]
                for future in futures:
                    found = future.result()
                    if int(found["a"].numpy()) != int(found["b"].numpy()):
                        wrong.append(found)
                    count[0] += 1

    threads = [threading.Thread(target=call) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for number in range(6):
            before = count[0]
            helped.load("m", f"lent_kernels:{('two', 'one')[number % 2]}")
            soon(lambda before=before: count[0] > before + 20)
        helped.rollback("m")
        soon(lambda: pool(helped).stolen > 0)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert not wrong
    assert model.statistics().failed == 0


# ---- what it holds for others ----------------------------------------------------------------------------------------


def test_within_its_own_budget(tmp_path: Path, busy: Any) -> None:
    with teal.Host(pools={"b": {"helps": ["default"], "memory": 100 * MB}}) as host:
        until = host.load("until", "lent_kernels:until")
        heavy = [host.load(f"heavy{k}", "lent_kernels:Heavy") for k in range(3)]
        (lent,), (own,) = pids(host, "default", "b"), pids(host, "default")
        soon(lambda: pool(host, "b").memory_used > 70 * MB)  # two of them have room
        let = busy(until)
        futures = [model.submit(ZERO) for model in heavy]
        soon(lambda: sum(future.done() for future in futures) == 2)
        let()
        assert sorted(pid_of(future.result()) for future in futures) == sorted([lent, lent, own])
        # The lender's own models come first, and what was lent comes back when they go.
        mine = [host.load(f"mine{k}", "lent_kernels:Heavy", pool="b") for k in range(2)]
        assert not [info.name for info in host.models() if info.parked]
        assert 70 * MB < pool(host, "b").memory_used <= 100 * MB
        let = busy(until)
        futures = [model.submit(ZERO) for model in heavy]
        time.sleep(0.1)
        assert not any(future.done() for future in futures)
        mine[0].unload()
        soon(lambda: any(future.done() for future in futures))
        let()
        assert sum(pid_of(future.result()) == lent for future in futures) >= 1


def test_a_parked_one_comes_back_to_both(busy: Any) -> None:
    with teal.Host(memory=100 * MB, pools={"b": {"helps": ["default"], "memory": 1 << 40}}) as host:
        until = host.load("until", "lent_kernels:until")
        heavy = [host.load(f"heavy{k}", "lent_kernels:Heavy") for k in range(3)]
        (lent,), (own,) = pids(host, "default", "b"), pids(host, "default")
        for model in heavy:
            assert pid_of(model(ZERO)) == own  # brought back, at the cost of another one
            let = busy(until)
            assert pid_of(model(ZERO)) == lent
            let()
        assert pool(host).returns > 0


def test_one_that_kills_the_helper_while_it_loads_is_left_alone(
    tmp_path: Path, busy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LENT_DEADLY", str(tmp_path / "made"))
    with teal.Host(pools=HELPS) as host:
        until, deadly = host.load("until", "lent_kernels:until"), host.load("deadly", "lent_kernels:Deadly")
        (own,) = pids(host, "default")
        soon(lambda: host.statistics().restarts == 1)
        who = host.load("who", "lent_kernels:who")
        let = busy(until)
        assert pid_of(who(ZERO)) != own
        future = deadly.submit(ZERO)
        assert let() == own == pid_of(future.result())
        assert host.statistics().restarts == 1


def test_it_may_die_of_what_it_has_just_loaded(helped: teal.Host, busy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before its host has taken notice that it holds it; the next one holds it all the same."""
    load, died = Residence.load_in_lent, []

    async def killed_meanwhile(residence: Residence, worker: WorkerProcess, key: tuple[int, int]) -> Any:
        report = await load(residence, worker, key)
        (lent,) = residence._pool.lent
        if lent.held and not died:
            died.append(worker.pid)
            worker.kill()
            while lent.process is worker:
                await asyncio.sleep(0.001)
        return report

    monkeypatch.setattr(Residence, "load_in_lent", killed_meanwhile)
    until = helped.load("until", "lent_kernels:until")
    who = helped.load("who", "lent_kernels:who")
    soon(lambda: died)
    let = busy(until)
    assert taken(helped, who, let) not in died


def test_several_pools_help_and_are_helped(busy: Any) -> None:
    pools: dict[str, Any] = {"b": {"workers": 2, "helps": ["default", "c"]}, "c": {"helps": ["default"]}}
    with teal.Host(pools=pools) as host:
        until, who = host.load("until", "lent_kernels:until"), host.load("who", "lent_kernels:who")
        lets = [busy(until) for _ in range(4)]
        future = who.submit(ZERO)
        time.sleep(0.05)
        assert not future.done()
        ran = [let() for let in lets]
        assert len(set(ran)) == 4
        assert set(ran) == {*pids(host, "default"), *pids(host, "default", "b"), *pids(host, "default", "c")}
        future.result()
        # One worker's time is lent to one at a time: c takes that of b's other worker, or waits.
        there = host.load("there", "lent_kernels:until", pool="c")
        lets = [busy(until), busy(until), busy(until), busy(there)]
        assert len({let() for let in lets}) == 4


def test_an_agent_decides_for_its_own_workers_only(helped: teal.Host, busy: Any) -> None:
    until, who = helped.load("until", "lent_kernels:until"), helped.load("who", "lent_kernels:who")
    helped.agents.start("default", "fifo")
    let = busy(until)
    future = who.submit(ZERO)
    time.sleep(0.1)
    assert not future.done()
    assert let() == pid_of(future.result())
    helped.agents.stop("default")
    let = busy(until)
    assert pid_of(who(ZERO)) in pids(helped, "default", "b")
    let()


@pytest.mark.parametrize(
    ("pools", "message"),
    [
        ({"b": {"helps": "default"}}, r"\$\.pools\['b'\]\.helps: 'default' is of type str, expected a list of pools"),
        ({"b": {"helps": [7]}}, "7 is of type int, expected the name of a pool"),
        ({"b": {"helps": ["b"]}}, "'b', expected other pools of this host, once each: "),
        ({"b": {"helps": ["c"]}}, "'c', expected other pools of this host"),
        ({"b": {"helps": ["default", "default"]}}, "once each"),
        ({"b": {"helps": ["c"]}, "c": {"policy": "fifo"}}, "an agent decides there"),
        ({"b": {"helps": ["c"]}, "c": {"ducks": ["127.0.0.1:1"]}}, "cannot help or be helped"),
        ({"b": {"helps": ["default"], "workers": 64}}, "65 workers, lent ones too, expected at most 64"),
    ],
)
def test_what_cannot_help(pools: dict[str, Any], message: str) -> None:
    with pytest.raises(teal.InvalidArgument, match=message):
        teal.Host(pools=pools)


def test_a_lent_worker_can_change_nothing_in_the_lenders_pool(helped: teal.Host) -> None:
    """It maps its own pool, and of the lender the pool read-only and the page with the loans."""
    (lent,), (own,) = pids(helped, "default", "b"), pids(helped, "b")

    def pools(pid: int) -> dict[str, set[str]]:
        found: dict[str, set[str]] = {}
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            parts = line.split()
            if len(parts) > 5 and parts[5] == "/memfd:teal":
                found.setdefault(parts[4], set()).add(parts[1])
        return found

    theirs, shared = pools(own), pools(lent)
    common = {inode: shared[inode] for inode in theirs.keys() & shared.keys()}
    assert list(common.values()) == [{"r--s"}]


def test_they_go_with_their_host() -> None:
    with teal.Host(pools=HELPS) as host:
        everyone = [worker.pid for worker in host.statistics().workers]
        assert len(everyone) == 3
    for pid in everyone:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
