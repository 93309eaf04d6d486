"""Rolling back: an earlier version is current again, and nobody's request is lost or answered by two."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest

import teal
from tests.onnx_models import scale


@pytest.fixture
def versions(tmp_path: Path) -> list[str]:
    """Models that multiply by 1, 2, 3."""
    return [str(scale(tmp_path / f"v{k}.onnx", float(k))) for k in (1, 2, 3)]
