"""What happened between two looks at a host: differences of its raw counters.

Theory of operation: the host only ever counts up, per worker, per loaded version and per session. A rate or a
percentile of an interval is made of the difference of two looks, here and not in the host, so that any number of
watchers with intervals of their own disturb nothing. What is new since the first look (another host, a reloaded
version, a client that came) counts from zero. Buckets of histograms are 32 bits wide and wrap.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from teal.host.records import Histogram, place

Raw = Mapping[str, Any]  # Host._raw_statistics(), or a part of it


@dataclass(frozen=True, slots=True)
class Worker:
    """requests, sleeps: since it started."""

    pid: int
    pool: str
    state: str
    requests: int
    requests_per_s: float
    sleeps: int
    sleeps_per_s: float


@dataclass(frozen=True, slots=True)
class Version:
    """A loaded version. Counters: since it was loaded, over all clients. stages (queue, run, copy): of the interval."""

    name: str
    version: int
    current: bool
    pool: str
    kernel: str
    requests: int
    requests_per_s: float
    failed: int
    cancelled: int
    expired: int
    in_flight: int
    copies_in: int
    copies_out: int
    bytes_copied: int
    bindings: int
    stages: dict[str, Histogram]


@dataclass(frozen=True, slots=True)
class Client:
    """A client's session with a pool. requests: since it connected. stages (copy, wake, total): of the interval."""

    pid: int
    uid: int
    pool: str
    requests: int
    requests_per_s: float
    in_flight: int
    bytes: int
    garbage: int
    stages: dict[str, Histogram]


@dataclass(frozen=True, slots=True)
class Interval:
    """interval_s: between the looks, on the host's clock; since_start: the first look was the host's start."""

    address: str
    pid: int
    version: str
    uptime_s: float
    interval_s: float
    since_start: bool
    queued: int
    active: int
    restarts: int
    failed_with_worker: int
    run_again: int
    pools: tuple[Raw, ...]
    workers: tuple[Worker, ...]
    models: tuple[Version, ...]
    clients: tuple[Client, ...]


def between(before: Raw | None, after: Raw) -> Interval:
    """The interval between two looks; None: since the host started."""
    if before is not None and before["pid"] != after["pid"]:
        before = None
    elapsed = after["uptime_s"] - (0.0 if before is None else before["uptime_s"])
    elapsed = max(elapsed, 1e-9)
    same = ("address", "pid", "version", "uptime_s", "queued", "active", "restarts", "failed_with_worker", "run_again")
    return Interval(
        **{name: after[name] for name in same},
        interval_s=elapsed,
        since_start=before is None,
        pools=tuple(after["pools"]),
        workers=_workers(before, after, elapsed),
        models=_versions(before, after, elapsed),
        clients=_clients(before, after, elapsed),
    )


def _workers(before: Raw | None, after: Raw, elapsed: float) -> tuple[Worker, ...]:
    earlier = {} if before is None else {w["pid"]: w for w in before["workers"]}
    made = []
    for w in after["workers"]:
        old = _earlier(earlier.get(w["pid"]), w)
        made.append(
            Worker(
                pid=w["pid"],
                pool=w["pool"],
                state=w["state"],
                requests=w["requests"],
                requests_per_s=(w["requests"] - old["requests"]) / elapsed,
                sleeps=w["sleeps"],
                sleeps_per_s=max(0, w["sleeps"] - old.get("sleeps", 0)) / elapsed,
            )
        )
    return tuple(made)


def _versions(before: Raw | None, after: Raw, elapsed: float) -> tuple[Version, ...]:
    earlier = {}
    if before is not None:
        for m in before["models"]:
            earlier[_version_key(m)] = before["versions"].get(place(m["pool"], m["line"]))
    made = []
    for m in sorted(after["models"], key=lambda m: (m["name"], m["version"])):
        numbers = after["versions"].get(place(m["pool"], m["line"]))
        if numbers is None:
            continue
        old = _earlier(earlier.get(_version_key(m)), numbers)
        counted = ("failed", "cancelled", "expired", "in_flight", "copies_in", "copies_out", "bytes_copied", "bindings")
        made.append(
            Version(
                name=m["name"],
                version=m["version"],
                current=m["current"],
                pool=m["pool"],
                kernel=m["kernel"],
                requests=numbers["requests"],
                requests_per_s=(numbers["requests"] - old["requests"]) / elapsed,
                **{name: numbers[name] for name in counted},
                stages=_stages(old, numbers),
            )
        )
    return tuple(made)


def _version_key(model: Raw) -> tuple[str, int, int]:
    return model["name"], model["version"], model["line"]


def _clients(before: Raw | None, after: Raw, elapsed: float) -> tuple[Client, ...]:
    earlier = {} if before is None else {_session_key(c): c for c in before["clients"]}
    made = []
    for c in sorted(after["clients"], key=lambda c: (c["pid"], _session_key(c))):
        old = _earlier(earlier.get(_session_key(c)), c)
        made.append(
            Client(
                pid=c["pid"],
                uid=c["uid"],
                pool=c["pool"],
                requests=c["requests"],
                requests_per_s=(c["requests"] - old["requests"]) / elapsed,
                in_flight=c["in_flight"],
                bytes=c["bytes"],
                garbage=c["garbage"],
                stages=_stages(old, c),
            )
        )
    return tuple(made)


def _session_key(client: Raw) -> tuple[str, int, int]:
    return client["pool"], client["session"], client["epoch"]


def _earlier(old: Raw | None, new: Raw) -> Raw:
    """The earlier look at the same thing; zero when there is none, or it was another thing in the same place."""
    if old is None or old["requests"] > new["requests"]:
        return {"requests": 0, "stages": {}}
    return old


def _stages(old: Raw, new: Raw) -> dict[str, Histogram]:
    return {name: Histogram.of(added(old["stages"].get(name, ()), buckets)) for name, buckets in new["stages"].items()}


def added(old: Any, new: Any) -> list[tuple[int, int]]:
    """Buckets of what came between two looks at one histogram."""
    counts = {int(floor): int(count) for floor, count in old}
    grown = ((int(floor), (int(count) - counts.get(int(floor), 0)) % (1 << 32)) for floor, count in new)
    return [(floor, count) for floor, count in grown if count]
