"""Files that are truncated, damaged or lie: the load fails and says why, and nobody else notices.

Should the engine itself crash on one, that load fails, and a new worker takes over.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import bad_models
import numpy as np
import pytest
import watch
from crash_host import CrashHost

import teal

SECRET = b"nobody but the owner may read this"


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[CrashHost, teal.Host]]:
    """One host for all files: it must outlive every one of them."""
    with CrashHost(workers=1) as host:
        attached = teal.connect(host.address)
        attached.load("square", "crash_kernels:square")
        attached.load("warm", save(tmp_path_factory.mktemp("warm") / "warm.onnx", bad_models.good()))
        yield host, attached
        attached.close()


def save(path: Path, model: Any) -> Path:
    path.write_bytes(model if isinstance(model, bytes) else model.SerializeToString())
    return path


def still_right(attached: teal.Host) -> None:
    assert float(attached.model("square")(np.array([7.0]))[0].numpy()[0]) == 49


@pytest.mark.parametrize(("name", "data"), list(bad_models.refused()), ids=lambda v: v if isinstance(v, str) else "")
def test_refused(name: str, data: bytes, stage: tuple[CrashHost, teal.Host], tmp_path: Path) -> None:
    host, attached = stage
    workers = host.workers()
    path = save(tmp_path / f"{name}.onnx", data)
    with pytest.raises(teal.InvalidArgument) as caught:
        attached.load("bad", path)
    assert "empty" in str(caught.value) if name == "zero-bytes" else str(path) in str(caught.value)
    still_right(attached)
    assert host.workers() == workers
    with pytest.raises(teal.NotFound):
        attached.model("bad")


@pytest.mark.parametrize(("name", "data"), list(bad_models.survived()), ids=lambda v: v if isinstance(v, str) else "")
def test_survived(name: str, data: bytes, stage: tuple[CrashHost, teal.Host], tmp_path: Path) -> None:
    host, attached = stage
    workers = host.workers()
    try:
        model = attached.load("odd", save(tmp_path / f"{name}.onnx", data))
    except teal.TealError as error:
        assert str(error)  # noqa: PT017
    else:
        inputs = {"x": np.zeros(1, np.float32), "c": np.array(True)}
        with_names = {spec.name: inputs[spec.name] for spec in model.inputs}
        try:
            model(**with_names)
        except teal.TealError as error:
            assert str(error)  # noqa: PT017
        attached.unload("odd")
    still_right(attached)
    assert host.workers() == workers


def test_flipped_bits(
    stage: tuple[CrashHost, teal.Host], dice: random.Random, rounds: Callable[[int], int], tmp_path: Path
) -> None:
    """Any damage: an error, or a model that runs; at the worst a dead worker, and the pool goes on."""
    _, attached = stage
    outcomes = {"loaded": 0, "refused": 0, "died": 0}
    for i, data in enumerate(bad_models.flipped(dice, rounds(120))):
        path = save(tmp_path / f"flipped-{i % 4}.onnx", data)
        try:
            model = attached.load("flipped", path)
            outcomes["loaded"] += 1
            if [spec.name for spec in model.inputs] == ["x"]:
                model(x=np.zeros((2, 128), np.float32), deadline=30)
        except teal.PeerDied as error:
            outcomes["died"] += 1
            print(f"onnxruntime crashed on a damaged file: {error}")
        except teal.TealError:
            outcomes["refused"] += 1
        still_right(attached)
    print(outcomes)
    assert outcomes["refused"] > 0
    if attached.models():
        watch.until(lambda: attached.statistics().active == 0, "all calls to end")


def test_engine_does_not_call_home(stage: tuple[CrashHost, teal.Host]) -> None:
    """onnxruntime keeps a database of what it would report to its maker: a worker has nothing of the kind open."""
    host, _ = stage
    for pid in host.workers():
        assert not [kind for kind in watch.descriptors(pid) if "onnxruntime" in kind]


@pytest.mark.parametrize("kind", ["directory", "fifo", "missing", "socket name"])
def test_no_file_at_all(kind: str, stage: tuple[CrashHost, teal.Host], tmp_path: Path) -> None:
    _, attached = stage
    path = tmp_path / "thing.onnx"
    if kind == "directory":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "socket name":
        path = Path("/dev/null")
    with pytest.raises((teal.NotFound, teal.InvalidArgument)) as caught:
        attached.load("bad", path, kernel="onnx")
    assert str(path) in str(caught.value)
    still_right(attached)


def test_file_changes_after_it_was_loaded(stage: tuple[CrashHost, teal.Host], tmp_path: Path) -> None:
    """The host keeps a sealed copy: neither truncation nor new contents reach the model."""
    host, attached = stage
    workers = host.workers()
    path = save(tmp_path / "m.onnx", bad_models.good())
    model = attached.load("m", path)
    x = np.ones((1, 128), np.float32)
    before = model(x=x)[0].numpy().copy()
    path.write_bytes(b"")
    assert np.array_equal(model(x=x)[0].numpy(), before)
    os.kill(workers[0], 9)
    assert np.array_equal(model(x=x)[0].numpy(), before)
    attached.unload("m")


# ---- data outside the model file -------------------------------------------------------------------------------------


def stolen(attached: teal.Host, *arguments: Any, **options: Any) -> bytes:
    """What a model whose weights are another file shows of it. Raises what refused it."""
    model = attached.load("thief", *arguments, **options)
    try:
        return bytes(np.asarray(model()[0].numpy(), np.uint8).tobytes())
    finally:
        attached.unload("thief")


def test_external_data_beside_the_model(stage: tuple[CrashHost, teal.Host], tmp_path: Path) -> None:
    _, attached = stage
    (tmp_path / "weights.bin").write_bytes(SECRET)
    assert stolen(attached, save(tmp_path / "m.onnx", bad_models.external("weights.bin", len(SECRET)))) == SECRET


LOCATIONS = ["../outside/secret", "/etc/passwd", "{outside}", "./../outside/secret", "sub/../../outside/secret", "link"]


@pytest.mark.parametrize("location", LOCATIONS)
@pytest.mark.parametrize("way", ["file", "repository"])
def test_external_data_elsewhere(way: str, location: str, hosts: Callable[..., CrashHost], tmp_path: Path) -> None:
    """A model does not read outside its own folder, whatever it says about where its weights are."""
    outside = tmp_path / "outside" / "secret"
    folder = tmp_path / "models" / "thief"
    for path in (outside.parent, folder / "sub"):
        path.mkdir(parents=True)
    outside.write_bytes(SECRET)
    (folder / "link").symlink_to(outside)
    model = bad_models.external(location.format(outside=outside), len(SECRET))
    file = save(folder / "model.onnx", model)
    options = {"repository": str(tmp_path / "models")} if way == "repository" else {}
    host = hosts(workers=1, **options)
    with teal.connect(host.address) as attached:
        with pytest.raises(teal.TealError) as caught:
            stolen(attached, *([] if way == "repository" else [file]))
        assert not isinstance(caught.value, teal.PeerDied)
        assert "model" in str(caught.value)


@pytest.mark.parametrize(("nbytes", "offset"), [(1 << 40, 0), (10, 1 << 40), (10, -5), (1 << 62, 1 << 62)])
def test_external_data_that_lies(nbytes: int, offset: int, stage: tuple[CrashHost, teal.Host], tmp_path: Path) -> None:
    host, attached = stage
    workers = host.workers()
    (tmp_path / "weights.bin").write_bytes(SECRET)
    path = save(tmp_path / "m.onnx", bad_models.external("weights.bin", nbytes, offset))
    with pytest.raises(teal.TealError):
        stolen(attached, path)
    still_right(attached)
    assert host.workers() == workers


def test_external_folder_is_not_an_option(stage: tuple[CrashHost, teal.Host], tmp_path: Path) -> None:
    """The session option that says where external data is would be a way round all of this."""
    _, attached = stage
    path = save(tmp_path / "m.onnx", bad_models.external("passwd", 5))
    with pytest.raises(teal.InvalidArgument, match="is the model's own folder"):
        stolen(attached, path, options={"session.model_external_initializers_file_folder_path": "/etc"})
