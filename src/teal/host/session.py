"""A client's session with a pool, as the host keeps it: descriptors of its memory, and what it may have of it.

Theory of operation: the host maps none of this; it holds descriptors, so that a worker that starts later can be given
the same memory, and counts bytes against the client's quota, which its BPF sessions share. A region that is given back
counts until every worker has let go of it. What the workers write (spills) waits here until the client asks, and
counts until it lets go.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from teal.host.leases import Leases


@dataclass(slots=True)
class Spill:
    fd: int
    nbytes: int
    layout: list[tuple[int, str, list[int], int, int]]
    slot: int  # of the request that made it
    generation: int


@dataclass(slots=True, eq=False)
class Session:
    """A client's session: its memory, by region id."""

    index: int
    epoch: int
    fd: int  # the sweeper's
    slots: int
    regions: dict[int, tuple[int, int]] = field(default_factory=dict)  # id → (descriptor, bytes)
    granted: int = 0
    leaving: dict[int, tuple[int, int]] = field(default_factory=dict)  # regions that workers are letting go of
    spills: dict[int, Spill] = field(default_factory=dict)
    lent: dict[int, Spill] = field(default_factory=dict)  # taken by the client while requests that are out read them
    next_spill: int = 1
    leases: Leases = field(default_factory=Leases)  # of spills that the client has taken
    closed: bool = False
    bpf_bytes: int = 0  # of the client's BPF map, which holds everything this session has
    account: list[Session] = field(default_factory=list)  # of its client, in this pool: they share its quota of bytes

    @property
    def held(self) -> int:
        """Bytes that count against the client's quota."""
        return sum(session.nbytes for session in self.account)

    @property
    def nbytes(self) -> int:
        regions = (*self.regions.values(), *self.leaving.values())
        spilled = sum(spill.nbytes for spill in self.spills.values()) + self.leases.nbytes
        return self.bpf_bytes + sum(size for _, size in regions) + spilled

    def close_descriptors(self) -> None:
        """Frees the memory here; who still maps it keeps it."""
        regions = (*self.regions.values(), *self.leaving.values())
        spills = (*self.spills.values(), *self.lent.values())
        for fd in (*(fd for fd, _ in regions), *(spill.fd for spill in spills)):
            os.close(fd)
        self.regions.clear()
        self.leaving.clear()
        self.spills.clear()
        self.lent.clear()
