"""Files of OpenVINO and PyTorch that are damaged, and an engine that takes its process with it.

Whatever a file says, its load fails with words, or it runs; at the worst it costs a worker, and the others go on.
"""

from __future__ import annotations

import importlib.util
import json
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from crash_host import CrashHost
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import teal

KERNELS = Path(__file__).parents[1] / "kernel"
FUZZED = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A .pt2 file."""
    pytest.importorskip("torch")
    sys.path.insert(0, str(KERNELS))
    exported = importlib.import_module("exported")
    return exported.batched(tmp_path_factory.mktemp("pt2") / "mlp.pt2", exported.Perceptron())  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def ir(tmp_path_factory: pytest.TempPathFactory, mlp_path: Path) -> Path:
    """An OpenVINO IR."""
    ov = pytest.importorskip("openvino")
    path = tmp_path_factory.mktemp("ir") / "mlp.xml"
    ov.save_model(ov.Core().read_model(mlp_path), path, compress_to_fp16=False)
    return path


@pytest.fixture(scope="module")
def stage() -> Iterator[teal.Host]:
    with CrashHost(workers=1) as host:
        attached = teal.connect(host.address)
        attached.load("square", "crash_kernels:square")
        yield attached
        attached.close()


def tried(stage: teal.Host, path: Path) -> str:
    """What became of a load: loaded, refused or died. A host that answers wrongly afterwards fails the test."""
    try:
        model = stage.load("fuzzed", path, timeout=60)
        outcome = "loaded"
        if [(spec.dtype, spec.shape) for spec in model.inputs] == [("float32", ("batch", 64))]:
            model(np.zeros((2, 64), np.float32), deadline=30)
    except teal.PeerDied:
        outcome = "died"
    except teal.TealError as error:
        assert str(error)  # noqa: PT017
        outcome = "refused"
    assert float(stage.model("square")(np.array([7.0]))[0].numpy()[0]) == 49
    return outcome


@given(st.data())
@FUZZED
def test_damaged_archives(program: Path, stage: teal.Host, tmp_path_factory: Any, data: Any) -> None:
    whole = bytearray(program.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        # Headers are at the places where records begin, and the directory is at the end.
        place = data.draw(st.one_of(st.integers(0, 400), st.integers(len(whole) - 1500, len(whole) - 1)))
        whole[place] = data.draw(st.integers(0, 255))
    cut = data.draw(st.one_of(st.none(), st.integers(0, len(whole))))
    path = tmp_path_factory.getbasetemp() / "damaged.pt2"
    path.write_bytes(bytes(whole[:cut]))
    assert tried(stage, path) != "died"


SCALARS = st.one_of(st.none(), st.integers(-3, 1 << 70), st.text(max_size=20), st.booleans(), st.lists(st.integers()))


def changed(value: Any, draw: Any) -> Any:
    """A JSON document with one part replaced."""
    while True:
        if isinstance(value, dict) and value:
            key = draw(st.sampled_from(sorted(value)))
            if draw(st.booleans()) or not isinstance(value[key], (dict, list)) or not value[key]:
                value[key] = draw(SCALARS)
                return None
            value = value[key]
        elif isinstance(value, list) and value:
            place = draw(st.integers(0, len(value) - 1))
            if draw(st.booleans()) or not isinstance(value[place], (dict, list)) or not value[place]:
                value[place] = draw(SCALARS)
                return None
            value = value[place]
        else:
            return None


@given(st.data())
@FUZZED
def test_programs_that_lie(program: Path, stage: teal.Host, tmp_path_factory: Any, data: Any) -> None:
    path = tmp_path_factory.getbasetemp() / "lies.pt2"
    wanted = data.draw(st.sampled_from(["models/model.json", "weights_config.json", "constants_config.json"]))
    with zipfile.ZipFile(program) as old, zipfile.ZipFile(path, "w") as new:
        for entry in old.infolist():
            raw = old.read(entry)
            if entry.filename.endswith(wanted):
                document = json.loads(raw)
                changed(document, data.draw)
                raw = json.dumps(document).encode()
            new.writestr(entry.filename, raw)
    assert tried(stage, path) != "died"


@given(st.data())
@FUZZED
def test_damaged_irs(ir: Path, stage: teal.Host, tmp_path_factory: Any, data: Any) -> None:
    """OpenVINO reads these itself: what it does not survive is contained."""
    text = bytearray(ir.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        text[data.draw(st.integers(0, len(text) - 1))] = data.draw(st.integers(32, 126))
    path = tmp_path_factory.getbasetemp() / "damaged.xml"
    path.write_bytes(bytes(text))
    weights = ir.with_suffix(".bin").read_bytes()
    path.with_suffix(".bin").write_bytes(weights[: data.draw(st.integers(0, len(weights)))])
    tried(stage, path)


def test_one_of_five_dies(program: Path, mlp_path: Path, tmp_path: Path) -> None:
    """A resident model whose code kills the worker: the other four, of every engine, answer as before."""
    x = np.random.default_rng(0).random((3, 64), np.float32)
    with CrashHost(workers=1) as host, teal.connect(host.address) as attached:
        attached.load("onnx", mlp_path)
        attached.load("torch", program)
        attached.load("square", "crash_kernels:square")
        names = ["onnx", "torch"]
        if importlib.util.find_spec("openvino") is not None:
            attached.load("openvino", mlp_path, kernel="openvino")
            names.append("openvino")
        attached.load("deadly", "crash_kernels:misbehave")
        before = {name: attached.model(name)(x)[0].numpy().copy() for name in names}
        (worker,) = host.workers()
        with pytest.raises(teal.PeerDied):
            attached.model("deadly")("segfault")
        for name in names:
            assert np.array_equal(attached.model(name)(x)[0].numpy(), before[name])
        assert float(attached.model("square")(np.array([7.0]))[0].numpy()[0]) == 49
        assert host.workers() != [worker]
