"""What `teal bench wave` asks for: kinds of requests, their shares, and when they come.

A load's arrivals are drawn from a seed, so that every mode that is compared gets the same requests in the same order.
At a rate they come as a Poisson process; without one all are due at once: saturation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from . import rocks

Draw = Literal["key", "fixed", "exponential", "none"]


@dataclass(frozen=True)
class Kind:
    """One kind of request: a share of a load's requests, all to one model.

    draw: what input 0 holds: a random key, `us` microseconds, microseconds drawn with that mean, or what was put there
    once.
    """

    name: str
    model: str
    share: float
    draw: Draw
    us: float  # what it takes, about; for `fixed` and `exponential` what is asked for


@dataclass(frozen=True)
class Load:
    """A mix of kinds. sources: what each model is loaded from; note: how it is made, as reports say it."""

    name: str
    sources: Mapping[str, str]
    kinds: tuple[Kind, ...]
    note: str

    @property
    def mean_us(self) -> float:
        """What a request takes, about, on average."""
        return sum(kind.share * kind.us for kind in self.kinds)


@dataclass(frozen=True)
class Arrivals:
    """When what comes: ns from the start, number of the kind, value for input 0."""

    at_ns: NDArray[np.uint64]
    kind: NDArray[np.uint32]
    value: NDArray[np.int64]


EXPONENTIAL_US, SHORT_US, LONG_US, LONG_SHARE = 10, 10, 1000, 0.005
ROCKS = "teal.bench.wave.rocks"
SPIN = {"spin": "builtin:spin"}


def rocksdb(*, preemptible: bool = True) -> Load:
    """99.5 % GET, 0.5 % RANGE."""
    scan = "scan" if preemptible else "scan_at_once"
    return Load(
        "rocksdb",
        {"get": f"{ROCKS}:get", "range": f"{ROCKS}:{scan}"},
        (Kind("GET", "get", 1 - LONG_SHARE, "key", 10), Kind("RANGE", "range", LONG_SHARE, "key", 10_000)),
        f"RocksDB through rocksdict, {rocks.KEYS:,} keys in memory: 99.5 % GET ({rocks.LOOKUPS} lookups, about 10 µs), "
        f"0.5 % RANGE ({rocks.ENTRIES:,} entries, about 10 ms, yields every {rocks.STEP})",
    )


def gets() -> Load:
    """RocksDB's GETs alone."""
    return Load("gets", {"get": f"{ROCKS}:get"}, (Kind("GET", "get", 1, "key", 10),), "GETs of the RocksDB load alone")


def exponential() -> Load:
    note = f"builtin:spin, exponential service times, {EXPONENTIAL_US} µs on average, whole microseconds from 1"
    return Load("exponential", SPIN, (Kind("request", "spin", 1, "exponential", EXPONENTIAL_US),), note)


def bimodal() -> Load:
    short = Kind("short", "spin", 1 - LONG_SHARE, "fixed", SHORT_US)
    long = Kind("long", "spin", LONG_SHARE, "fixed", LONG_US)
    return Load("bimodal", SPIN, (short, long), f"builtin:spin: 99.5 % take {SHORT_US} µs, 0.5 % {LONG_US} µs")


def instant() -> Load:
    """Requests that take nothing: what is around them is all there is."""
    return Load("instant", SPIN, (Kind("request", "spin", 1, "fixed", 0),), "builtin:spin of 0 µs: the path alone")


def onnx(short: str, long: str) -> Load:
    """Two ONNX models: files."""
    kinds = (Kind("short", "short", 0.95, "none", 8), Kind("long", "long", 0.05, "none", 400))
    note = "two perceptrons under onnxruntime, one thread: 95 % 64-64-8, 5 % of four layers of 1,024"
    return Load("onnx", {"short": short, "long": long}, kinds, note)


def draw(load: Load, n: int, seed: int, rate: float | None = None) -> Arrivals:
    """n requests; rate: per second, None: all at once."""
    numbers = np.random.default_rng(seed)
    kind = numbers.choice(len(load.kinds), n, p=[each.share for each in load.kinds]).astype(np.uint32)
    value = np.zeros(n, np.int64)
    for index, each in enumerate(load.kinds):
        mine = kind == index
        value[mine] = _values(each, int(mine.sum()), numbers)
    at_ns = np.zeros(n, np.uint64)
    if rate is not None:
        at_ns = np.cumsum(numbers.exponential(1e9 / rate, n)).astype(np.uint64)
    return Arrivals(at_ns, kind, value)


def _values(kind: Kind, n: int, numbers: np.random.Generator) -> Any:
    if kind.draw == "key":
        return numbers.integers(0, rocks.KEYS, n)
    if kind.draw == "exponential":
        return np.maximum(1, np.rint(numbers.exponential(kind.us, n)))
    return int(kind.us) if kind.draw == "fixed" else 0


def packed(load: Load) -> dict[str, Any]:
    """As JSON can hold it."""
    return asdict(load)


def unpacked(given: Mapping[str, Any]) -> Load:
    return Load(given["name"], given["sources"], tuple(Kind(**kind) for kind in given["kinds"]), given["note"])
