"""Exported PyTorch programs: in place, right, and nothing unpickled."""

from __future__ import annotations

import io
import json
import pickle
import shutil
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import teal

torch = pytest.importorskip("torch")
exported = pytest.importorskip("exported")


@pytest.fixture(scope="module")
def perceptron(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    torch.manual_seed(0)
    module = exported.Perceptron()
    return exported.batched(tmp_path_factory.mktemp("torch") / "mlp.pt2", module), module


def answer(module: Any, *given: Any) -> Any:
    with torch.no_grad():
        return module(*(torch.from_numpy(np.asarray(each)) for each in given)).numpy()


def test_signature_and_batches(load: Any, perceptron: tuple[Path, Any]) -> None:
    path, module = perceptron
    model = load(path)
    (x,), (y,) = model.inputs, model.outputs
    assert (x.name, x.dtype, x.shape[1], y.name, y.shape) == ("x", "float32", 64, "output", (x.shape[0], 8))
    assert x.shape[0] == "batch"
    info = model.info
    assert (info.kernel, info.precision, info.weights) == ("torch", "fp32", "mapped")
    assert info.engine == f"torch {torch.__version__}"
    for batch in (1, 2, 7, 100):
        given = np.random.default_rng(batch).random((batch, 64), np.float32)
        assert np.allclose(model(x=given)[0].numpy(), answer(module, given), atol=1e-6)
    with pytest.raises(teal.InvalidArgument, match="'batch' is 5000, expected 1 to 4096"):
        model(np.ones((5000, 64), np.float32))
    with pytest.raises(teal.InvalidArgument, match="expects 64"):
        model(np.ones((1, 63), np.float32))


@pytest.mark.parametrize("kind", ["Perceptron", "Softmax"])
def test_zero_copies(load: Any, counted: Any, tmp_path: Path, kind: str) -> None:
    module = getattr(exported, kind)()
    model = load(exported.batched(tmp_path / "m.pt2", module))
    inputs = model.new_inputs(batch=3)
    before = counted(model)
    for seed in range(20):
        inputs["x"].numpy()[...] = np.random.default_rng(seed).random((3, 64), np.float32)
        (out,) = model(**inputs)
        assert np.allclose(out.numpy(), answer(module, inputs["x"].numpy()), atol=1e-6)
    after = counted(model)
    assert (after.copies_in, after.copies_out) == (before.copies_in, before.copies_out)
    assert after.bindings - before.bindings <= 2


def test_a_mapping_of_outputs(load: Any, tmp_path: Path, counted: Any) -> None:
    path = exported.save(tmp_path / "two.pt2", exported.Two(), [torch.randn(3, 4), torch.randn(3, 4)])
    model = load(path)
    assert [(spec.name, spec.shape) for spec in model.outputs] == [("total", (3, 4)), ("top", (3,)), ("turned", (4, 3))]
    a, b = np.random.default_rng(0).random((2, 3, 4), np.float32)
    out = model(a=a, b=b)
    assert np.array_equal(out["total"].numpy(), a + b)
    assert np.array_equal(out["top"].numpy(), (a + b).max(1))
    assert np.array_equal(out["turned"].numpy(), (a * 2).T)


def test_buffers_stay_and_make_it_impure(load: Any, tmp_path: Path) -> None:
    model = load(exported.save(tmp_path / "count.pt2", exported.Counter(), [torch.zeros(2)]))
    assert not model.info.pure
    assert [float(model(np.zeros(2, np.float32))[0].numpy()[0]) for _ in range(3)] == [1, 2, 3]


class Writes(torch.nn.Module):
    def forward(self, x: Any) -> Any:
        x.view(-1).add_(1)
        return x * 2


def test_a_program_that_writes_to_its_input(host: teal.Host, tmp_path: Path) -> None:
    with pytest.raises(teal.InvalidArgument, match="it writes to its inputs or parameters"):
        host.load("bad", exported.save(tmp_path / "w.pt2", Writes(), [torch.zeros(2)]))


def test_whole_numbers_as_inputs(load: Any, tmp_path: Path) -> None:
    path = exported.save(
        tmp_path / "k.pt2", exported.Scaled(), [torch.ones(3), 5], {"x": None, "k": torch.export.Dim.DYNAMIC}
    )
    model = load(path)
    assert [(spec.name, spec.dtype, spec.shape) for spec in model.inputs] == [
        ("x", "float32", (3,)),
        ("k", "int64", ()),
    ]
    for k in (2, 7, -3):
        assert np.array_equal(model(np.arange(3, dtype=np.float32), k)[0].numpy(), np.arange(3) * k)


def test_outputs_of_unknown_size(load: Any, tmp_path: Path, counted: Any) -> None:
    model = load(exported.save(tmp_path / "n.pt2", exported.Nonzero(), [torch.ones(6)]))
    for ones in (0, 3, 6):
        x = np.array([1] * ones + [0] * (6 - ones), np.float32)
        assert model(x)[0].numpy().ravel().tolist() == list(range(ones))
    assert counted(model).copies_out == 3


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float64", "int8", "int32", "int64", "uint8", "bool"])
def test_dtypes(load: Any, tmp_path: Path, name: str) -> None:
    dtype = getattr(torch, name)
    there = load(exported.save(tmp_path / "there.pt2", exported.Cast(dtype), [torch.ones(5)]))
    back = load(exported.save(tmp_path / "back.pt2", exported.Cast(torch.float32), [torch.ones(5).to(dtype)]))
    assert (there.outputs[0].dtype, back.inputs[0].dtype) == (name, name)
    x = np.array([0, 1, 2, 3, 100], np.float32)
    (made,) = there(x)
    assert made.dtype == name
    assert back(made)[0].numpy().tolist() == torch.from_numpy(x).to(dtype).float().tolist()


def test_nan_passes_through(load: Any, perceptron: tuple[Path, Any]) -> None:
    x = np.full((2, 64), np.nan, np.float32)
    assert np.isnan(load(perceptron[0])(x)[0].numpy()).all()


def test_twice_with_different_threads(load: Any, perceptron: tuple[Path, Any]) -> None:
    one, two = load(perceptron[0], threads=1), load(perceptron[0], threads=2)
    assert (one.info.threads, two.info.threads) == (1, 2)
    x = np.random.default_rng(1).random((200, 64), np.float32)
    for _ in range(3):
        assert np.allclose(one(x)[0].numpy(), two(x)[0].numpy(), atol=1e-6)


def test_options(host: teal.Host, perceptron: tuple[Path, Any]) -> None:
    with pytest.raises(teal.InvalidArgument, match=r"\['fast'\]: not options of torch kernels; there is compile"):
        host.load("bad", perceptron[0], options={"fast": "1"})
    with pytest.raises(teal.InvalidArgument, match="expected 0 or 1"):
        host.load("bad", perceptron[0], options={"compile": "yes"})
    with pytest.raises(teal.InvalidArgument, match="expected fp32 or bf16"):
        host.load("bad", perceptron[0], precision="int3")
    with pytest.raises(teal.InvalidArgument, match="for a kernel of kind builtin"):
        host.load("bad", "builtin:identity", precision="bf16")


# ---- files that lie ------------------------------------------------------------------------------------------------


def rewritten(path: Path, target: Path, change: Callable[[str, bytes], bytes | None], method: int = 0) -> Path:
    """The archive with every record changed; None drops it."""
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(target, "w", method) as new:
        for entry in old.infolist():
            data = change(entry.filename, old.read(entry))
            if data is not None:
                new.writestr(entry.filename, data)
    return target


def with_program(path: Path, target: Path, change: Callable[[Any], None]) -> Path:
    def edit(name: str, data: bytes) -> bytes:
        if not name.endswith("models/model.json"):
            return data
        program = json.loads(data)
        change(program)
        return json.dumps(program).encode()

    return rewritten(path, target, edit)


class Bomb:
    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return Path.touch, (self.mark,)


def first_node(program: Any) -> Any:
    return program["graph_module"]["graph"]["nodes"][0]


def evil_target(program: Any) -> None:
    first_node(program)["target"] = "torch.os.system"


def evil_name(program: Any) -> None:
    graph = program["graph_module"]["graph"]
    text = json.dumps(graph).replace('"x"', json.dumps("x=__import__('os')._exit(3)"))
    program["graph_module"]["graph"] = json.loads(text)


def evil_size(program: Any) -> None:
    for value in program["graph_module"]["graph"]["tensor_values"].values():
        for size in value["sizes"]:
            if "as_expr" in size:
                size["as_expr"]["expr_str"] = "__import__('os')._exit(3)"


def evil_file(program: Any) -> None:
    first_node(program)["target"] = "torch.ops.aten.from_file.default"


def evil_device(program: Any) -> None:
    for value in program["graph_module"]["graph"]["tensor_values"].values():
        value["device"] = {"type": "cuda", "index": 0}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (evil_target, r"operator 'torch\.os\.system', expected those of torch\.ops\.aten"),
        (evil_file, "operator 'torch.ops.aten.from_file.default'"),
        (evil_name, "expected letters, digits and _"),
        (evil_size, "expected arithmetic of its symbols"),
        (evil_device, "export it on the CPU"),
        (lambda program: program.pop("graph_module"), r"not what torch\.export\.save\(\) writes"),
        (lambda program: program.update(graph_module=7), r"not what torch\.export\.save\(\) writes"),
        (lambda program: program["graph_module"]["graph"].update(nodes=[]), "cannot read its program|not what"),
        (lambda program: program["schema_version"].update(major=1), "export the model anew"),
    ],
    ids=lambda value: getattr(value, "__name__", "") if callable(value) else "",
)
def test_programs_that_would_run_code(
    host: teal.Host, perceptron: tuple[Path, Any], tmp_path: Path, change: Any, said: str
) -> None:
    worker = host.statistics().workers[0].pid
    path = with_program(perceptron[0], tmp_path / "bad.pt2", change)
    with pytest.raises(teal.InvalidArgument, match=said) as caught:
        host.load("bad", path)
    assert str(path) in str(caught.value)
    assert host.statistics().workers[0].pid == worker


def test_guards_are_not_run(load: Any, perceptron: tuple[Path, Any], tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    text = f"__import__('pathlib').Path({str(mark)!r}).touch()"
    path = with_program(perceptron[0], tmp_path / "bad.pt2", lambda program: program.update(guards_code=[text]))
    model = load(path)
    model(np.ones((2, 64), np.float32))
    assert not mark.exists()
    assert "not checked" in model.statistics().note


def test_nothing_is_unpickled(host: teal.Host, load: Any, perceptron: tuple[Path, Any], tmp_path: Path) -> None:
    """Example inputs, which torch would unpickle, are not read; weights that are pickled are refused."""
    mark = tmp_path / "ran"
    bomb = io.BytesIO()
    torch.save(Bomb(mark), bomb)

    def examples(name: str, data: bytes) -> bytes:
        return bomb.getvalue() if "sample_inputs" in name else data

    load(rewritten(perceptron[0], tmp_path / "examples.pt2", examples))(np.ones((1, 64), np.float32))
    assert not mark.exists()

    def weights(name: str, data: bytes) -> bytes:
        if name.endswith("weights_config.json"):
            config = json.loads(data)
            for about in config["config"].values():
                about["use_pickle"] = True
            return json.dumps(config).encode()
        return pickle.dumps(Bomb(mark)) if "/weight_" in name else data

    with pytest.raises(teal.InvalidArgument, match="Teal unpickles nothing"):
        host.load("bad", rewritten(perceptron[0], tmp_path / "weights.pt2", weights))
    assert not mark.exists()


def test_archives_that_lie(host: teal.Host, perceptron: tuple[Path, Any], tmp_path: Path) -> None:
    def refused(path: Path, said: str) -> None:
        with pytest.raises(teal.InvalidArgument, match=said):
            host.load("bad", path)

    whole = perceptron[0].read_bytes()
    for i, data in enumerate((b"PK", whole[: len(whole) // 2], whole[:-30], b"\0" * 4096)):
        path = tmp_path / f"cut-{i}.pt2"
        path.write_bytes(data)
        refused(path, r"not a (\.pt2|zip)|but not a")
    other = tmp_path / "zip.pt2"
    with zipfile.ZipFile(other, "w") as archive:
        archive.writestr("m/anything", b"")
    refused(other, "but not a .pt2 one")
    refused(
        rewritten(perceptron[0], tmp_path / "packed.pt2", lambda name, data: data, zipfile.ZIP_DEFLATED),
        "is compressed",
    )

    def short(name: str, data: bytes) -> bytes:
        return data[:16] if "/weight_0" in name else data

    refused(rewritten(perceptron[0], tmp_path / "short.pt2", short), "bytes, 16384 are used|bytes, .* are used")
    refused(
        rewritten(perceptron[0], tmp_path / "none.pt2", lambda name, data: None if "/weight_" in name else data),
        "makes no sense",
    )


# ---- compiled ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def native(perceptron: tuple[Path, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The perceptron as AOTInductor packages it: seconds of a C++ compiler."""
    if shutil.which("g++") is None:
        pytest.skip("no C++ compiler: apt-get install g++")
    path = tmp_path_factory.mktemp("native") / "mlp.pt2"
    from torch._inductor import cpu_vec_isa

    # For each set of instructions that the processor has the compiler tries itself out; one is enough here.
    cpu_vec_isa.supported_vec_isa_list = [cpu_vec_isa.VecAVX2()]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch._inductor.aoti_compile_and_package(torch.export.load(str(perceptron[0])), package_path=str(path))
    return path


def test_compiled(load: Any, counted: Any, tmp_path: Path, own_cache: Path) -> None:
    if shutil.which("g++") is None:
        pytest.skip("no C++ compiler: apt-get install g++")
    module = exported.Softmax()
    model = load(exported.batched(tmp_path / "m.pt2", module), options={"compile": "1"}, threads=1, timeout=300)
    assert model.info.weights == "mapped"
    inputs = model.new_inputs(batch=3)
    before = counted(model)
    for seed in range(5):
        inputs["x"].numpy()[...] = np.random.default_rng(seed).random((3, 64), np.float32)
        (out,) = model(**inputs)
        assert np.allclose(out.numpy(), answer(module, inputs["x"].numpy()), atol=1e-6)
    after = counted(model)
    assert (after.copies_in, after.copies_out) == (before.copies_in, before.copies_out)
    for batch in (1, 2, 50):
        x = np.random.default_rng(batch).random((batch, 64), np.float32)
        assert np.allclose(model(x)[0].numpy(), answer(module, x), atol=1e-6)
    headers = own_cache / "teal" / "headers"  # the next one takes a third of the time
    assert list(headers.rglob("*.gch"))
    assert list((headers / "instructions").rglob("*.so"))


def test_a_package_of_native_code(load: Any, native: Path, perceptron: tuple[Path, Any]) -> None:
    """The owner may load it. It refuses by itself what it was not made for."""
    model = load(native)
    assert model.info.engine.endswith("(AOTInductor)")
    assert [(spec.name, spec.dtype, spec.shape) for spec in model.inputs] == [("input", None, None)]
    for batch in (3, 7):
        x = np.random.default_rng(batch).random((batch, 64), np.float32)
        assert np.allclose(model(x)[0].numpy(), answer(perceptron[1], x), atol=1e-6)
    with pytest.raises(teal.KernelFailed):
        model(np.zeros((3, 63), np.float32))
    with pytest.raises(teal.KernelFailed):
        model(np.zeros((3, 64), np.float64))
    assert model(x)[0].shape == (7, 8)


def test_bf16_on_request_only(load: Any, tmp_path: Path) -> None:
    """float32 stays float32, also when a model in bfloat16 is resident in the same worker."""
    torch.manual_seed(1)
    module = exported.Perceptron(width=512, out=512)
    path = exported.batched(tmp_path / "m.pt2", module, 512)
    x = np.random.default_rng(0).standard_normal((64, 512)).astype(np.float32)
    wanted = answer(module, x)
    if not torch.cpu._is_amx_tile_supported():
        with pytest.raises(teal.InvalidArgument, match="bf16: torch computes float32 so on CPUs with AMX only"):
            load(path, precision="bf16")
        return
    exact, narrow = load(path), load(path, precision="bf16")
    assert (exact.info.precision, narrow.info.precision) == ("fp32", "bf16")
    for _ in range(3):
        assert np.allclose(exact(x)[0].numpy(), wanted, atol=1e-5)
        difference = np.abs(narrow(x)[0].numpy() - wanted).max()
        assert 1e-4 < difference < 0.05 * np.abs(wanted).max()


def test_an_engine_that_is_not_installed(monkeypatch: pytest.MonkeyPatch, perceptron: tuple[Path, Any]) -> None:
    from teal.kernel import openvino
    from teal.kernel import torch as kernel
    from teal.kernel.protocol import Source, load_kernel

    monkeypatch.setattr(kernel, "torch", None)
    monkeypatch.setattr(openvino, "ov", None)
    for name in ("torch", "openvino"):
        with pytest.raises(teal.NotFound, match=rf"{name} is not installed; pip install 'teal-runtime\[{name}\]'"):
            load_kernel(name, Source("m", str(perceptron[0])))
