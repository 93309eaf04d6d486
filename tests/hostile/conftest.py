"""Puts this folder and that of the bad days on the path: both need hosts of their own and witnesses."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "crash")]

from crash_fixtures import dice, hosts, model_file, nursery, rounds  # noqa: E402

__all__ = ["dice", "hosts", "model_file", "nursery", "rounds"]
