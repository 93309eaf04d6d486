"""Answers are the reference's by every path, and the counters say which one it was."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from trained_models import direct_calls, prepared

import teal
from teal.errors import InvalidArgument, NotFound
from teal.kernel import cost
from teal.kernel.systems.task import task_of

LOADS = ("mllb", "kml", "linnos", "linnos+1", "kleio")


@pytest.mark.parametrize("load", LOADS)
def test_a_resident_kernel_answers_directly(kind: str, load: str, trained: Any, models: Any, counted: Any) -> None:
    which = trained(load)
    model = models(which, device=kind, path="apk")
    batches = (1, 7) if load == "kleio" else (1, 7, 40)
    for batch in batches:
        x = which.inputs(batch)
        call, array = prepared(model, x)
        which.check(call(), x)
        for _ in range(5):
            array[:] = x = which.inputs(batch)
            which.check(call(), x)
    direct_calls(call, model)
    numbers = counted(model)
    assert numbers.device == kind
    assert numbers.path == "apk"
    assert numbers.paths["direct"] >= 20
    assert numbers.paths["apk"] >= len(batches)  # the first of each
    assert numbers.paths["cpu"] == numbers.paths["pl"] == numbers.fallbacks == 0
    assert numbers.batches[8] == "apk"
    assert numbers.requests == numbers.paths["direct"] + numbers.paths["apk"]


@pytest.mark.parametrize("load", LOADS)
@pytest.mark.parametrize("path", ["pl", "cpu"])
def test_launches_and_the_cpu(kind: str, load: str, path: str, trained: Any, models: Any, counted: Any) -> None:
    which = trained(load)
    model = models(which, device=kind, path=path)
    for batch in (1, 7) if load == "kleio" else (1, 7, 400):
        x = which.inputs(batch)
        which.check(model(x=x), x)
        which.check(model(x=x), x)
    numbers = counted(model)
    assert numbers.paths == {"direct": 0, "apk": 0, "pl": 0, "cpu": 0} | {path: numbers.requests}


def test_plain_calls_go_directly_too(pocl: str, trained: Any, models: Any) -> None:
    which = trained("mllb")
    model = models(which, device=pocl, path="apk")
    for _ in range(100):
        for _ in range(20):
            x = which.inputs(4)
            which.check(model(x=x), x)
        if model.statistics().paths["direct"] > 5:
            break
    assert model.statistics().paths["direct"] > 5


def test_requests_that_are_not_waited_for(kind: str, trained: Any, models: Any, counted: Any) -> None:
    which = trained("kml")
    model = models(which, device=kind, path="apk")
    inputs = [which.inputs(3) for _ in range(20)]
    for x, future in zip(inputs, [model.submit(x=x) for x in inputs], strict=True):
        which.check(future.result(), x)
    assert counted(model).paths["apk"] == 20


def test_a_kernel_that_parked_comes_back(kind: str, trained: Any, models: Any) -> None:
    which = trained("mllb")
    model = models(which, device=kind, path="apk", idle="1ms")
    call, array = prepared(model, which.inputs(2))
    for _ in range(5):
        by_ring = model.statistics().paths["apk"]
        while model.statistics().paths["apk"] == by_ring:  # until it was parked when it was called
            array[:] = x = which.inputs(2)
            which.check(call(), x)
            time.sleep(0.005)
    assert model.statistics().failed == 0


def test_two_models_share_a_device(kind: str, trained: Any, models: Any) -> None:
    """A CPU device has few parts: the kernels make room for each other, and for launches."""
    every = [(trained("mllb"), "apk"), (trained("kml"), "apk"), (trained("linnos"), "apk"), (trained("mllb", 1), "pl")]
    loaded = [(which, models(which, device=kind, path=path)) for which, path in every]
    calls = [(which, *prepared(model, which.inputs(5))) for which, model in loaded]
    for _ in range(10):
        for which, call, array in calls:
            array[:] = x = which.inputs(5)
            which.check(call(), x)


def test_what_does_not_suit_a_device_runs_on_the_cpu_and_is_counted(
    host: teal.Host, pocl: str, trained: Any, counted: Any
) -> None:
    which = trained("mllb")
    model = host.load("odd", which.path, device=pocl, path="apk")
    tensor = host.empty((4 * 15 + 1,), "float32")
    array = np.asarray(tensor)[1:].reshape(4, 15)  # 4 bytes off what devices take
    array[:] = x = which.inputs(4)
    which.check(model(x=array), x)
    which.check(model(x=array), x)
    numbers = counted(model)
    assert numbers.copies_in == 0
    assert numbers.fallbacks >= 1
    assert numbers.paths["cpu"] == 2
    assert "multiple of 8" in numbers.batches[4]
    model.unload()


def test_nothing_to_do(kind: str, trained: Any, models: Any) -> None:
    which = trained("mllb")
    model = models(which, device=kind, path="apk")
    assert np.asarray(model(x=which.inputs(0))["scores"]).shape == (0, 1)


# ---- auto ------------------------------------------------------------------------------------------------------------


def test_auto_measures_when_a_batch_is_first_seen(kind: str, trained: Any, models: Any, counted: Any) -> None:
    which = trained("kml")
    model = models(which, device=kind)
    for batch in (1, 30):
        x = which.inputs(batch)
        which.check(model(x=x), x)
        which.check(model(x=x), x)
    numbers = counted(model)
    assert numbers.path == "auto"
    assert set(numbers.batches) == {1, 32}
    assert sum(numbers.paths.values()) == 4


def test_auto_takes_what_was_tuned(pocl: str, trained: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    tuned = cost.Costs(
        {1: {"cpu": 9.0, "pl": 5.0, "apk": 1.0}, 2: {"cpu": 9.0, "pl": 1.0, "apk": 5.0}, 4: {"cpu": 1.0, "pl": 9.0}}
    )
    cost.write(pocl, task_of("mllb"), tuned)
    which = trained("mllb")
    with teal.Host(f"tuned-{os.getpid()}") as host:
        model = host.load("mllb", which.path, device=pocl)
        for batch in (1, 2, 3, 700):
            x = which.inputs(batch)
            which.check(model(x=x), x)
        taken = {batch: path.split()[0] for batch, path in model.statistics().batches.items()}
    assert taken == {1: "apk", 2: "pl", 4: "cpu", 1024: "cpu"}


def test_auto_does_without_a_device_and_says_so(host: teal.Host, trained: Any, models: Any, counted: Any) -> None:
    which = trained("mllb")
    model = models(which, device="opencl:nothing-like-that")
    x = which.inputs(3)
    which.check(model(x=x), x)
    numbers = counted(model)
    assert numbers.note.startswith("on the CPU: ")
    assert numbers.paths["cpu"] == 1


@pytest.mark.parametrize("path", ["apk", "pl"])
def test_a_path_that_needs_a_device_needs_it(host: teal.Host, trained: Any, path: str) -> None:
    with pytest.raises(NotFound, match="nothing-like-that"):
        host.load("nowhere", trained("mllb").path, device="opencl:nothing-like-that", path=path)


def test_what_makes_no_sense(host: teal.Host, trained: Any) -> None:
    path = trained("mllb").path
    with pytest.raises(InvalidArgument, match=r"\$\.path"):
        host.load("x", path, path="apk")
    with pytest.raises(InvalidArgument, match=r"\$\.path"):
        host.load("x", path, device="cpu", path="fast")
    with pytest.raises(InvalidArgument, match=r"\$\.device"):
        host.load("x", "builtin:identity", device="opencl")
    with pytest.raises(InvalidArgument, match="expected cpu, opencl"):
        host.load("x", path, device="tpu")
