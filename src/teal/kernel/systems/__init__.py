"""Machine-learning-for-systems loads: LinnOS, MLLB, KML, Kleio (core/systems/load.hpp, docs/systems.md).

The kernels run in the core; here are their signatures, the writer of their files, and the NumPy reference that
specifies them.
"""

from __future__ import annotations

from dataclasses import dataclass

from teal import _core
from teal.host.wire import Spec

VERSION = "1"  # of the file format


@dataclass(frozen=True, slots=True)
class Load:
    """One load: its tensors by place in the file, the dtype and columns of ``x``, the number of classes."""

    name: str
    weights: str  # dtype of every tensor, and of the scores
    tensors: dict[str, tuple[int, ...]]
    input: str  # dtype
    columns: int
    classes: int


LOADS = {row[0]: Load(row[0], row[1], dict(row[2]), *row[3:]) for row in _core.systems_loads()}


def signature_of(load: str) -> tuple[list[Spec], list[Spec]]:
    """Inputs and outputs of a load by name."""
    known = LOADS[load]
    return (
        [Spec("x", known.input, ["batch", known.columns])],
        [Spec("scores", known.weights, ["batch", known.classes]), Spec("verdict", "int32", ["batch"])],
    )
