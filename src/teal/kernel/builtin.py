"""Signatures of the builtin kernels, which run in the core (core/kernel/builtin.hpp)."""

from __future__ import annotations

from teal.host.wire import Spec

# name: (inputs, outputs, pure)
BUILTINS: dict[str, tuple[list[Spec], list[Spec], bool]] = {
    "identity": ([Spec("x")], [Spec("y", like="x", in_place=True)], True),
    "sum": ([Spec("x", "float32")], [Spec("sum", "float64", [])], True),
    "sleep": ([Spec("microseconds", "int64", [])], [Spec("microseconds", "int64", [])], True),
    "spin": ([Spec("microseconds", "int64", [])], [Spec("nanoseconds", "int64", [])], True),
}
