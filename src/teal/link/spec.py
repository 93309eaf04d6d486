"""What a link's specification means."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from teal import _core

FIGURES = (
    "read",
    "write",
    "line",
    "flush",
    "one_way",
    "kick_send",
    "kick_receive",
    "kick",
    "dma_setup",
    "dma_per_kib",
)
TRICKS = ("write_combining", "prefetch", "batching", "pre_staging", "coalescing", "dma")


@dataclass(frozen=True)
class Link:
    """One link: its kind, figures in ns, tricks, how its ends wait, and the shortest text that says the same."""

    kind: str
    text: str
    figures: Mapping[str, int]
    tricks: Mapping[str, bool]
    polling: str
    coalesce: int

    @property
    def is_plain_shm(self) -> bool:
        """Nothing to emulate, and every trick on."""
        return self.text == "shm"


def parse(spec: str) -> Link:
    """The link that a specification such as "pcie:read=900ns" means. Raises InvalidArgument."""
    found = _core.parse_link(spec)
    return Link(
        kind=found["kind"],
        text=found["text"],
        figures=MappingProxyType({name: found[name] for name in FIGURES}),
        tricks=MappingProxyType({name: found[name] for name in TRICKS}),
        polling=found["polling"],
        coalesce=found["coalesce"],
    )
