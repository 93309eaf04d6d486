"""Models through OpenVINO: in place, and float32 means float32."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import teal

ov = pytest.importorskip("openvino")


@pytest.fixture(scope="session")
def ir_path(mlp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The perceptron as OpenVINO writes it."""
    path = tmp_path_factory.mktemp("ir") / "mlp.xml"
    ov.save_model(ov.Core().read_model(mlp_path), path, compress_to_fp16=False)
    return path


def expected(path: Path, *given: Any) -> list[Any]:
    compiled = ov.Core().compile_model(path, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    return [np.array(each) for each in compiled(list(given)).values()]


@pytest.mark.parametrize("kind", ["onnx", "ir"])
def test_signature_and_zero_copies(load: Any, counted: Any, mlp_path: Path, ir_path: Path, kind: str) -> None:
    path = mlp_path if kind == "onnx" else ir_path
    model = load(path, kernel="openvino")
    batch = "batch"
    assert (model.inputs[0].shape, model.outputs[0].shape) == ((batch, 64), (batch, 8))
    info = model.info
    assert (info.kernel, info.precision) == ("openvino", "fp32")
    assert info.engine.startswith("openvino 20")
    x = model.new_inputs(**{batch: 7})
    before = counted(model)
    for seed in range(20):
        x["x"].numpy()[...] = np.random.default_rng(seed).random((7, 64), np.float32)
        (out,) = model(**x)
        assert np.allclose(out.numpy(), expected(path, x["x"].numpy())[0], atol=1e-6)
    after = counted(model)
    assert (after.copies_in, after.copies_out) == (before.copies_in, before.copies_out)
    assert after.bindings - before.bindings <= 2


def test_float32_is_float32_unless_asked(host: teal.Host, load: Any, mlp_path: Path) -> None:
    """On a CPU with bfloat16 OpenVINO would take it unasked."""
    x = np.random.default_rng(0).random((64, 64), np.float32)
    onnxruntime = pytest.importorskip("onnxruntime")
    exact = onnxruntime.InferenceSession(str(mlp_path), providers=["CPUExecutionProvider"]).run(None, {"x": x})[0]
    plain = load(mlp_path, kernel="openvino")
    assert np.allclose(plain(x)[0].numpy(), exact, atol=1e-5)
    if "BF16" not in ov.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES"):
        with pytest.raises(teal.InvalidArgument, match="bf16: CPU does not compute in it"):
            host.load("bad", mlp_path, kernel="openvino", precision="bf16")
        return
    narrow = load(mlp_path, kernel="openvino", precision="bf16")
    assert narrow.info.precision == "bf16"
    difference = np.abs(narrow(x)[0].numpy() - exact).max()
    assert 1e-5 < difference < 0.1 * np.abs(exact).max()
    with pytest.raises(teal.InvalidArgument, match="bf16: onnxruntime does not compute in it"):
        host.load("bad", mlp_path, precision="bf16")


def test_in_place_in_the_engine_too(host: teal.Host, mlp_path: Path) -> None:
    """The engine's tensors are the slot's memory, by address."""
    from types import SimpleNamespace

    from teal.kernel.openvino import OpenVinoKernel
    from teal.kernel.protocol import Source

    with mlp_path.open("rb") as file:
        kernel = OpenVinoKernel(Source("m", str(mlp_path), file.fileno(), 1))
    x, y = host.empty((3, 64)), host.empty((3, 8))
    slot: Any = SimpleNamespace(inputs=[x], outputs=[y], wanted=[True])
    run = kernel.bind(slot)
    bound = next(iter(kernel._requests.values()))
    assert bound.request().get_input_tensor(0).data.ctypes.data == x.address
    assert bound.request().get_output_tensor(0).data.ctypes.data == y.address
    run()
    assert y.numpy().any()
    kernel.close()


@pytest.mark.parametrize("name", ["bool", "uint8", "int8", "int32", "int64", "float16", "float32", "float64"])
def test_dtypes(load: Any, onnx_model: Any, name: str) -> None:
    kind = {"float32": "float", "float64": "double"}.get(name, name)
    model = load(onnx_model(f"g ({kind}[N] x) => ({kind}[N] y) {{ y = Identity(x) }}"), kernel="openvino")
    assert (model.inputs[0].dtype, model.outputs[0].dtype) == (name, name)
    x = np.arange(5).astype(name)
    for length in (5, 1, 3):
        assert np.array_equal(model(x[:length])[0].numpy(), x[:length])


def test_outputs_of_unknown_size(load: Any, onnx_model: Any, counted: Any) -> None:
    model = load(onnx_model("g (float[N] x) => (int64[one, M] y) { y = NonZero(x) }"), kernel="openvino")
    for ones in (3, 0, 300_000, 3):
        x = np.zeros(300_000, np.float32)
        x[:ones] = 1
        assert np.array_equal(model(x)[0].numpy(), np.arange(ones)[None])
    assert counted(model).copies_out >= 3


def test_nan_passes_through(load: Any, onnx_model: Any) -> None:
    model = load(onnx_model("g (float[N] x) => (float[N] y) { y = Neg(x) }"), kernel="openvino")
    x = np.array([1, np.nan, np.inf], np.float32)
    assert np.array_equal(model(x)[0].numpy(), -x, equal_nan=True)


def test_many_slots_share_few_requests(load: Any, mlp_path: Path) -> None:
    """Infer requests of slots that did not call for long are given up, and made anew."""
    from teal.kernel import openvino

    model = load(mlp_path, kernel="openvino", threads=1)
    x = np.random.default_rng(0).random((openvino._MOST_REQUESTS + 20, 64), np.float32)
    inputs = [model.new_inputs(batch=1) for _ in x]
    for given, row in zip(inputs, x, strict=True):
        given["x"].numpy()[...] = row
    wanted = model(x)[0].numpy().copy()
    for _ in range(2):
        for given, row in zip(inputs, wanted, strict=True):
            assert np.allclose(model(**given)[0].numpy(), row, atol=1e-5)


def test_twice_with_different_threads(load: Any, mlp_path: Path) -> None:
    one, two = (load(mlp_path, kernel="openvino", threads=n) for n in (1, 2))
    assert (one.info.threads, two.info.threads) == (1, 2)
    x = np.ones((500, 64), np.float32)
    for _ in range(3):
        assert np.allclose(one(x)[0].numpy(), two(x)[0].numpy(), atol=1e-6)


def test_what_is_passed_through_keeps_both_names(load: Any, onnx_model: Any) -> None:
    graph = "g (float[N] a, float[N] Z) => (float[N] out, float[N] again, float[N] m) {{ {} m = Neg(a) }}"
    model = load(onnx_model(graph.format("out = Identity(Z) again = Identity(Z)")), kernel="openvino")
    assert [spec.name for spec in model.inputs] == ["a", "Z"]
    assert [spec.name for spec in model.outputs] == ["out", "again", "m"]
    answer = model(a=np.ones(2, np.float32), Z=np.full(2, 5, np.float32))
    assert [answer[name].numpy().tolist() for name in ("out", "again", "m")] == [[5, 5], [5, 5], [-1, -1]]


def test_inputs_that_nothing_reads(load: Any, onnx_model: Any) -> None:
    """The engine drops them, and has them no more: who calls by the file's signature may go on."""
    path = onnx_model("g (int64[N] unused, float[N] x, float[2] last) => (float[N] y) { y = Neg(x) }")
    model = load(path, kernel="openvino")
    assert model.inputs == (
        teal.TensorSpec("unused", "int64", ("N",), optional=True),
        teal.TensorSpec("x", "float32", ("N",)),
        teal.TensorSpec("last", "float32", (2,), optional=True),
    )
    x = np.arange(3, dtype=np.float32)
    assert np.array_equal(model(np.zeros(3, np.int64), x, np.zeros(2, np.float32))[0].numpy(), -x)
    assert np.array_equal(model(x=x)[0].numpy(), -x)


@pytest.mark.parametrize(
    ("graph", "x"),
    [
        ("g (float[3] x) => (float[3] y) { y = Max(x) }", np.array([3, 2, 1], np.float32)),
        ("g (float[N] x) => (float[N] y) { y = Identity(x) }", np.array([3, 2, 1], np.float32)),
        ('g (double x) => (double y) { y = Einsum <equation = "->"> (x) }', np.array(5.0)),
        ("g (int64[2] x) => (int64[2] y) { y = Identity(x) }", np.array([5, 1])),
    ],
)
def test_what_is_passed_through_arrives(load: Any, onnx_model: Any, graph: str, x: Any) -> None:
    model = load(onnx_model(graph), kernel="openvino")
    for value in (x, x + 1, x):
        assert np.array_equal(model(value)[0].numpy(), value)


# ---- what cannot be ------------------------------------------------------------------------------------------------


def test_an_operator_that_the_engine_lacks(host: teal.Host, onnx_model: Any) -> None:
    graph = "g (float[N] x) => (float[N] y) { y = elsewhere.Frobnicate(x) }"
    parser = pytest.importorskip("onnx.parser")
    path = onnx_model("g (float[N] x) => (float[N] y) { y = Neg(x) }")
    model = parser.parse_model(f'<ir_version: 10, opset_import: ["" : 21, "elsewhere" : 1]> {graph}')
    path.write_bytes(model.SerializeToString())
    for kernel in ("openvino", "onnx"):
        with pytest.raises(teal.InvalidArgument, match="Frobnicate") as raised:
            host.load("bad", path, kernel=kernel)
        assert ".cpp:" not in str(raised.value)  # whose words these are, and not where in their sources they are said


def test_devices(host: teal.Host, mlp_path: Path) -> None:
    with pytest.raises(teal.NotFound, match=r"device 'GPU\.77'; OpenVINO sees \["):
        host.load("bad", mlp_path, kernel="openvino", device="GPU.77")
    with pytest.raises(teal.InvalidArgument, match="one device runs a model"):
        host.load("bad", mlp_path, kernel="openvino", device="AUTO")
    with pytest.raises(teal.InvalidArgument, match="OpenVINO has one way to run a model"):
        host.load("bad", mlp_path, kernel="openvino", device="CPU", path="apk")
    with pytest.raises(teal.InvalidArgument, match="OpenVINO cannot run it on CPU"):
        host.load("bad", mlp_path, kernel="openvino", options={"NO_SUCH_THING": "1"})


def test_two_files_are_sealed_as_one(host: teal.Host, load: Any, ir_path: Path, tmp_path: Path) -> None:
    import hashlib

    weights = ir_path.with_suffix(".bin")
    digest = hashlib.sha256(weights.read_bytes() + ir_path.read_bytes()).hexdigest()
    assert load(ir_path, digest=digest).info.digest == digest
    assert all(each.ok for each in host.verify())
    with pytest.raises(teal.InvalidArgument, match="its SHA-256 is"):
        host.load("bad", ir_path, digest=hashlib.sha256(ir_path.read_bytes()).hexdigest())
    alone = tmp_path / "alone.xml"
    alone.write_bytes(ir_path.read_bytes())
    with pytest.raises(teal.InvalidArgument, match="not a model OpenVINO can load"):
        host.load("bad", alone)
    alone.with_suffix(".bin").write_bytes(weights.read_bytes()[:100])
    with pytest.raises(teal.InvalidArgument, match="not a model OpenVINO can load"):
        host.load("bad", alone)


def test_a_repository_of_two_files(ir_path: Path, tmp_path: Path) -> None:
    import hashlib
    import shutil

    folder = tmp_path / "models" / "mlp"
    folder.mkdir(parents=True)
    shutil.copy(ir_path, folder / "model.xml")
    shutil.copy(ir_path.with_suffix(".bin"), folder / "model.bin")
    note = folder / "model.bin.sha256"
    note.write_text(hashlib.sha256((folder / "model.bin").read_bytes()).hexdigest())
    with teal.Host(repository=tmp_path / "models", threads=1) as host:
        assert host.load("mlp").info.kernel == "openvino"
        note.write_text("0" * 64)
        with pytest.raises(teal.InvalidArgument, match="its SHA-256 is"):
            host.load("mlp")


def test_weights_in_other_files(host: teal.Host, onnx_model: Any, tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    w = np.random.default_rng(0).random((64, 64), np.float32)
    helper = onnx.helper
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1, 64])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [1, 64])],
        [onnx.numpy_helper.from_array(w, "w")],
    )
    path = tmp_path / "apart.onnx"
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
    onnx.save(model, path, save_as_external_data=True, location="apart.bin", size_threshold=0)
    with pytest.raises(teal.InvalidArgument, match="it keeps weights in other files"):
        host.load("bad", path, kernel="openvino")
