"""Frozen records: what statistics() returns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

T = TypeVar("T")

Buckets = Iterable[tuple[int, int]]  # (lower bound in ns, count)


@dataclass(frozen=True, slots=True)
class Histogram:
    """Latencies in microseconds. Percentiles are the upper ends of 6 %-wide buckets, so never too good."""

    count: int = 0
    p50_us: float = 0.0
    p99_us: float = 0.0
    p999_us: float = 0.0
    max_us: float = 0.0

    @classmethod
    def of(cls, buckets: Buckets) -> Histogram:
        """From the core's buckets."""
        pairs = sorted(buckets)
        total = sum(count for _, count in pairs)
        if total == 0:
            return cls()

        def at(quantile: float) -> float:
            seen = 0
            for floor, count in pairs:
                seen += count
                if seen >= quantile * total:
                    return _bucket_end(floor) / 1000
            return _bucket_end(pairs[-1][0]) / 1000

        return cls(total, at(0.5), at(0.99), at(0.999), _bucket_end(pairs[-1][0]) / 1000)


def _bucket_end(floor: int) -> int:
    return floor + max(1, 1 << max(0, floor.bit_length() - 5)) if floor >= 16 else floor + 1


def place(pool: str, number: int) -> str:
    """The key of a pool's line or model index among those of all pools."""
    return f"{pool}/{number}"


def merged(*many: Buckets) -> list[tuple[int, int]]:
    """One list of buckets out of several."""
    sums: dict[int, int] = {}
    for buckets in many:
        for floor, count in buckets:
            sums[floor] = sums.get(floor, 0) + count
    return sorted(sums.items())


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Name, dtype and shape of an input or output.

    dtype: a name such as "float32", or None for any. shape: extents as int, symbolic name or None (any); None: any
    shape.
    like: an output that has dtype and shape of this input. in_place: and lies in its memory.
    """

    name: str
    dtype: str | None
    shape: tuple[int | str | None, ...] | None
    like: str | None = None
    optional: bool = False
    in_place: bool = False


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """One loaded version. bytes, digest (SHA-256): of its file; seconds: of the load; current: new calls go to it;
    uid: user who loaded it; device, path: what a device model was loaded for; memory: bytes of its own that each worker
    has for it; parked: it comes back when it is called; kept: replaced versions of the name that rollback() can bring
    back.
    engine: name and version of the library that runs it; precision: how it computes in float32, "fp32" or "bf16";
    threads: cores that a run may keep busy at once; weights: "mapped" (one copy for all workers), "private" (one in
    each), or both; snapshot: bytes of the optimised form that the host keeps for other workers. Nothing of the kind for
    kernels without an engine.
    takes_batches: its requests run together in this pool; concurrency: workers that run the name at once, at most,
    None: any number. preemption: a request of it can be taken from its worker at any instruction ("anywhere"), at its
    own yield points ("yields"), or runs to its end ("none"); docs/preemption.md."""

    name: str
    version: int
    kernel: str
    source: str
    pool: str
    current: bool
    pinned: bool
    pure: bool
    idempotent: bool
    bytes: int
    digest: str
    seconds: float
    uid: int
    device: str | None = None
    path: str | None = None
    engine: str = ""
    precision: str | None = None
    threads: int = 1
    weights: str = ""
    memory: int = 0
    parked: bool = False
    kept: tuple[int, ...] = ()
    takes_batches: bool = False
    concurrency: int | None = None
    preemption: str = "none"
    snapshot: int = 0
    inputs: tuple[TensorSpec, ...] = ()
    outputs: tuple[TensorSpec, ...] = ()


@dataclass(frozen=True, slots=True)
class Verified:
    """One loaded version, looked at anew. digest: SHA-256 when it was loaded; found: of what is resident now, None for
    a kernel without a file; sealed: nobody can change it, whoever holds it; snapshot: is the optimised form that the
    host keeps what came, and sealed? None if there is none."""

    name: str
    version: int
    kernel: str
    digest: str
    found: str | None
    sealed: bool
    bytes: int
    snapshot: bool | None = None

    @property
    def ok(self) -> bool:
        """Is it what was loaded? True for a kernel without a file."""
        return self.snapshot is not False and (self.found is None or (self.sealed and self.found == self.digest))


@dataclass(frozen=True, slots=True)
class ModelStatistics:
    """One version, over all clients, since it was loaded. ``copies_in`` and the stages copy, wake and total are kept by
    clients, for all versions of the name together.

    stages: queue (submit to kernel entered), run (in the kernel), copy (copies into and out of slots), wake (kernel
    left to client
    woken), total (submit to client woken).
    device: None for models without one; path: as asked for. paths: runs by path: "direct" (by a resident kernel,
    called without a worker; kept by clients, for all versions of the name together, and part of ``requests``), "apk"
    (by the same, through a worker), "pl" (a launch each), "cpu". batches: path by batch, up to that power of two, and
    why if it is not the one asked for. fallbacks: slots that went to another path than was asked for; losses: resident
    kernels that did not answer any more; note: what could not be had at the load, or later.
    chained: requests that took outputs of others where they were, without a way back to the client; relayed: those
    whose inputs came from another pool or host, and were passed on by the client's process (kept by clients).
    runs_together: runs of several requests at once; batched: requests in these. held: times that a request was passed
    over because its name ran in as many workers as ``concurrency`` allows.
    preemptions: times a request was taken from its worker; yields: times one left it at a yield point; resumed: times
    one went on; cannot_preempt: requests whose time was over, or that were asked to leave, and could not; dropped:
    requests that had begun and left, and were ended (a cancel, a deadline, a client that went) before they went on.
    """

    requests: int
    failed: int
    cancelled: int
    expired: int
    in_flight: int
    copies_in: int
    copies_out: int
    bytes_copied: int
    bindings: int
    stages: Mapping[str, Histogram]
    device: str | None = None
    path: str | None = None
    paths: Mapping[str, int] = field(default_factory=dict)
    batches: Mapping[int, str] = field(default_factory=dict)
    fallbacks: int = 0
    losses: int = 0
    note: str = ""
    chained: int = 0
    relayed: int = 0
    runs_together: int = 0
    batched: int = 0
    held: int = 0
    preemptions: int = 0
    yields: int = 0
    resumed: int = 0
    cannot_preempt: int = 0
    dropped: int = 0

    @property
    def mean_batch(self) -> float:
        """Requests in a run, of those runs that had several; 0 when there were none."""
        return self.batched / self.runs_together if self.runs_together else 0.0


@dataclass(frozen=True, slots=True)
class WorkerStatistics:
    """state: absent, starting, idle, leading (watches the rings) or running. requests, sleeps: since it started.
    lent_by: the pool whose worker's idle time it uses (``helps=``); None: it is the pool's own."""

    pid: int
    pool: str
    state: str
    requests: int
    sleeps: int
    lent_by: str | None = None


@dataclass(frozen=True, slots=True)
class PoolStatistics:
    """One pool: what it was made with, and how it does. bytes, in_flight, slots: limits of one client there; idle_us:
    longest spinning; batch, delay_us: most rows that run together, and the longest wait for others; quantum_us: time
    that a request has while others wait, if its kernel can be preempted, 0: until it ends; threads: of
    engines, None: all usable cores; cores: none when its workers are not pinned; sessions_gone, requests_gone: of
    clients that called and have left; queued: requests that wait for a worker, for company, or for their name;
    memory: bytes that its models may take, None: as many as there are; memory_used: what they take; parkings, returns:
    versions that made room, and that came back; spares, spares_used: workers that are ready to replace one, and that
    did; helps: pools whose requests it runs when it has nothing to do; helped: how many it did; stolen: requests of its
    own that other pools ran."""

    name: str
    workers: int
    idle_us: float
    threads: int | None
    cores: tuple[int, ...]
    bytes: int
    in_flight: int
    slots: int
    batch: int
    delay_us: float
    quantum_us: float
    sessions: int
    sessions_gone: int
    requests_gone: int
    queued: int
    active: int
    restarts: int
    memory: int | None = None
    memory_used: int = 0
    parkings: int = 0
    returns: int = 0
    spares: int = 0
    spares_used: int = 0
    helps: tuple[str, ...] = ()
    helped: int = 0
    stolen: int = 0


@dataclass(frozen=True, slots=True)
class ClientStatistics:
    """One session of a client with a pool. bytes: shared memory it holds. garbage: broken entries found in its ring.

    stages: copy, wake and total, as the client saw its calls. Of a BPF session queue (taken from its ring to kernel
    entered) and run instead, as workers saw them; its copy, wake and total are empty."""

    pid: int
    uid: int
    pool: str
    requests: int
    in_flight: int
    bytes: int
    garbage: int
    stages: Mapping[str, Histogram]


@dataclass(frozen=True, slots=True)
class CacheStatistics:
    """What engines optimised, on disk. folder: None: it is off; note: why it is, or what went wrong last; files, bytes:
    when this host last looked; most_bytes: how many there may be. hits, misses: loads by engines that began with one,
    and that did not; stored: that this host wrote; refused: that did not fit or were damaged, and were removed;
    evicted: that made room."""

    folder: str | None
    most_bytes: int
    files: int
    bytes: int
    hits: int
    misses: int
    stored: int
    refused: int
    evicted: int
    note: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """failed_with_worker, run_again: requests that a worker's death ended, or that ran again. descriptors: files,
    sockets and regions that the host's process may have open."""

    pid: int
    address: str
    version: str
    uptime_s: float
    descriptors: int
    restarts: int
    failed_with_worker: int
    run_again: int
    queued: int
    active: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HostStatistics(Totals):
    """The whole host. page_bytes: largest pages that this client's memory has."""

    pools: tuple[PoolStatistics, ...]
    workers: tuple[WorkerStatistics, ...]
    clients: tuple[ClientStatistics, ...]
    models: tuple[ModelInfo, ...]
    cache: CacheStatistics
    page_bytes: int


def pools_of(raw: Mapping[str, Any]) -> tuple[PoolStatistics, ...]:
    """Out of what a host says."""
    listed = ("cores", "helps")
    return tuple(filled(PoolStatistics, pool, **{name: tuple(pool[name]) for name in listed}) for pool in raw["pools"])


def paths_of(numbers: Mapping[str, Any], direct: int) -> dict[str, int]:
    """Runs by path, out of a version's raw numbers."""
    return {"direct": direct, **{path: int(numbers[path]) for path in ("apk", "pl", "cpu")}}


def filled(record: type[T], raw: Mapping[str, Any], **more: Any) -> T:
    """A record out of what a host says; ``more``: fields that are not there as they are."""
    names = (field.name for field in fields(record) if field.name not in more)  # type: ignore[arg-type]
    return record(**{name: raw[name] for name in names}, **more)
