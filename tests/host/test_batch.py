"""Requests that run together (``batch=``, ``delay=``), and names that run in some of the workers only."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.conftest import OnnxModel, unique

import teal
from teal.host.batching import takes_batches
from teal.host.wire import Spec

Counted = Callable[[teal.Model], Any]


@pytest.fixture(scope="module")
def batching() -> Iterator[teal.Host]:
    with teal.Host(unique(), batch=8, pools={"alone": {"batch": 1}, "late": {"delay": "30ms"}}) as host:
        yield host


class Gate:
    """Keeps a worker busy until it opens."""

    def __init__(self, host: teal.Host, path: Path, pool: str = "default") -> None:
        self._path = path
        model = host.load(f"gate-{pool}", "toy_kernels:gate", pool=pool)
        self._future = model.submit([str(path)])
        while not self._future.running():
            pass

    def open(self) -> None:
        self._path.touch()
        self._future.result()


def test_what_waits_runs_together(batching: teal.Host, tmp_path: Path, counted: Counted) -> None:
    model = batching.load("rows", "toy_kernels:rowwise")
    assert model.info.takes_batches
    gate = Gate(batching, tmp_path / "gate")
    futures = [model.submit(np.full((1 + i % 2, 3), i, np.float32)) for i in range(6)]  # 9 rows
    gate.open()
    rows = []
    for i, future in enumerate(futures):
        y, count = future.result()
        assert np.array_equal(y, np.full((1 + i % 2, 3), 2 * i))
        rows.append(int(count.numpy()[0]))
    assert max(rows) in (7, 8)
    numbers = counted(model)
    assert numbers.runs_together == 1
    assert numbers.batched == 5
    assert numbers.mean_batch == 5.0
    assert numbers.requests == 6
    assert model(np.ones((1, 3), np.float32))[1].numpy().tolist() == [1]  # alone: no copy in between
    assert counted(model).runs_together == 1


def test_a_pool_without(batching: teal.Host, tmp_path: Path, counted: Counted) -> None:
    model = batching.load("single", "toy_kernels:rowwise", pool="alone")
    assert not model.info.takes_batches
    gate = Gate(batching, tmp_path / "gate", "alone")
    futures = [model.submit(np.full((1, 3), i, np.float32)) for i in range(6)]
    gate.open()
    assert all(future.result()["rows"].numpy().tolist() == [1] for future in futures)
    assert counted(model).runs_together == 0


def test_ends_of_their_own(batching: teal.Host, tmp_path: Path) -> None:
    """A bad one, one that was cancelled, one that is late, other shapes, more rows than fit, none at all."""
    model = batching.load("mixed", "toy_kernels:rowwise")
    gate = Gate(batching, tmp_path / "gate")
    good = [model.submit(np.full((1, 3), i, np.float32)) for i in range(3)]
    bad = model.submit(np.full((1, 3), -1, np.float32))
    cancelled = model.submit(np.full((1, 3), 7, np.float32))
    late = model.submit(np.full((1, 3), 8, np.float32), deadline=0.01)
    wide = [model.submit(np.full((2, 5), i, np.float32)) for i in range(2)]
    huge = model.submit(np.full((1000, 5), 3, np.float32))
    none = model.submit(np.zeros((0, 5), np.float32))
    assert cancelled.cancel()
    assert isinstance(late.exception(), teal.DeadlineExceeded)
    gate.open()
    assert [float(future.result()["y"].numpy()[0, 0]) for future in good] == [0, 2, 4]
    with pytest.raises(teal.KernelFailed, match="a negative number"):
        bad.result()
    assert [float(future.result()["y"].numpy()[0, 0]) for future in wide] == [0, 2]
    assert huge.result()["y"].shape == (1000, 5)
    assert none.result()["y"].shape == (0, 5)
    assert isinstance(cancelled.exception(), teal.Cancelled)


def test_delay(batching: teal.Host, counted: Counted) -> None:
    """The first waits for others, and no other model's request for it."""
    model = batching.load("slow", "toy_kernels:rowwise", pool="late")
    other = batching.load("other", "builtin:identity", pool="late")
    futures = [model.submit(np.full((1, 2), i, np.float32)) for i in range(3)]
    assert np.array_equal(other(np.ones(3))[0], np.ones(3))
    assert [future.result()["rows"].numpy()[0] for future in futures] == [3, 3, 3]
    assert model(np.zeros((1, 2), np.float32))["rows"].numpy()[0] == 1
    assert counted(model).runs_together == 1
    pool = next(pool for pool in batching.statistics().pools if pool.name == "late")
    assert (pool.batch, pool.delay_us) == (8, 30_000)


def test_onnx(batching: teal.Host, onnx_model: OnnxModel, tmp_path: Path, counted: Counted) -> None:
    path = onnx_model("g (float[batch, 2] x, float[batch] y) => (float[batch, 2] z) { a = Constant<value_ints=[1]>() "
                      "b = Unsqueeze(y, a) z = Add(x, b) }")  # fmt: skip
    model = batching.load("add", path)
    gate = Gate(batching, tmp_path / "gate")
    futures = [model.submit(np.full((i, 2), i, np.float32), np.arange(i, dtype=np.float32)) for i in (1, 2, 1, 3)]
    gate.open()
    for i, future in zip((1, 2, 1, 3), futures, strict=True):
        assert np.array_equal(future.result()[0], np.arange(i)[:, None] + np.full((i, 2), i))
    assert counted(model).batched == 4


def test_pipelines_and_batches(batching: teal.Host, tmp_path: Path, counted: Counted) -> None:
    model = batching.load("stage", "toy_kernels:rowwise")
    gate = Gate(batching, tmp_path / "gate")
    firsts = [model.submit(np.full((1, 2), i, np.float32)) for i in range(4)]
    seconds = [model.submit(first["y"]) for first in firsts]
    gate.open()
    assert [float(second.result()["y"].numpy()[0, 1]) for second in seconds] == [0, 4, 8, 12]
    assert counted(model).batched == 8


def test_one_that_kills_its_worker(tmp_path: Path) -> None:
    with teal.Host(unique(), batch=8) as host:
        model = host.load("deadly", "toy_kernels:deadly")
        gate = Gate(host, tmp_path / "gate")
        good = [model.submit(np.full((1, 2), i, np.float32)) for i in range(3)]
        bad = model.submit(np.full((1, 2), -1, np.float32))
        gate.open()
        assert [float(future.result()[0].numpy()[0, 0]) for future in good] == [1, 2, 3]  # each ran again by itself
        assert isinstance(bad.exception(), teal.PeerDied)


def test_many_clients(batching: teal.Host, counted: Counted) -> None:
    model = batching.load("many", "toy_kernels:rowwise")

    def calls(seed: int) -> None:
        with teal.connect(batching.address) as client:
            mine = client.model("many")
            for i in range(50):
                value = float(seed * 100 + i)
                assert np.array_equal(mine(np.full((1, 4), value, np.float32))["y"], np.full((1, 4), 2 * value))

    threads = [threading.Thread(target=calls, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counted(model).requests == 200


def test_which_take_part() -> None:
    def takes(*shapes: Any, kind: str = "onnx", pure: bool = True, dtype: str = "float32") -> bool:
        specs = [Spec(f"t{i}", dtype, list(shape) if shape is not None else None) for i, shape in enumerate(shapes)]
        return takes_batches(kind, pure=pure, inputs=specs[:1], outputs=specs[1:])

    assert takes(("batch", 3), ("batch",))
    assert takes(("N", 3), ("batch_size", 2))  # exporters' words for the same
    assert takes(("rows",), ("rows", "n"), kind="function")
    assert not takes(("rows", 3), ("others", 3))
    assert not takes(("batch", 3), (1, 3))
    assert not takes(("batch", 3), ())
    assert not takes(("batch", 3), None)
    assert not takes((None, 3), (None, 3))
    assert not takes(("batch",), ("batch",), pure=False)
    assert not takes(("batch",), ("batch",), kind="builtin")
    assert not takes(("batch",), ("batch",), dtype="BYTES")


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"batch": 0}, r"\$\.batch: 0, expected 1 to 256"),
        ({"batch": 10**6}, r"\$\.batch: 1000000, expected 1 to 256"),
        ({"batch": "8"}, r"\$\.batch: '8' is of type str"),
        ({"delay": "soon"}, r"\$\.delay: 'soon', expected a duration"),
        ({"delay": -1}, r"\$\.delay"),
        ({"pools": {"p": {"batch": 2.5}}}, r"\$\.pools\['p'\]\.batch"),
    ],
)
def test_wrong_settings(settings: dict[str, Any], expected: str) -> None:
    with pytest.raises(teal.InvalidArgument, match=expected):
        teal.Host(unique(), **settings)


def test_concurrency(tmp_path: Path) -> None:
    """A long model leaves a worker to the others."""
    with teal.Host(unique(), workers=2) as host:
        gate = host.load("gate", "toy_kernels:gate", concurrency=1)
        echo = host.load("echo", "builtin:identity")
        assert gate.info.concurrency == 1
        path = tmp_path / "gate"
        futures = [gate.submit([str(path)], np.int64(i)) for i in range(4)]
        for i in range(20):
            assert int(echo(np.int64(i))[0].numpy()) == i
        assert not any(future.done() for future in futures)
        while (
            sum(future.running() for future in futures) != 1
        ):  # that worker may be slower to wake than the other one to answer
            time.sleep(0.001)
        assert gate.statistics().held > 0
        path.touch()
        assert [int(future.result()[0].numpy()) for future in futures] == [0, 1, 2, 3]
        assert host.load("gate", "toy_kernels:gate").info.concurrency is None  # the load that came last says
        for wrong in (0, 65, "1", True):
            with pytest.raises(teal.InvalidArgument, match=r"\$\.concurrency"):
                host.load("x", "builtin:identity", concurrency=wrong)  # type: ignore[arg-type]
