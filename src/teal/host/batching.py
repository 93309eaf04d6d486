"""Which models' requests may run together, in a pool with ``batch=`` (core/host/batch.hpp).

Theory of operation: a signature whose inputs and outputs all begin with one symbolic dimension says that this dimension
counts rows. The worker then lays the rows of several requests one after the other, runs them once, and gives each
request its own. That is right for models that compute each row by itself, which no signature says: whoever sets
``batch=`` for a pool says so of the models in it.
"""

from __future__ import annotations

from collections.abc import Sequence

from teal.host.wire import Spec

_KINDS = frozenset({"onnx", "openvino", "torch", "function"})
_CONVENTION = frozenset({"batch", "batch_size", "N"})  # exporters that name inputs and outputs apart use these


def takes_batches(kind: str, *, pure: bool, inputs: Sequence[Spec], outputs: Sequence[Spec]) -> bool:
    """May requests of this kernel run together?"""
    if kind not in _KINDS or not pure or not inputs or not outputs:
        return False
    firsts = {_first(spec) for spec in (*inputs, *outputs)}
    return len(firsts) == 1 and None not in firsts


def _first(spec: Spec) -> str | None:
    if not spec.shape or spec.dtype == "BYTES" or not isinstance(spec.shape[0], str):
        return None
    return "batch" if spec.shape[0] in _CONVENTION else spec.shape[0]
