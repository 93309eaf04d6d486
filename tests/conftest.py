"""What the tests share: an embedded host for each module, models on it that go away with their test, ONNX files."""

from __future__ import annotations

import os
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import teal
from teal.bench import models

KERNELS = Path(__file__).parent / "kernel"
if str(KERNELS) not in sys.path:
    sys.path.insert(0, str(KERNELS))  # workers inherit it: "toy_kernels:NAME" can be loaded

Load = Callable[..., teal.Model]
OnnxModel = Callable[..., Path]


def unique(prefix: str = "test") -> str:
    """A name that no other test has, in this process or another."""
    return f"{prefix}-{uuid.uuid4().hex[:12]}"


def pytest_configure(config: pytest.Config) -> None:
    """pytest-xdist 3.8 writes a group into a field of pytest's that 9.2 no longer has, and says nothing."""
    if getattr(config.option, "dist", "no") == "loadgroup" and not hasattr(pytest.Item, "_nodeid"):
        raise pytest.UsageError("pytest-xdist ignores xdist_group with this pytest: pip install -r locks/test.txt")


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Hosts and compilers that tests start keep nothing in the user's own caches; they share one, as a user's do."""
    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent  # of this run, but of no single process
    folder = shared / "cache"
    folder.mkdir(exist_ok=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder))
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", str(folder / "inductor"))
        yield folder


@pytest.fixture(scope="module")
def host() -> Iterator[teal.Host]:
    """An embedded host with one worker."""
    with teal.Host(unique()) as host:
        yield host


@pytest.fixture
def load(host: teal.Host) -> Iterator[Load]:
    """``load(source, **options)``: a model, unloaded after the test. Clients' counters go on from the test before."""
    names: list[str] = []

    def load(source: str | Path, **options: Any) -> teal.Model:
        names.append(f"m{len(names)}")  # few names: a client counts its calls of 63 models apart
        return host.load(names[-1], source, **options)

    yield load
    loaded = {info.name for info in host.models()}
    for name in loaded & set(names):
        host.unload(name)


@pytest.fixture(scope="session")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An ONNX file: y = relu(x·w), 600 wide: a weight of 1.4 MB, as smaller files have no snapshot."""
    onnx = pytest.importorskip("onnx", reason="onnx is not installed")
    helper, width = onnx.helper, 600
    w = np.random.default_rng(0).standard_normal((width, width)).astype(np.float32)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["m"]), helper.make_node("Relu", ["m"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["batch", width])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["batch", width])],
        [onnx.numpy_helper.from_array(w, "w")],
    )
    path = tmp_path_factory.mktemp("wide") / "wide.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10), path)
    return path


@pytest.fixture(params=["onnx", "openvino"])
def engine(request: pytest.FixtureRequest) -> str:
    """Each engine that makes snapshots of ONNX files; skips what is not installed."""
    pytest.importorskip({"onnx": "onnxruntime", "openvino": "openvino"}[request.param])
    return str(request.param)


@pytest.fixture(scope="session")
def counted() -> Callable[[teal.Model], Any]:
    """``counted(model)``: its statistics, once every request is in them. A worker counts just after it has answered."""

    def counted(model: teal.Model) -> Any:
        while (numbers := model.statistics()).in_flight:
            pass
        return numbers

    return counted


@pytest.fixture(scope="session")
def mlp_path() -> Path:
    """The perceptron 64-64-8 that ships with Teal: input ``x`` (batch, 64), output (batch, 8), float32."""
    return models.mlp()


@pytest.fixture(scope="session")
def minilm_path() -> Path:
    """MiniLM in int8; skips the test where its package is not installed."""
    path = models.minilm()
    if path is None:
        pytest.skip(f"no MiniLM: {models.MINILM_INSTALL}")
    return path


@pytest.fixture
def onnx_model(tmp_path: Path) -> OnnxModel:
    """``onnx_model("g (float[N] x) => (float[N] y) { y = Neg(x) }")``: the path of that model, in ONNX's own syntax."""
    parser = pytest.importorskip("onnx.parser")

    def make(graph: str, name: str = "model", *, check: bool = True, opset: str = '"" : 21') -> Path:
        import onnx

        model = parser.parse_model(f"<ir_version: 10, opset_import: [{opset}]> {graph}")
        if check:
            onnx.checker.check_model(model, full_check=True)
        path = tmp_path / f"{name}.onnx"
        path.write_bytes(model.SerializeToString())
        return path

    return make
