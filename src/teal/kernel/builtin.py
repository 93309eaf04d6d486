"""Signatures of the builtin kernels, which run in the core (core/kernel/builtin.hpp).

``identity`` hands one tensor through, ``identity:3`` three, each output in place of its input.
"""

from __future__ import annotations

from teal.errors import InvalidArgument, NotFound
from teal.host.wire import Spec

MOST_TENSORS = 64  # of identity: its signature travels in every answer about it

Signature = tuple[list[Spec], list[Spec], bool]  # inputs, outputs, pure

BUILTINS: dict[str, Signature] = {
    "identity": ([Spec("x")], [Spec("y", like="x", in_place=True)], True),
    "sum": ([Spec("x", "float32")], [Spec("sum", "float64", [])], True),
    "sleep": ([Spec("microseconds", "int64", [])], [Spec("microseconds", "int64", [])], True),
    "spin": ([Spec("microseconds", "int64", [])], [Spec("nanoseconds", "int64", [])], True),
}


def builtin(source: str) -> tuple[str, Signature]:
    """The kernel's name and its signature, of ``"identity"``, ``"identity:3"``, ``"sum"``, …

    Raises NotFound, InvalidArgument (a number of tensors that cannot be).
    """
    name, colon, count = source.partition(":")
    if name not in BUILTINS or (colon and name != "identity"):
        raise NotFound(f"builtin kernel {source[:80]!r}; there are {sorted(BUILTINS)}")
    if not colon:
        return name, BUILTINS[name]
    if not (count.isascii() and count.isdecimal() and len(count) <= 3 and 1 <= int(count) <= MOST_TENSORS):
        raise InvalidArgument(
            f"builtin:identity of {count[:40]!r} tensors, expected 1 to {MOST_TENSORS}", path="$.source"
        )
    numbers = ["", *map(str, range(1, int(count)))]
    inputs = [Spec(f"x{number}") for number in numbers]
    return name, (inputs, [Spec(f"y{number}", like=f"x{number}", in_place=True) for number in numbers], True)
