"""Weights of about 100 MB in two workers: one copy, not two, measured as the kernel counts memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import teal

WIDTH, LAYERS = 2048, 6  # six times 16 MiB of float32
WHOLE = WIDTH * WIDTH * 4 * LAYERS


def private(pid: int) -> int:
    """Bytes that only this process has."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    kinds = ("Private_Dirty:", "Private_Clean:")
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(kinds))


def added(path: Path, calls: Any, **options: Any) -> list[int]:
    """What each of two workers has to itself more than before, after a load and calls."""
    with teal.Host(workers=2, threads=1) as host:
        pids = [worker.pid for worker in host.statistics().workers]
        tiny = host.load("tiny", calls["tiny"], **options)  # the engine itself is there
        for _ in range(8):
            tiny(calls["x"])
        before = [private(pid) for pid in pids]
        model = host.load("big", path, **options)
        for _ in range(8):
            model(calls["x"])
        assert [worker.pid for worker in host.statistics().workers] == pids
        return [private(pid) - start for pid, start in zip(pids, before, strict=True)]


def test_torch_maps_them_once(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    exported = pytest.importorskip("exported")
    layers = [torch.nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)]
    path = exported.save(tmp_path / "big.pt2", torch.nn.Sequential(*layers), [torch.zeros(1, WIDTH)])
    tiny = exported.save(tmp_path / "tiny.pt2", torch.nn.ReLU(), [torch.zeros(1, WIDTH)])
    more = added(path, {"tiny": tiny, "x": np.ones((1, WIDTH), np.float32)})
    assert max(more) < WHOLE // 4


@pytest.mark.parametrize("engine", ["onnx", "openvino"])
def test_what_an_engine_does_not_pack_is_mapped_once(tmp_path: Path, engine: str) -> None:
    """A table that rows are taken from: nothing to pack."""
    onnx = pytest.importorskip("onnx")
    pytest.importorskip({"onnx": "onnxruntime", "openvino": "openvino"}[engine])
    helper = onnx.helper

    def save(name: str, rows: int) -> Path:
        table = np.random.default_rng(0).random((rows, WIDTH), np.float32)
        graph = helper.make_graph(
            [helper.make_node("Cast", ["x"], ["i"], to=7), helper.make_node("Gather", ["table", "i"], ["y"])],
            "g",
            [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1, WIDTH])],
            [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [1, WIDTH, WIDTH])],
            [onnx.numpy_helper.from_array(table, "table")],
        )
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10), tmp_path / name)
        return tmp_path / name

    calls = {"tiny": save("tiny.onnx", 2), "x": np.ones((1, WIDTH), np.float32)}
    more = added(save("big.onnx", WIDTH * LAYERS), calls, kernel=engine)
    assert max(more) < WHOLE // 2
