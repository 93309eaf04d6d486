"""Puts this folder on the path, for the tests and for the workers that import its kernels."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from crash_fixtures import dice, hosts, model_file, nursery, rounds

__all__ = ["dice", "hosts", "model_file", "nursery", "rounds"]
