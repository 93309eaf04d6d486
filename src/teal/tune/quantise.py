"""Makes the int8 form of a model: `python -m teal.tune.quantise WAY MODEL OUT [CALIBRATION]`, in its own process.

WAY "static": weights and activations in int8 (QDQ), ranges from a calibration set, an .npz of samples as numbered
arrays (`NAME/NUMBER`). WAY "dynamic": weights in int8, activations at run time; for models whose weights are in matrix
products. Both by onnxruntime's own tools, which need the package onnx. The last line of stderr says what went wrong.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from teal.errors import KernelFailed
from teal.tune.inputs import Sample

SECONDS = 900.0
MATRIX_SHARE = 0.5  # of the weights' bytes in MatMul and Gemm, from which dynamic int8 is tried
MOST_CALIBRATION = 200


def make(way: str, model: Path, out: Path, samples: Sequence[Sample] = ()) -> None:
    """Runs the process. Raises KernelFailed with what it said."""
    with tempfile.TemporaryDirectory(prefix="teal-tune-") as folder:
        command = [sys.executable, "-P", "-m", "teal.tune.quantise", way, str(model), str(out)]
        if samples:
            numbered = {f"{name}/{i}": a for i, one in enumerate(samples[:MOST_CALIBRATION]) for name, a in one.items()}
            path = Path(folder) / "calibration.npz"
            np.savez(path, **numbered)
            command.append(str(path))
        try:
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=SECONDS,
                check=False,
                env=os.environ
                | {"PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry), "TMPDIR": folder},
            )
        except subprocess.TimeoutExpired:
            raise KernelFailed(f"int8 ({way}): not done after {SECONDS:.0f} s") from None
    if done.returncode != 0:
        last = next((line for line in reversed(done.stderr.splitlines()) if line.strip()), f"status {done.returncode}")
        raise KernelFailed(f"int8 ({way}): {last.strip()[:300]}")


def matrix_share(model: Path) -> float:
    """Share of the float weights' bytes that MatMul and Gemm read. Raises ImportError without the package onnx."""
    import onnx

    graph = onnx.load(str(model), load_external_data=False).graph
    sizes = {
        weight.name: int(np.prod(weight.dims, dtype=np.int64)) for weight in graph.initializer if weight.data_type == 1
    }
    matrices = {name for node in graph.node if node.op_type in ("MatMul", "Gemm") for name in node.input}
    total = sum(sizes.values())
    return sum(size for name, size in sizes.items() if name in matrices) / total if total else 0.0


class Reader:
    """Calibration samples as onnxruntime's tools ask for them."""

    def __init__(self, path: Path) -> None:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        count = 1 + max(int(name.rpartition("/")[2]) for name in arrays)
        rows: list[dict[str, Any]] = [{} for _ in range(count)]
        for name, array in arrays.items():
            stem, _, number = name.rpartition("/")
            rows[int(number)][stem] = array
        self._rows = iter(rows)

    def get_next(self) -> dict[str, Any] | None:
        return next(self._rows, None)


def main() -> None:
    """See the head of the file."""
    from onnxruntime import quantization

    logging.disable(logging.WARNING)
    way, model, out = sys.argv[1:4]
    int8 = quantization.QuantType.QInt8
    if way == "dynamic":
        quantization.quantize_dynamic(model, out, weight_type=int8, per_channel=True)
        return
    quantization.quantize_static(
        model,
        out,
        Reader(Path(sys.argv[4])),
        quant_format=quantization.QuantFormat.QDQ,
        activation_type=int8,
        weight_type=int8,
        per_channel=True,
    )


if __name__ == "__main__":
    main()
