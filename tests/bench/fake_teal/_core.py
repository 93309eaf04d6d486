"""The stand-in's core: round trips of a stated length, made up and recognisable."""

from typing import Any


def slot_of(tensor: Any) -> Any:
    return tensor


def measure_call(slot: Any, n: int) -> list[int]:
    return [400 + i % 7 for i in range(n)]


def measure_echo(nbytes: int, n: int, core_a: int, core_b: int) -> list[int]:
    return [300 + i % 5 for i in range(n)]
