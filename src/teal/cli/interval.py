"""What happened between two looks at a host: differences of its raw counters.

Theory of operation: the host only ever counts up, per worker, per loaded version and per session. A rate or a
percentile of an interval is made of the difference of two looks, here and not in the host, so that any number of
watchers with intervals of their own disturb nothing. What is new since the first look (another host, a reloaded
version, a client that came) counts from zero. Buckets of histograms are 32 bits wide and wrap. The records are those of
teal.host.records, with the rates of the interval, and histograms of the interval alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from teal.host import callers
from teal.host.records import (
    CacheStatistics,
    ClientStatistics,
    Histogram,
    ModelStatistics,
    PoolStatistics,
    Totals,
    WorkerStatistics,
    filled,
    merged,
    paths_of,
    place,
    pools_of,
)

Raw = Mapping[str, Any]  # Host._raw_statistics(), or a part of it


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker(WorkerStatistics):
    """With the rates of the interval."""

    requests_per_s: float
    sleeps_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Version(ModelStatistics):
    """A loaded version. Counters: since it was loaded, over all clients. stages (queue, run, copy): of the interval.

    The current version also has what callers count, those that have left among them, for all versions of the name
    together: wake, total, and their part of copy, copies_in and bytes_copied.
    """

    name: str
    version: int
    current: bool
    pool: str
    kernel: str
    requests_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Client(ClientStatistics):
    """A client's session with a pool. requests: since it connected. stages (copy, wake, total; of a BPF session also
    queue and run, as workers saw them): of the interval."""

    requests_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval(Totals):
    """interval_s: between the looks, on the host's clock; since_start: the first look was the host's start.

    unattributed: calls, since the host's start, whose callers had no room left to count them by model (a client counts
    63 models apart): they are missing in what callers count.
    """

    interval_s: float
    since_start: bool
    unattributed: int
    pools: tuple[PoolStatistics, ...]
    cache: CacheStatistics
    workers: tuple[Worker, ...]
    models: tuple[Version, ...]
    clients: tuple[Client, ...]


def between(before: Raw | None, after: Raw) -> Interval:
    """The interval between two looks; None: since the host started."""
    if before is not None and before["pid"] != after["pid"]:
        before = None
    elapsed = after["uptime_s"] - (0.0 if before is None else before["uptime_s"])
    elapsed = max(elapsed, 1e-9)
    return filled(
        Interval,
        after,
        interval_s=elapsed,
        since_start=before is None,
        unattributed=sum(seen["requests"] for key, seen in after["callers"].items() if key.endswith("/-1")),
        pools=pools_of(after),
        cache=filled(CacheStatistics, after["cache"]),
        workers=_workers(before, after, elapsed),
        models=_versions(before, after, elapsed),
        clients=_clients(before, after, elapsed),
    )


def _workers(before: Raw | None, after: Raw, elapsed: float) -> tuple[Worker, ...]:
    earlier = {} if before is None else {w["pid"]: w for w in before["workers"]}
    made = []
    for w in after["workers"]:
        old = _earlier(earlier.get(w["pid"]), w)
        requests = (w["requests"] - old["requests"]) / elapsed
        sleeps = max(0, w["sleeps"] - old.get("sleeps", 0)) / elapsed
        made.append(filled(Worker, w, requests_per_s=requests, sleeps_per_s=sleeps))
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
        rate = (numbers["requests"] - old["requests"]) / elapsed
        if m["current"]:
            rate += _direct_since(before, after, m) / elapsed
        stages = _stages(old, numbers)
        if m["current"]:
            numbers, stages = _with_callers(before, after, m, old, numbers)
        direct = numbers.get("direct", 0)
        batches = {int(batch): path for batch, path in m["batches"].items()}
        found = {**numbers, **m, "requests": numbers["requests"] + direct}
        more = {
            "paths": paths_of(numbers, direct),
            "batches": batches,
            "stages": stages,
            "relayed": numbers.get("relayed", 0),
            "runs_together": numbers["batches"],
        }
        made.append(filled(Version, found, requests_per_s=rate, **more))
    return tuple(made)


def _direct_since(before: Raw | None, after: Raw, model: Raw) -> int:
    """Calls of resident device kernels without a worker, over all versions of the name."""
    key = place(model["pool"], model["index"])
    now, then = (((look or {}).get("callers", {}).get(key) or {}).get("direct", 0) for look in (after, before))
    return max(0, int(now) - int(then))


def _with_callers(
    before: Raw | None, after: Raw, model: Raw, old: Raw, new: Raw
) -> tuple[dict[str, Any], dict[str, Histogram]]:
    """Counters and stages of a version together with what callers of its name saw."""
    key = place(model["pool"], model["index"])
    seen = after["callers"].get(key) or callers.summed([])
    then = ({} if before is None else before["callers"].get(key)) or {}
    numbers = dict(new)
    numbers["direct"], numbers["relayed"] = seen["direct"], seen["relayed"]
    numbers["copies_in"] += seen["copies_in"]
    numbers["bytes_copied"] += seen["bytes_in"]
    grown = {stage: added(then.get(stage, ()), seen[stage]) for stage in callers.STAGES}
    stages = _stages(old, new)
    in_worker = added(old["stages"].get("copy", ()), new["stages"]["copy"])
    stages["copy"] = Histogram.of(merged(in_worker, grown["copy"]))
    return numbers, stages | {stage: Histogram.of(grown[stage]) for stage in ("wake", "total")}


def _version_key(model: Raw) -> tuple[str, int, int]:
    return model["name"], model["version"], model["line"]


def _clients(before: Raw | None, after: Raw, elapsed: float) -> tuple[Client, ...]:
    earlier = {} if before is None else {_session_key(c): c for c in before["clients"]}
    made = []
    for c in sorted(after["clients"], key=lambda c: (c["pid"], _session_key(c))):
        old = _earlier(earlier.get(_session_key(c)), c)
        rate = (c["requests"] - old["requests"]) / elapsed
        made.append(filled(Client, c, requests_per_s=rate, stages=_stages(old, c)))
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
