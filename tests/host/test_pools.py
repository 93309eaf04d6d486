"""Pools: workers, memory and limits of their own; models of several at once; what one suffers the other does not."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import teal

MIB = 1 << 20
POOLS = {"fast": {"workers": 2, "idle": "1ms", "bytes": 4 * MIB, "in_flight": 3}, "other": {"threads": 1}}


@pytest.fixture(scope="module")
def pooled() -> Iterator[teal.Host]:
    """A host with two pools beside the default one."""
    with teal.Host(pools=POOLS) as host:
        yield host


@pytest.fixture
def both(pooled: teal.Host) -> Iterator[tuple[teal.Model, teal.Model]]:
    """One model in pool default, one in pool fast."""
    yield pooled.load("here", "toy_kernels:double"), pooled.load("there", "toy_kernels:double", pool="fast")
    pooled.unload("here")
    pooled.unload("there")


def test_a_tensor_lies_in_the_pool_that_it_is_made_for(pooled: teal.Host) -> None:
    models = {pool: pooled.load(f"same-{pool}", "builtin:identity", pool=pool) for pool in ("default", "fast")}
    try:
        for pool, model in models.items():
            tensor = pooled.empty((64,), pool=pool)
            tensor.numpy()[:] = np.arange(64)
            for other, its_model in models.items():
                before = its_model.statistics().copies_in
                np.testing.assert_array_equal(its_model(tensor)[0].numpy(), np.arange(64))
                assert its_model.statistics().copies_in - before == (other != pool)
            out = pooled.empty((64,), pool=pool)
            assert model(tensor, out=out)[0].numpy()[3] == 3
            with pytest.raises(teal.InvalidArgument, match="this model's host and pool"):
                models["fast" if pool == "default" else "default"](tensor, out=out)
    finally:
        for model in models.values():
            model.unload()


@pytest.mark.parametrize(("pool", "error"), [("nobody", teal.NotFound), (7, teal.InvalidArgument), ("", teal.NotFound)])
def test_a_tensor_for_no_pool(pooled: teal.Host, pool: Any, error: type[teal.TealError]) -> None:
    with pytest.raises(error, match="pool"):
        pooled.empty((4,), pool=pool)


def workers(host: teal.Host, pool: str) -> list[int]:
    return [worker.pid for worker in host.statistics().workers if worker.pool == pool]


def shared_memory(pid: int) -> set[str]:
    """Inodes of the memfds that a process maps."""
    lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    return {line.split()[4] for line in lines if "/memfd:" in line}


def test_what_a_pool_does_not_say_is_the_hosts() -> None:
    with teal.Host(workers=1, idle="300us", limits=teal.Limits(bytes=MIB, slots=7), pools=POOLS) as host:
        pools = {pool.name: pool for pool in host.statistics().pools}
    assert list(pools) == ["default", "fast", "other"]
    default, fast, other = pools.values()
    assert (default.workers, default.idle_us, default.bytes, default.slots, default.threads) == (1, 300, MIB, 7, None)
    assert (fast.workers, fast.idle_us, fast.bytes, fast.slots, fast.in_flight) == (2, 1000, 4 * MIB, 7, 3)
    assert (other.workers, other.idle_us, other.bytes, other.threads) == (1, 300, MIB, 1)


def test_default_may_be_configured_too() -> None:
    with teal.Host(pools={"default": {"workers": 2}}) as host:
        assert len(workers(host, "default")) == 2
        assert [pool.name for pool in host.statistics().pools] == ["default"]


def test_one_client_uses_models_of_two_pools_at_once(both: Any, pooled: teal.Host) -> None:
    futures = [model.submit(np.full(3, i)) for i in range(50) for model in both]
    assert [int(future.result()[0].numpy()[0]) for future in futures] == [2 * i for i in range(50) for _ in both]
    inputs = [model.new_inputs(x=("int64", (2,))) for model in both]
    for n, (model, x) in enumerate(zip(both, inputs, strict=True)):
        x["x"].numpy()[...] = n
        assert model(**x)[0].numpy().tolist() == [2 * n] * 2
    assert {(info.name, info.pool) for info in pooled.models()} == {("here", "default"), ("there", "fast")}
    assert {client.pool for client in pooled.statistics().clients} >= {"default", "fast"}


def test_numbers_of_two_pools_do_not_mix(both: Any, counted: Any) -> None:
    here, there = both
    before = [counted(model) for model in both]
    for _ in range(5):
        here(np.int64(1))
    for _ in range(3):
        there(np.int64(1))
    after = [counted(model) for model in both]
    assert [b.requests - a.requests for a, b in zip(before, after, strict=True)] == [5, 3]
    assert [b.copies_in - a.copies_in for a, b in zip(before, after, strict=True)] == [5, 3]
    assert [b.stages["total"].count - a.stages["total"].count for a, b in zip(before, after, strict=True)] == [5, 3]


def test_workers_map_no_client_of_another_pool(pooled: teal.Host, both: Any) -> None:
    """Region, session and tensors of a client are in its pool's workers, and nowhere in another pool's."""
    kept = [model(np.zeros(1000)) for model in both]
    [a], b = workers(pooled, "default"), workers(pooled, "fast")
    while shared_memory(b[0]) != shared_memory(b[1]):  # a worker maps them when it comes to it
        pass
    maps = {pid: shared_memory(pid) for pid in (a, *b)}
    mine = shared_memory(os.getpid())  # the embedded host's and this client's
    assert all(len(maps[pid] & mine) >= 3 for pid in maps)  # the pool's region, the session, the tensors
    assert not any(maps[a] & maps[pid] for pid in b)
    alone = shared_memory(workers(pooled, "other")[0])  # nobody has a session there
    assert len(alone) == 1
    assert not any(alone & others for others in maps.values())
    assert len(kept) == 2


def test_a_crash_in_one_leaves_the_other_alone(pooled: teal.Host, both: Any, tmp_path: Path) -> None:
    here, _ = both
    gate = pooled.load("gate", "toy_kernels:gate", pool="fast")
    running = here.submit(np.int64(4))
    doomed = gate.submit(str(tmp_path / "never"), 1)
    while not doomed.running():
        pass
    before = {pool.name: pool.restarts for pool in pooled.statistics().pools}
    pids = workers(pooled, "default")
    for pid in workers(pooled, "fast"):
        os.kill(pid, signal.SIGKILL)
    with pytest.raises(teal.PeerDied, match="signal 9 SIGKILL"):
        doomed.result()
    assert int(running.result()[0].numpy()) == 8
    assert int(here(np.int64(5))[0].numpy()) == 10
    assert workers(pooled, "default") == pids
    (tmp_path / "open").touch()
    assert int(gate(str(tmp_path / "open"), 7)[0].numpy()) == 7  # by a replacement
    after = {pool.name: pool.restarts for pool in pooled.statistics().pools}
    assert {name: after[name] - before[name] for name in after} == {"default": 0, "fast": 2, "other": 0}
    gate.unload()


def test_limits_count_in_each_pool(pooled: teal.Host, both: Any) -> None:
    here, there = both
    with pytest.raises(teal.QuotaExceeded, match=f"of its {4 * MIB}; release tensors"):
        there(np.zeros(5 * MIB, np.uint8))
    assert here(np.zeros(5 * MIB, np.uint8))[0].shape == (5 * MIB,)


def test_a_name_is_in_one_pool(pooled: teal.Host) -> None:
    model = pooled.load("only", "toy_kernels:first", pool="fast")
    with pytest.raises(teal.InvalidArgument, match=r"\$\.pool: 'only' is in pool 'fast', and a name is in one pool at"):
        pooled.load("only", "toy_kernels:first", pool="other")
    assert pooled.load("only", "toy_kernels:second").info.pool == "fast"  # a reload goes where the name is
    assert int(model(0)[0].numpy()) == 2
    model.unload()
    moved = pooled.load("only", "toy_kernels:first", pool="other")
    assert (moved.info.pool, moved.version, int(moved(0)[0].numpy())) == ("other", 3, 1)
    with pytest.raises(teal.NotFound, match="not loaded any more"):
        model(0)  # its pool has nothing of that name
    moved.unload()


def test_where_a_name_once_was_says_nothing(pooled: teal.Host) -> None:
    pooled.load("moved", "toy_kernels:double", pool="fast")
    pooled.load("moved", "toy_kernels:double")  # where it is
    assert {info.pool for info in pooled.models() if info.name == "moved"} == {"fast"}
    pooled.unload("moved")
    assert pooled.load("moved", "toy_kernels:double").info.pool == "default"
    pooled.unload("moved")


def test_spilled_outputs_come_from_the_right_pool(pooled: teal.Host) -> None:
    sizes = [pooled.load(f"sized-{pool}", "toy_kernels:sized", pool=pool) for pool in ("default", "fast", "other")]
    for n, model in enumerate(sizes, 1):
        assert model(n * 20_000)["big"].size == n * 20_000
    for model in sizes:
        model.unload()


def test_pools_that_are_none(pooled: teal.Host) -> None:
    with pytest.raises(teal.NotFound, match=r"pool 'no'; this host has \['default', 'fast', 'other'\]"):
        pooled.load("x", "builtin:sum", pool="no")


@pytest.mark.parametrize(
    ("pools", "said"),
    [
        ({"a": {"worker": 1}}, r"\$\.pools\['a'\]: \['worker'\]: not settings of a pool; there are"),
        ({"a": {"workers": 0}}, r"\$\.pools\['a'\]\.workers: 0, expected 1 to 64"),
        (
            {"a": {"workers": "2"}},
            r"\$\.pools\['a'\]\.workers: '2' is of type str, expected a whole number",
        ),
        ({"a": {"idle": "soon"}}, r"\$\.pools\['a'\]\.idle: 'soon', expected a duration"),
        ({"a": {"cores": [4000]}}, r"\$\.pools\['a'\]\.cores: cores \[4000\]: this process may use"),
        ({"a": {"cores": "1"}}, r"\$\.pools\['a'\]\.cores: '1' is of type str, expected a list of cores such as"),
        ({"a": {"bytes": 1}}, r"\$\.limits\.bytes: 1, expected 65536 to"),
        ({"a": 3}, r"\$\.pools\['a'\]: 3 is of type int, expected a mapping such as \{'workers': 2"),
        ({"a/b": {}}, r"\$\.pools\['a/b'\]: pool name: expected 1 to 128 letters"),
        ({3: {}}, r"\$\.pools: 3 is of type int, expected a name as the key"),
        (["a"], r"\$\.pools: \['a'\] is of type list, expected a mapping such as \{'fast'"),
        ({f"p{i}": {} for i in range(20)}, r"\$\.pools: 21 pools, expected at most 16"),
    ],
)
def test_settings_that_are_none(pools: Any, said: str) -> None:
    with pytest.raises(teal.InvalidArgument, match=said):
        teal.Host(pools=pools)
