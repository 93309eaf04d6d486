"""Emulated links between a pool and its agent: what a specification means, what its delays really are.

    link = parse("pcie:read=900ns,prefetch=off")
    for delay in measure("pcie"):
        print(delay.name, delay.asked_ns, delay.p50_ns, delay.p99_ns)

A link is named by its kind, `shm`, `pcie` or `cxl`, with settings after a colon. Figures in ns (or us): `read`,
`write`, `line`, `flush`, `one_way`, `kick_send`, `kick_receive`, `kick`, `dma_setup`, `dma_per_kib`. Tricks, on or off:
`write_combining`, `prefetch`, `batching`, `pre_staging`, `coalescing` (`coalesce`: most ends that wait), `dma`;
`tricks` for all of them. `polling`: load, poll, nap or sleep. What each means is in `core/link/link.hpp`.
"""

from __future__ import annotations

from .delay import Delay, measure
from .spec import TRICKS, Link, parse

__all__ = ["TRICKS", "Delay", "Link", "measure", "parse"]
