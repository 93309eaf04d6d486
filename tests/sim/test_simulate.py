"""Runs of the simulator: equal for equal seeds, right by theory; what a policy does wrong is found and does no harm."""

from __future__ import annotations

import dataclasses
import functools
import math
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sim_policies
from hypothesis import given, settings
from hypothesis import strategies as st

from teal import _core, sim
from teal.agents import policy_names
from teal.agents.sched.shinjuku import Shinjuku
from teal.agents.spec import shipped
from teal.errors import InvalidArgument, NotFound

POLICIES = Path(sim_policies.__file__)
# Of a run without chance, and of one with: whatever changes what a seat, the loop or fifo does, changes these. Then
# look that it was meant to, and write the new numbers here.
OF_A_TRACE = 0x6B6BA9F141CC2418
OF_A_SEED = 0xB687676777F6D5CA


def rows(count: int) -> list[tuple[float, str, float]]:
    return [(i * 7e-6, "ab"[i % 5 == 0], 1e-6 * (3 + 40 * (i % 5 == 0))) for i in range(count)]


def test_a_seed_gives_the_same_run_each_time_and_everywhere() -> None:
    first, second = (sim.simulate("shinjuku", requests=3000, faults=sim.Faults.all(), seed=7) for _ in range(2))
    assert first.fingerprint == second.fingerprint
    assert first.counters == second.counters
    assert all((first[name].latency_ns == second[name].latency_ns).all() for name in first.types)
    assert sim.simulate("shinjuku", requests=3000, faults=sim.Faults.all(), seed=8).fingerprint != first.fingerprint
    run = "sim.simulate('shinjuku', requests=3000, faults=sim.Faults.all(), seed=7)"
    program = f"from teal import sim; print({run}.fingerprint)"
    other = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert int(other.stdout) == first.fingerprint


def test_a_policy_that_draws_lots_draws_the_same_ones_again() -> None:
    random.seed(7)
    kept: list[Any] = [object() for _ in range(1000)]  # requests lie elsewhere in memory the second time
    first = sim.simulate(sim_policies.DrawsLots, workers=4, requests=3000, seed=3)
    assert random.random() == random.Random(7).random()  # nobody else's lots are drawn
    kept.clear()
    second = sim.simulate(sim_policies.DrawsLots, workers=4, requests=3000, seed=3)
    assert first.fingerprint == second.fingerprint
    assert first.fingerprint != sim.simulate("fifo", workers=4, requests=3000, seed=3).fingerprint


def test_fingerprints_of_any_machine() -> None:
    assert sim.simulate("fifo", trace=sim.Trace(rows(500)), types=[], workers=2).fingerprint == OF_A_TRACE
    assert sim.any_run("fifo", 11).fingerprint == OF_A_SEED


@pytest.mark.parametrize("name", policy_names())
def test_core_and_python_play_the_same_run(name: str) -> None:
    python = shipped(name)
    assert python is not None
    for seed in range(1, 26):
        core, other = sim.any_run(name, seed), sim.any_run(python, seed)
        assert (core.fingerprint, core.counters) == (other.fingerprint, other.counters), seed
        assert core.ok, (seed, core.violations, core.breaches)


@pytest.mark.parametrize("name", policy_names())
def test_thousands_of_seeds(name: str) -> None:
    """Everything breaks, in all policies; a seed that fails is printed, and is the same run tomorrow."""
    failed = [
        (result.seed, result.violations, result.breaches) for result in sim.hunt(name, range(1, 1001)) if not result.ok
    ]
    assert not failed, f"teal sim {name} --seeds {failed[0][0]}: {failed[0]}"


@pytest.mark.parametrize("agents", [2, 3, 4])
def test_a_pool_that_is_dealt_out(agents: int) -> None:
    """Each agent dies, freezes, is upgraded and comes again by itself."""
    totals = dict.fromkeys(("fallbacks", "upgrades", "restarts", "reruns", "taken_over", "local"), 0)
    for name in ("fifo", "shinjuku", shipped("fair")):
        for result in sim.hunt(name, range(1, 301), agents=agents):
            assert result.ok, (name, result.seed, result.violations, result.breaches)
            totals = {each: count + result.counters[each] for each, count in totals.items()}
    assert all(totals.values()), totals


@pytest.mark.parametrize("bug", ["kept", "both", "neither", "forgotten"])
def test_a_host_that_deals_wrongly_is_found(bug: str) -> None:
    found = 0
    for seed in range(1, 41):
        spec = _core.SimSpec.any_run(seed, 3)
        spec.bug = getattr(_core.SimBug, bug)
        found += bool(_core.simulate(spec, sim.run.maker("shinjuku").make_one, None).violations)
    assert found > 0


def test_two_agents_are_as_good_as_one_where_requests_are_alike() -> None:
    one, two = (sim.simulate("fifo", workers=8, agents=agents, requests=20_000, load=0.8) for agents in (1, 2))
    assert two.ok
    assert two.counters["taken_over"] > 0
    assert two["short"].percentile_us(99) < 1.5 * one["short"].percentile_us(99)
    with pytest.raises(InvalidArgument, match=r"\$\.agents"):
        sim.simulate("fifo", workers=2, agents=3)


def test_every_fault_happens_and_harms_nothing() -> None:
    for field in dataclasses.fields(sim.Faults):
        rate = {"cancels": 0.05, "lost_wakeups": 0.05, "garbles": 20_000.0}.get(field.name, 200.0)
        found = [
            sim.simulate("shinjuku", workers=4, requests=4000, faults=sim.Faults(**{field.name: rate}), seed=seed)
            for seed in range(1, 4)
        ]
        assert all(result.ok for result in found), (field.name, [result.violations for result in found])
        assert sum(result.met[field.name] for result in found) > 0, field.name
        assert all(count == 0 for result in found for name, count in result.met.items() if name != field.name)
    every = sim.simulate("fair", workers=4, requests=30_000, faults=sim.Faults.all())
    assert every.ok
    assert all(every.met.values()), every.met
    assert every.counters["fallbacks"] > 0
    assert every.longest_gap_s <= 0.0521


def test_what_is_known_of_queues() -> None:
    """M/M/1 at half load: twice the service time on the average."""
    free = dict.fromkeys(("link", "agent_step", "agent_event", "between"), 0)
    result = sim.simulate("fifo", types=[sim.Type("one", mean="100us", spread="exponential")], workers=1, load=0.5,
                          requests=100_000, **free)  # fmt: skip
    assert result["one"].done == 100_000
    assert 185 < result["one"].mean_us < 215
    assert 0.49 < result.utilisation < 0.51
    assert result["one"].percentile_us([50, 99]) == pytest.approx([139, 921], rel=0.1)


# ---- what policies are for -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("load", [0.7, 0.8])
def test_shinjuku_keeps_short_requests_short(load: float) -> None:
    how = {"workers": 4, "load": load, "requests": 100_000}
    fifo, shinjuku = sim.simulate("fifo", **how), sim.simulate("shinjuku:quantum=50us", **how)
    assert fifo["short"].percentile_us(99.9) >= 10 * shinjuku["short"].percentile_us(99.9)
    assert shinjuku.counters["preempted"] > 10_000
    assert fifo.counters["preempted"] == 0


def test_edf_misses_fewer_deadlines() -> None:
    types = [sim.Type("soon", mean="100us", spread="exponential", deadline="600us"),
             sim.Type("late", mean="100us", spread="exponential", deadline="60ms")]  # fmt: skip
    missed = {}
    for policy in ("fifo", "edf"):
        result = sim.simulate(policy, types=types, workers=4, load=0.95, requests=40_000)
        assert result.ok
        missed[policy] = sum(each.missed + each.expired for each in result.types.values())
    assert 0 < missed["edf"] < 0.6 * missed["fifo"]


@pytest.mark.parametrize(("words", "ratio"), [("fair:by=model", 1.0), ("fair:by=model,weight.a=3", 3.0)])
def test_fair_shares_are_fair_under_overload(words: str, ratio: float) -> None:
    """`a` asks for four times as much as `b` (or a tenth), and gets what it is due; what is too late expires."""
    for asks in (0.8, 4.0):
        types = [sim.Type("a", share=asks, mean="50us", deadline="20ms"), sim.Type("b", mean="50us", deadline="20ms")]
        result = sim.simulate(words, types=types, workers=4, load=4.0, requests=60_000)
        assert result["a"].busy_s / result["b"].busy_s == pytest.approx(ratio, rel=0.1)
        assert result.utilisation > 0.9


def test_thousands_of_workers() -> None:
    result = sim.simulate("fifo", workers=5_000, load=0.6, requests=30_000, agent_step="10ns", agent_event="1ns",
                          types=[sim.Type("one", mean="1ms", spread="lognormal")])  # fmt: skip
    assert result.ok
    assert result.counters["done"] == 30_000


# ---- policies that are wrong -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["Twice", "Stale", "Impatient"])
def test_a_policy_that_decides_nonsense_harms_nobody(name: str) -> None:
    refused = 0
    for seed in range(1, 40):
        result = sim.any_run(getattr(sim_policies, name), seed)
        assert not result.violations
        ended = ("done", "cancelled", "expired", "turned_away")
        assert result.counters["arrived"] == sum(result.counters[each] for each in ended)
        refused += result.counters["refused"]
    assert refused > 0


@pytest.mark.parametrize("name", ["Forgetful", "Sleepy"])
def test_what_a_policy_forgets_is_said_and_runs_in_the_pools_own_order(name: str) -> None:
    policy = getattr(sim_policies, name)
    spec = sim.Spec(workers=3, load=0.6, requests=400, types=[sim.Type("one", mean="1ms", spread="exponential")])
    failed = [result for result in sim.hunt(policy, range(1, 10), spec) if not result.ok]
    assert len(failed) >= 5
    for result in failed:
        assert not result.violations
        assert "waits since" in result.breaches[0]
        again = sim.simulate(policy, spec, seed=result.seed)  # a failing seed fails again, in the same way
        assert (again.fingerprint, again.breaches) == (result.fingerprint, result.breaches)
    one = [sim.Type("one", mean="1ms")]
    result = sim.simulate(policy, workers=2, load=0.5, requests=2000, max_wait="5ms", types=one)
    assert result.counters["fallbacks"] > 0
    assert result.counters["done"] == 2000


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Raises", "ZeroDivisionError: a hundred"),
        ("RaisesAtOnce", "LookupError: nothing goes"),
        ("Nonsense", "pick() returned 5"),
    ],
)
def test_a_policy_that_raises_is_taken_off_and_said(name: str, words: str) -> None:
    result = sim.simulate(f"{POLICIES}:{name}:pause=2us", workers=4, requests=3000)
    assert not result.ok
    assert not result.violations
    assert words in result.policy_error
    assert words in result.breaches[0]
    assert result.counters["done"] == 3000
    assert result.counters["local"] > 0
    assert result.counters["restarts"] > 0


def test_a_policy_may_leave_it_to_the_pool() -> None:
    result = sim.simulate(sim_policies.Leaves, workers=2, requests=2000)
    assert not result.violations
    assert result.counters["done"] == 2000
    assert result.counters["local"] > 1000


@pytest.mark.parametrize("bug", ["twice", "ended", "elsewhere", "lost"])
def test_a_bug_of_the_host_is_found(bug: str) -> None:
    """What is broken on purpose in the simulated host shows in its books."""
    found = []
    for seed in range(1, 60):
        spec = _core.SimSpec.any_run(seed)
        spec.bug = getattr(_core.SimBug, bug)
        found.append(tuple(_core.simulate(spec, lambda: _core.make_policy("shinjuku")).violations))
    assert sum(1 for violations in found if violations) >= 10
    assert any(violations and violations[0].startswith("at ") for violations in found)


# ---- what is given ---------------------------------------------------------------------------------------------------


def test_ways_to_name_a_policy() -> None:
    class Mine(sim_policies.Good):
        name = "mine"

    found = [
        sim.simulate(policy, requests=500)
        for policy in (
            f"{POLICIES}:Good",
            f"{POLICIES}:Good:pause=3us",
            "sim_policies:Good",
            sim_policies.Good,
            Mine,
            functools.partial(sim_policies.Good),
            lambda: _core.make_policy("fifo"),
        )
    ]
    assert len({result.fingerprint for result in found[:-1]}) == 1
    assert (found[3].policy, found[4].policy) == ("Good", "mine")
    assert sim.simulate(Shinjuku, requests=500).policy == "shinjuku"
    for wrong, words in (("lifo", "expected fifo"), (5, "of type int"), (sim_policies.Good(), "of type Good"),
                         (lambda: 5, "was made"), ("fifo:colour=1", "no setting")):  # fmt: skip
        with pytest.raises(InvalidArgument, match=words):
            sim.simulate(wrong)  # type: ignore[arg-type]
    with pytest.raises(NotFound, match="no such file"):
        sim.simulate("nowhere.py:Mine")
    with pytest.raises(OSError, match="no way"):
        sim.simulate(sim_policies.Unmakeable)


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        ({"workers": 0}, "$.workers"),
        ({"workers": 65537}, "$.workers"),
        ({"workers": 2.0}, "$.workers"),
        ({"load": 0}, "$.load"),
        ({"load": math.nan}, "$.load"),
        ({"load": "high"}, "$.load"),
        ({"requests": 0}, "$.requests"),
        ({"records": 1 << 21}, "$.records"),
        ({"ring": 100}, "$.ring"),
        ({"seed": -1}, "$.seed"),
        ({"link": "fast"}, "$.link"),
        ({"link": -1.0}, "$.link"),
        ({"poll": 0}, "$.poll"),
        ({"types": []}, "$.types"),
        ({"types": "short"}, "$.types"),
        ({"types": [5]}, "$.types[0]"),
        ({"types": [sim.Type("a"), sim.Type("a")]}, "$.types"),
        ({"types": [sim.Type("")]}, "$.types[0].name"),
        ({"types": [sim.Type("a", share=-1)]}, "$.types[0].share"),
        ({"types": [sim.Type("a", mean=0)]}, "$.types[0].mean"),
        ({"types": [sim.Type("a", mean="2 hours")]}, "$.types[0].mean"),
        ({"types": [sim.Type("a", spread="normal")]}, "$.types[0].spread"),
        ({"types": [sim.Type("a", sigma=11)]}, "$.types[0].sigma"),
        ({"types": [sim.Type("a", sessions=0)]}, "$.types[0].sessions"),
        ({"types": [sim.Type("a", priority=1 << 40)]}, "$.types[0].priority"),
        ({"types": [sim.Type("a", deadline=0)]}, "$.types[0].deadline"),
        ({"types": [sim.Type("a", preemptible=1)]}, "$.types[0].preemptible"),  # type: ignore[arg-type]
        ({"faults": "all"}, "$.faults"),
        ({"faults": sim.Faults(agent_dies=-1)}, "$.faults.agent_dies"),
        ({"faults": sim.Faults(cancels=1.5)}, "$.faults.cancels"),
        ({"colour": 1}, "$"),
        ({"trace": [1]}, "$.trace"),
    ],
)
def test_what_makes_no_sense_is_said_with_its_path(changes: dict[str, Any], path: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        sim.simulate("fifo", **changes)
    assert refused.value.path == path


def test_a_run_that_would_take_days_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="24 hours"):
        sim.simulate("fifo", types=[sim.Type("a", mean="1ms")], load=1e-6, workers=1, requests=10**6)
    with pytest.raises(InvalidArgument, match="share above 0"):
        sim.simulate("fifo", types=[sim.Type("a", share=0)])


TIMES = st.one_of(st.sampled_from(["0", "1us", "50us", "5ms", "-1", "x", ""]), st.floats(), st.none())
TYPES = st.builds(
    sim.Type,
    st.text(max_size=4),
    share=st.floats(),
    mean=TIMES,
    spread=st.sampled_from(["fixed", "exponential", "lognormal", "x"]),
    sigma=st.floats(),
    sessions=st.integers(-1, 2000),
    priority=st.integers(),
    deadline=TIMES,
    preemptible=st.booleans(),
    yields=st.booleans(),
)


@settings(max_examples=300, deadline=None)
@given(
    types=st.lists(TYPES, max_size=3),
    workers=st.integers(-1, 70),
    load=st.floats(),
    requests=st.integers(-1, 50),
    records=st.integers(-1, 100),
    ring=st.integers(-1, 64),
    seed=st.integers(),
    link=TIMES,
    watchdog=TIMES,
    faults=st.builds(
        sim.Faults, st.floats(), st.floats(), st.floats(), cancels=st.floats(), worker_dies=st.floats(0, 1e3)
    ),
)
def test_whatever_is_asked_for_is_run_or_refused(**changes: Any) -> None:
    try:
        result = sim.simulate("shinjuku", **changes)
    except InvalidArgument:
        return
    assert not result.violations


@settings(max_examples=100, deadline=None)
@given(
    workers=st.integers(1, 8),
    load=st.floats(0.1, 3.0),
    requests=st.integers(1, 200),
    records=st.integers(1, 64),
    ring=st.sampled_from([1, 2, 8, 64]),
    seed=st.integers(0, 2**64 - 1),
    policy=st.sampled_from(policy_names()),
    means=st.lists(st.sampled_from(["1us", "30us", "2ms", "300ms"]), min_size=1, max_size=3),
    faults=st.booleans(),
    slow=st.sampled_from(["0us", "200ns", "100us", "30ms"]),
)
def test_hostile_specs(means: list[str], faults: bool, slow: str, policy: str, **changes: Any) -> None:
    """Tiny rings, links that are slower than the requests, overload, few records: nothing is lost or run twice."""
    types = [sim.Type(f"t{i}", mean=mean, spread="exponential") for i, mean in enumerate(means)]
    broken = sim.Faults.all() if faults else sim.Faults()
    result = sim.simulate(policy, types=types, faults=broken, link=slow, max_wait="1s", **changes)
    assert not result.violations


# ---- what comes out --------------------------------------------------------------------------------------------------


def test_results() -> None:
    result = sim.simulate("fifo", requests=2000)
    short = result["short"]
    assert short.latency_ns.dtype == np.uint64
    assert (np.diff(short.latency_ns.astype(np.int64)) >= 0).all()
    assert short.percentile_us(100) == short.latency_ns[-1] / 1e3
    assert short.percentile_us(0) == short.latency_ns[0] / 1e3
    assert len(result.latency_ns) == result.counters["done"]
    said = result.as_json()
    assert said["types"][0]["p99.9_us"] == short.percentile_us(99.9)
    assert said["fingerprint"] == f"{result.fingerprint:016x}"
    with pytest.raises(NotFound, match="there were short, long"):
        result["middle"]
    empty = sim.simulate("fifo", requests=5, types=[sim.Type("a"), sim.Type("b", share=0)])["b"]
    assert (empty.done, math.isnan(empty.percentile_us(50)), math.isnan(empty.mean_us)) == (0, True, True)
    assert "p50_us" not in empty.as_json()
    heard: list[int] = []
    sim.simulate("fifo", requests=20_000, progress=heard.append)
    assert heard == sorted(heard)
    assert heard[-1] > 1000


def test_ctrl_c_is_heard() -> None:
    def interrupt(_: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sim.simulate("fifo", requests=10_000_000, progress=interrupt)


def test_a_trace_is_asked_for_again(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(
        "type,at,service,more\n" + "".join(f"{name},{at!r},{took * 1e6}us,x\n" for at, name, took in rows(200))
    )
    trace = sim.Trace.read(path)
    assert (len(trace), trace.names) == (200, ("b", "a"))
    assert trace.at_ns[1] == 7000
    result = sim.simulate("fifo", trace=trace, types=[sim.Type("a", deadline="1ms")], workers=2, requests=7)
    assert {name: each.done for name, each in result.types.items()} == {"a": 160, "b": 40}
    assert result["a"].busy_s == pytest.approx(160 * 3e-6)
    assert result.fingerprint == sim.simulate("fifo", trace=sim.Trace(rows(200)), types=[], workers=2).fingerprint


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no column 'at'"),
        ("at,type\n1,a\n", "no column 'service'"),
        ("at,type,service\n", "without requests"),
        ("at,type,service\n2,a,1ms\n1,a,1ms\n", "in order"),
        ("at,type,service\n1,a\n", "duration"),
        ("at,type,service\n1,a,0\n", "at least 1 ns"),
        ("at,type,service\n1e9,a,1ms\n", "expected 0 to 86400"),
        ("at,type,service\nnan,a,1ms\n", "expected 0 to 86400"),
        ("at,type,service\n1,,1ms\n", "a name of 1 to 64"),
    ],
)
def test_a_trace_that_makes_no_sense(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "t.csv"
    path.write_text(text)
    with pytest.raises(InvalidArgument, match=words):
        sim.simulate("fifo", trace=sim.Trace.read(path), types=[])
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(InvalidArgument, match="UTF-8"):
        sim.Trace.read(path)
    with pytest.raises(NotFound):
        sim.Trace.read(tmp_path / "none.csv")
