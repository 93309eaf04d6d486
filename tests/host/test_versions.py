"""Versions: replaced under load without a lost call, pinned, unloaded."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import teal


@pytest.fixture
def name(host: teal.Host) -> Iterator[str]:
    yield "model"
    if any(info.name == "model" for info in host.models()):
        host.unload("model")


def answer(model: teal.Model) -> int:
    return int(model(0)["output"].numpy())


FIRST, SECOND = "toy_kernels:first", "toy_kernels:second"


def test_a_load_replaces_the_current_version(host: teal.Host, name: str) -> None:
    model = host.load(name, FIRST)
    number = model.version
    assert answer(model) == 1
    newer = host.load(name, SECOND)
    assert newer.version == number + 1
    assert (answer(model), answer(newer), answer(host.model(name))) == (2, 2, 2)
    (info,) = [info for info in host.models() if info.name == name]
    assert (info.version, info.current, info.pinned, info.source) == (number + 1, True, False, SECOND)


@pytest.mark.parametrize(("workers", "threads"), [(1, 2), (2, 3)])
def test_reload_under_load(counted: Any, workers: int, threads: int) -> None:
    """Nobody fails, each answer is of one version, and once a version has answered, the one before never does again."""
    with teal.Host(workers=workers) as host:
        reload_under_load(host, "model", counted, threads)


def reload_under_load(host: teal.Host, name: str, counted: Any, threads: int) -> None:
    model = host.load(name, FIRST)
    stop = threading.Event()
    failures: list[BaseException] = []
    answers: list[list[int]] = [[] for _ in range(threads)]

    def calls(mine: list[int], style: int) -> None:
        x = model.new_inputs(x=("int64", ()))
        try:
            while not stop.is_set():
                if style == 0:
                    mine.append(int(model(0)[0].numpy()))
                elif style == 1:
                    mine.append(int(model(**x)[0].numpy()))
                else:
                    futures = [model.submit(0) for _ in range(5)]
                    mine.extend(int(future.result()[0].numpy()) for future in futures)
        except BaseException as error:
            failures.append(error)

    callers = [threading.Thread(target=calls, args=(answers[i], i)) for i in range(threads)]
    for caller in callers:
        caller.start()
    while not failures and not all(answers):
        pass
    reloads = 20
    for i in range(reloads):
        host.load(name, (SECOND, FIRST)[i % 2])
        before = [len(mine) for mine in answers]
        while not failures and any(len(mine) <= seen + 2 for mine, seen in zip(answers, before, strict=True)):
            pass
    stop.set()
    for caller in callers:
        caller.join()
    assert not failures
    for mine in answers:
        turns = [a for a, b in zip(mine, [0, *mine], strict=False) if a != b]
        assert turns == [1, 2] * (reloads // 2) + [1]
    (info,) = [info for info in host.models() if info.name == name]
    assert info.version == model.version + reloads
    assert counted(model).failed == 0


def test_a_load_that_fails_changes_nothing(host: teal.Host, name: str, tmp_path: Path) -> None:
    model = host.load(name, FIRST)
    spoilt = tmp_path / "spoilt.onnx"
    spoilt.write_bytes(b"nothing")
    for source in ("toy_kernels:nothing", "toy_kernels:Broken", spoilt, "builtin:nothing"):
        with pytest.raises(teal.TealError):
            host.load(name, source)
        assert answer(model) == 1
    assert [info.version for info in host.models() if info.name == name] == [model.version]


def test_pinned_versions_stay(host: teal.Host, name: str) -> None:
    one = host.load(name, FIRST, version=1001)
    two = host.load(name, SECOND, version=1002)
    assert (one.version, two.version) == (1001, 1002)
    assert (answer(one), answer(two), answer(host.model(name)), answer(host.model(name, version=1001))) == (1, 2, 2, 1)
    infos = {info.version: info for info in host.models() if info.name == name}
    assert {number: (info.current, info.pinned) for number, info in infos.items()} == {
        1001: (False, True),
        1002: (True, True),
    }
    assert host.load(name, FIRST).version == 1003  # beside the pinned ones
    assert (answer(one), answer(two), answer(host.model(name))) == (1, 2, 1)
    with pytest.raises(teal.InvalidArgument, match=r"\$\.version: version 1002 of 'model' is loaded"):
        host.load(name, FIRST, version=1002)
    host.unload(name, version=1003)
    assert answer(host.model(name)) == 2  # the highest that is left
    host.unload(name, version=1002)
    with pytest.raises(teal.NotFound, match=r"version 1002 of model 'model' is not loaded any more"):
        two(0)
    assert answer(one) == 1
    one.unload()
    with pytest.raises(teal.NotFound, match="is not loaded"):
        host.model(name)


@pytest.mark.parametrize("version", [0, -1, 2**31, 2**70])
def test_versions_that_are_none(host: teal.Host, version: int) -> None:
    with pytest.raises((teal.InvalidArgument, OverflowError), match=r"\$\.version|\^31|int"):
        host.load("none", FIRST, version=version)
    with pytest.raises((teal.NotFound, teal.InvalidArgument, OverflowError)):
        host.model("none", version=version)


def test_after_unload_everything_says_not_found(host: teal.Host, name: str) -> None:
    model = host.load(name, FIRST)
    x = model.new_inputs(x=("int64", ()))
    call = model.prepare(**x)
    call()
    model.unload()
    uses = (
        lambda: model(0),
        lambda: model(**x),
        call,
        lambda: model.submit(0).result(),
        model.statistics,
        model.unload,
        lambda: host.model(name),
        lambda: host.unload(name),
        lambda: host.unload(name, version=model.version),
    )
    for use in uses:
        with pytest.raises(teal.NotFound, match="model 'model' is not loaded"):
            use()
    host.load(name, SECOND)  # the handle is good again
    assert (answer(model), int(model(**x)[0].numpy()), int(call()[0].numpy())) == (2, 2, 2)


def test_unload_waits_for_what_runs(host: teal.Host, name: str, tmp_path: Path) -> None:
    model = host.load(name, "toy_kernels:gate")
    futures = [model.submit(str(tmp_path / "open"), i) for i in range(3)]
    while not futures[0].running():
        pass
    unloading = threading.Thread(target=lambda: host.unload(name))
    other = teal.connect(host.address)
    unloading.start()
    while any(info.name == name for info in other.models()):
        pass
    with pytest.raises(teal.NotFound):
        other.model(name)
    assert unloading.is_alive()
    (tmp_path / "open").touch()
    assert [int(future.result()[0].numpy()) for future in futures] == [0, 1, 2]
    unloading.join()
    other.close()


def test_unload_by_force(host: teal.Host, name: str, tmp_path: Path) -> None:
    model = host.load(name, "toy_kernels:gate")
    running = model.submit(str(tmp_path / "open"), 1)
    while not running.running():
        pass
    waiting = [model.submit(str(tmp_path / "open"), 2) for _ in range(3)]
    unloading = threading.Thread(target=lambda: host.unload(name, force=True))
    unloading.start()
    errors = [future.exception() for future in waiting]
    (tmp_path / "open").touch()
    assert [getattr(error, "source", error) for error in errors] == ["unload"] * 3
    assert int(running.result()[0].numpy()) == 1
    unloading.join()


def test_another_signature(host: teal.Host, name: str) -> None:
    """A handle keeps the signature it was made with. What the new version makes of it, it says."""
    old = host.load(name, "toy_kernels:norms")
    x = np.ones((2, 3), np.float32)
    old(x)
    host.load(name, "toy_kernels:pure_double")
    with pytest.raises(teal.TealError):
        old(x)
    assert host.model(name)(np.ones(3, np.float32))["y"].numpy().tolist() == [2, 2, 2]


def test_names(host: teal.Host) -> None:
    for bad in ("", "a/b", "..", "a..b", "a b", ".hidden", "-x", "ü", "a\0b", "x" * 300, "a\n"):
        for use in (
            lambda bad=bad: host.load(bad, FIRST),
            lambda bad=bad: host.model(bad),
            lambda bad=bad: host.unload(bad),
        ):
            with pytest.raises(teal.InvalidArgument, match=r"\$\.name: model name .*expected 1 to 128 letters"):
                use()
    for good in ("a", "A.b-c_9", "x" * 128):
        assert answer(host.load(good, FIRST)) == 1
        host.unload(good)


def test_many_models(host: teal.Host) -> None:
    models = {f"many-{i}": host.load(f"many-{i}", (FIRST, SECOND)[i % 2]) for i in range(20)}
    assert [answer(model) for model in models.values()] == [1, 2] * 10
    assert {info.name for info in host.models()} >= set(models)
    for name in models:
        host.unload(name)
    assert not {info.name for info in host.models()} & set(models)
