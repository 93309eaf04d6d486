"""Rolling back: an earlier version is current again; no request is lost, none is answered by two versions."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.conftest import OnnxModel

import teal

FIRST, SECOND = "toy_kernels:first", "toy_kernels:second"


@pytest.fixture
def name(host: teal.Host) -> Iterator[str]:
    yield "model"
    if any(info.name == "model" for info in host.models()):
        host.unload("model")


def answer(model: teal.Model) -> int:
    return int(model(0)["output"].numpy())


def info_of(host: teal.Host, name: str) -> teal.ModelInfo:
    (info,) = [info for info in host.models() if info.name == name and info.current]
    return info


def test_back_and_forth(host: teal.Host, name: str) -> None:
    model = host.load(name, FIRST)
    first = model.version
    host.load(name, SECOND)
    assert info_of(host, name).kept == (first,)
    back = host.rollback(name)
    assert (back.version, answer(back), answer(model)) == (first, 1, 1)
    assert info_of(host, name).kept == (first + 1,)
    assert host.rollback(name).version == first + 1
    assert answer(model) == 2
    assert host.load(name, FIRST).version == first + 2  # a new version has a number of its own


def test_only_so_many_are_kept() -> None:
    with teal.Host(keep=2) as host:
        for source in (FIRST, SECOND, FIRST, SECOND):
            host.load("model", source)
        assert info_of(host, "model").kept == (2, 3)
        assert host.rollback("model", 2).version == 2
        assert info_of(host, "model").kept == (3, 4)
        with pytest.raises(teal.NotFound, match=r"version 1 of 'model': kept are \[3, 4\], loaded \[2\]"):
            host.rollback("model", 1)
        assert answer(host.model("model")) == 2


def test_nothing_to_roll_back_to(host: teal.Host, name: str) -> None:
    with pytest.raises(teal.NotFound, match="model 'model' is not loaded"):
        host.rollback(name)
    host.load(name, FIRST)
    with pytest.raises(teal.NotFound, match="an earlier version of 'model'"):
        host.rollback(name)
    with teal.Host(keep=0) as other:
        other.load(name, FIRST)
        other.load(name, SECOND)
        with pytest.raises(teal.NotFound, match="a pool keeps 0 replaced"):
            other.rollback(name)


def test_to_a_version_that_is_loaded(host: teal.Host, name: str) -> None:
    host.load(name, FIRST, version=1)
    host.load(name, SECOND, version=2)
    assert answer(host.rollback(name, 1)) == 1
    assert answer(host.model(name, 2)) == 2  # it stands beside, as before
    assert answer(host.rollback(name, 1)) == 1  # where it is already


def test_an_update_to_a_broken_model_is_refused_and_the_old_one_serves_on(
    host: teal.Host, name: str, onnx_model: OnnxModel, tmp_path: Path
) -> None:
    good = host.load(name, onnx_model("g (float[N] x) => (float[N] y) { y = Neg(x) }"))
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"\x08\x0a" + os.urandom(200))
    with pytest.raises(teal.InvalidArgument, match="not a model"):
        host.load(name, broken)
    assert good(np.float32([1, 2]))[0].numpy().tolist() == [-1, -2]
    assert info_of(host, name).kept == ()


def test_the_file_of_a_kept_version_is_the_one_that_was_loaded(
    host: teal.Host, name: str, onnx_model: OnnxModel
) -> None:
    path = onnx_model("g (float[N] x) => (float[N] y) { y = Neg(x) }")
    model = host.load(name, path)
    digest = info_of(host, name).digest
    path.write_bytes(onnx_model("g (float[N] x) => (float[N] y) { y = Abs(x) }", "other").read_bytes())
    host.load(name, path)
    assert model(np.float32([-1, 2]))[0].numpy().tolist() == [1, 2]
    host.rollback(name)
    assert model(np.float32([-1, 2]))[0].numpy().tolist() == [1, -2]
    assert info_of(host, name).digest == digest
    assert all(found.ok for found in host.verify(name))


@pytest.mark.parametrize("workers", [1, 2])
def test_under_load(workers: int) -> None:
    """Each answer is of one version: both outputs come from the same."""
    with teal.Host(workers=workers) as host:
        model = host.load("model", "toy_kernels:first_twice")
        host.load("model", "toy_kernels:second_twice")
        stop = threading.Event()
        failed: list[BaseException] = []
        mixed = []

        def calls() -> None:
            try:
                while not stop.is_set():
                    out = model(0)
                    pair = (int(out[0].numpy()), int(out[1].numpy()))
                    if pair[0] != pair[1]:
                        mixed.append(pair)
            except BaseException as error:
                failed.append(error)

        threads = [threading.Thread(target=calls) for _ in range(2)]
        for thread in threads:
            thread.start()
        for turn in range(20):
            assert host.rollback("model").version == 1 + turn % 2
        stop.set()
        for thread in threads:
            thread.join()
        assert (failed, mixed) == ([], [])


def test_nothing_is_left_open() -> None:
    def descriptors() -> int:
        gc.collect()  # what a host and its client know of each other
        return len(os.listdir("/proc/self/fd"))

    with teal.Host() as host:
        host.load("warm", FIRST)
    before = descriptors()
    with teal.Host(keep=3) as host:
        for _ in range(3):
            host.load("model", FIRST)
        host.rollback("model")
    assert descriptors() <= before
