"""The names of a host: which model stands where, by what number, in which pool.

Theory of operation: a name has an index for as long as the host lives (handles of clients hold it), and versions that
come and go, all in one pool; while it has none it may be loaded into another pool. A name that never had a version
gives its index back, so that loads which fail do not use names up. Nothing here waits: everything is on the daemon's
loop, and what takes time is the business of loading.py and catalog.py.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any

from teal.errors import InvalidArgument, NotFound
from teal.host import engines, wire
from teal.host import repository as files
from teal.host.defaults import DEFAULT_POOL
from teal.host.pool import Pool, Version
from teal.host.snapshot import Snapshot


@dataclass(slots=True, eq=False)
class Name:
    """A model name, unique on the host: its versions by number, all in one pool."""

    index: int
    pool: str
    versions: dict[int, Version] = field(default_factory=dict)
    current: int | None = None
    last: int = 0
    kept: dict[int, Version] = field(default_factory=dict)  # replaced ones, the last one last; not resident
    leaving: set[asyncio.Task[None]] = field(default_factory=set)  # versions that were replaced, on their way out
    waiting: int = 0  # loads that hold or want the lock
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    stays: bool = False  # somebody loaded it to stay
    holders: set[Hashable] = field(default_factory=set)  # connections it is loaded for, until somebody keeps it
    numbered: dict[int, set[Hashable]] = field(default_factory=dict)  # connections that hold one version, by its number

    def keep(self, replaced: Version, most: int) -> None:
        """A version that is about to leave can come back, by a descriptor of its own; the oldest beyond ``most`` go."""
        if most > 0:
            fds = [os.dup(fd) for fd in replaced.descriptors]
            own, regions = fds[0] if fds else None, tuple(fds[1:])
            self.kept[replaced.number] = dataclasses.replace(replaced, file_fd=own, sealed=regions)
        while len(self.kept) > most:
            self.kept.pop(next(iter(self.kept))).close_descriptors()

    def forget_replaced(self, number: int | None = None) -> None:
        """That one, or all of them."""
        for one in list(self.kept) if number is None else [number]:
            if (version := self.kept.pop(one, None)) is not None:
                version.close_descriptors()


@dataclass(frozen=True, slots=True)
class User:
    """Who asks. owner: the host's own user, or root, who may do anything."""

    uid: int
    owner: bool

    def check_may_change(self, name: str, versions: list[Version]) -> None:
        """Raises InvalidArgument when one of these is somebody else's."""
        for version in versions:
            if not self.owner and version.uid != self.uid:
                raise InvalidArgument(
                    f"{name!r} was loaded by user {version.uid}; only that user and the host's owner may replace or "
                    "unload it"
                )

    def files_of(self, version: Version) -> tuple[int, ...]:
        """Descriptors of what it was loaded from. Raises InvalidArgument when it is somebody else's."""
        self.check_may_change(version.name, [version])
        return version.descriptors


class Names:
    """All methods run on the daemon's loop."""

    def __init__(self, pools: Mapping[str, Pool]) -> None:
        self.known: dict[str, Name] = {}
        self._pools = pools
        self._free_indices: list[int] = []
        self._next_index = 0

    def pool(self, name: str) -> Pool:
        """Raises NotFound."""
        if name not in self._pools:
            raise NotFound(f"pool {name[:80]!r}; this host has {sorted(self._pools)}")
        return self._pools[name]

    def pool_for(self, name: str, wanted: str | None) -> Pool:
        """Where a load goes that wants this pool, or does not say. Raises NotFound."""
        if wanted is None:
            known = self.known.get(name)
            stays = known is not None and (bool(known.versions) or known.waiting > 0)
            wanted = known.pool if known is not None and stays else DEFAULT_POOL  # where it once was says nothing
        return self.pool(wanted)

    def loaded(self) -> int:
        """Versions, of all names."""
        return sum(len(known.versions) for known in self.known.values())

    def version(self, name: str, number: int | None) -> Version:
        """A loaded version, the current one without a number. Raises NotFound."""
        files.check_name(name)
        known = self.known.get(name)
        if known is None or not known.versions:
            loaded = sorted(n for n, k in self.known.items() if k.versions)
            more = f" and {len(loaded) - 20} more" if len(loaded) > 20 else ""
            raise NotFound(f"model {name!r} is not loaded; loaded are {loaded[:20]}{more}")
        chosen = known.current if number is None else number
        if chosen is None or chosen not in known.versions:
            raise NotFound(f"model {name!r} has no version {chosen}; loaded are {sorted(known.versions)}")
        return known.versions[chosen]

    def take(self, key: str, pool: Pool) -> Name:
        """The name, made if it is new, for a load into this pool. Raises InvalidArgument when it is in another."""
        name = self.known.get(key)
        if name is None:
            if self._free_indices:
                index = min(self._free_indices)
                self._free_indices.remove(index)
            else:
                index = self._next_index
                self._next_index += 1
            name = self.known[key] = Name(index, pool.name)
        if name.pool != pool.name:
            if name.versions or name.waiting > 0:
                raise InvalidArgument(
                    f"{key!r} is in pool {name.pool!r}, and a name is in one pool at a time; unload it there "
                    "first, or take another name",
                    path="$.pool",
                )
            name.pool = pool.name  # handles that were made before find nothing loaded in theirs
        pool.names = max(pool.names, name.index + 1)
        return name

    def forget_unused(self, key: str, name: Name) -> None:
        if name.last == 0 and not name.versions and name.waiting == 0:
            del self.known[key]
            self._free_indices.append(name.index)

    def describe(self, name: str, version: Version) -> dict[str, Any]:
        known = self.known[name]
        kept = self._pools[known.pool].residence.snapshot(version.line)
        return {
            "name": name,
            "version": version.number,
            "index": known.index,
            "line": version.line,
            "pool": known.pool,
            "kernel": version.order.kernel,
            "source": version.order.source,
            "current": known.current == version.number,
            "pinned": version.pinned,
            "pure": version.pure,
            "idempotent": version.idempotent,
            "bytes": version.nbytes,
            "memory": version.memory,
            "parked": version.parked,
            "kept": sorted(known.kept),
            "digest": version.digest,
            "seconds": version.seconds,
            "uid": version.uid,
            "device": version.order.device,
            "path": version.order.path if version.order.kernel == "systems" and version.order.device else None,
            "batches": version.batches,
            "takes_batches": version.takes_batches,
            "concurrency": version.concurrency,
            "preemption": version.preemption,
            "losses": len(version.losses),
            "note": version.note,
            "engine": version.engine,
            "precision": version.precision,
            "weights": version.weights,
            "snapshot": 0 if kept is None else kept.nbytes,
            "threads": engines.threads_of(version.order),
            "idle_ns": version.idle_ns,
            "inputs": version.inputs,
            "outputs": version.outputs,
        }

    def snapshot_like(self, order: wire.LoadKernel, digest: str) -> Snapshot | None:
        """A copy of the optimised form of a version that was loaded from the same file in the same way."""

        def asked(other: wire.LoadKernel) -> tuple[object, ...]:
            return other.kernel, other.precision, other.threads, other.options, other.device, other.sealed

        for name in self.known.values():
            for version in name.versions.values():
                kept = self._pools[name.pool].residence.snapshot(version.line)
                same = version.digest == digest and asked(version.order) == asked(order)
                if same and kept is not None and kept.whole:
                    return kept.copy()
        return None

    def describe_all(self) -> list[dict[str, Any]]:
        return [self.describe(name, v) for name, n in self.known.items() for v in n.versions.values()]
