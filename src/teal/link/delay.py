"""What an emulated link's delays really are on this machine, beside what was asked."""

from __future__ import annotations

from dataclasses import dataclass

from teal import _core


@dataclass(frozen=True)
class Delay:
    """One primitive: what it was asked to take and what n tries took; ns."""

    name: str
    asked_ns: int
    p50_ns: int
    p99_ns: int
    least_ns: int
    n: int


def measure(spec: str, n: int = 5_000) -> list[Delay]:
    """Each primitive of the link, n times; those that concern both sides take two threads. Raises InvalidArgument."""
    return [_summary(name, asked, sorted(samples)) for name, asked, samples in _core.measure_link(spec, n)]


def _summary(name: str, asked: int, ordered: list[int]) -> Delay:
    n = len(ordered)
    return Delay(name, asked, ordered[(n - 1) // 2], ordered[(99 * n + 99) // 100 - 1], ordered[0], n)
