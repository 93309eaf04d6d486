"""Optimised forms that engines make: kept by the host, given to every other worker, and never trusted blindly."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import teal
from teal.errors import InvalidArgument
from teal.host import repository, snapshot
from teal.kernel.protocol import Snapshot, Source, load_kernel

WIDTH = 600  # a weight of 1.4 MB: smaller files have no snapshot


@pytest.fixture
def loaded(engine: str, wide: Path) -> Iterator[Callable[..., Any]]:
    """``loaded(**of the source)``: a kernel of the wide model, in this process."""
    opened: list[Any] = []
    fd = os.open(wide, os.O_RDONLY)

    def load(**about: Any) -> Any:
        opened.append(load_kernel(engine, Source("wide", str(wide), fd, 1, **about)))
        return opened[-1]

    yield load
    for kernel in opened:
        kernel.close()
    os.close(fd)


def sealed_part(data: bytes) -> int:
    from teal.kernel import sealed

    fd = sealed.memory_file("part")
    sealed.write(fd, data)
    return sealed.seal(fd)


def test_made_only_when_wanted(loaded: Callable[..., Any]) -> None:
    assert loaded().snapshot is None
    made = loaded(wants_snapshot=True).snapshot
    assert made.key
    assert all(repository.is_sealed(fd) for fd in made.parts.values())
    made.close()


def test_restored(loaded: Callable[..., Any]) -> None:
    first = loaded(wants_snapshot=True)
    again = loaded(snapshot=first.snapshot, wants_snapshot=True)
    assert (again.note, again.snapshot) == ("", None)
    assert again.weights.startswith("mapped")
    assert (again.inputs, again.outputs) == (first.inputs, first.outputs)
    first.snapshot.close()


def test_foreign_and_broken(loaded: Callable[..., Any]) -> None:
    """An ordinary load, which says why."""
    first = loaded(wants_snapshot=True)
    foreign = Snapshot("another engine", {name: os.dup(fd) for name, fd in first.snapshot.parts.items()})
    kernel = loaded(snapshot=foreign)
    assert "its snapshot was made with another engine" in kernel.note
    assert kernel.inputs == first.inputs
    for name in first.snapshot.parts:
        for data in (b"", b"nonsense" * 100):
            parts = {each: os.dup(fd) for each, fd in first.snapshot.parts.items()}
            os.close(parts[name])
            parts[name] = sealed_part(data)
            broken = Snapshot(first.snapshot.key, parts)
            kernel = loaded(snapshot=broken)
            assert "its snapshot did not load" in kernel.note or name == "weights"
            broken.close()
    foreign.close()
    first.snapshot.close()


def test_given_to_all_workers_and_their_replacements(engine: str, wide: Path) -> None:
    x = np.random.default_rng(1).standard_normal((3, WIDTH)).astype(np.float32)
    with teal.Host(workers=2, threads=1) as host:
        model = host.load("wide", wide, kernel=engine)
        wanted = model(x)[0].numpy().copy()
        info = host.model("wide").info
        assert info.snapshot > WIDTH * WIDTH
        assert info.weights.startswith("mapped")
        (verified,) = host.verify()
        assert verified.ok
        assert verified.snapshot
        for worker in host.statistics().workers:
            os.kill(worker.pid, 9)
        for _ in range(10):
            assert np.array_equal(model(x)[0].numpy(), wanted)
        again = host.load("again", wide, kernel=engine)  # the same file: the same snapshot
        assert again.info.snapshot == info.snapshot
        assert np.array_equal(again(x)[0].numpy(), wanted)
        host.unload("wide")
        assert np.array_equal(again(x)[0].numpy(), wanted)


def test_small_files_have_none(mlp_path: Path, engine: str) -> None:
    with teal.Host(workers=2, threads=1) as host:
        assert host.load("mlp", mlp_path, kernel=engine).info.snapshot == 0


def test_compiled_programs(tmp_path: Path) -> None:
    """The second worker, and every other one, gets the library that was compiled for the first."""
    torch = pytest.importorskip("torch")
    exported = pytest.importorskip("exported")
    if shutil.which("g++") is None:
        pytest.skip("no C++ compiler: apt-get install g++")
    chance = torch.Generator()
    chance.seed()
    module = exported.Perceptron()
    module.second.bias.data.uniform_(generator=chance)  # a model that is in no cache
    path = exported.batched(tmp_path / "m.pt2", module)
    x = np.ones((2, 64), np.float32)
    with teal.Host(workers=2, threads=1) as host:
        model = host.load("mlp", path, options={"compile": "1"}, timeout=500)
        wanted = model(x)[0].numpy().copy()
        assert host.model("mlp").info.snapshot > 0
        for worker in host.statistics().workers:
            os.kill(worker.pid, 9)
        assert host.statistics().cache.hits == 0
        assert np.array_equal(model(x, deadline=500)[0].numpy(), wanted)
    with teal.Host(threads=1) as host:  # the next host has it from disk
        again = host.load("mlp", path, options={"compile": "1"}, timeout=500)
        assert np.array_equal(again(x)[0].numpy(), wanted)
        assert (host.statistics().cache.hits, again.statistics().note) == (1, "")


def test_what_is_not_sealed_is_not_kept() -> None:
    fd = os.memfd_create("open", os.MFD_ALLOW_SEALING)
    with pytest.raises(InvalidArgument, match="expected 1 to 3 sealed ones"):
        snapshot.kept("key", ["one"], [fd])
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(fd)
