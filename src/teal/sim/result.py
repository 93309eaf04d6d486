"""What came out of a simulation."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from teal import _core
from teal.errors import NotFound
from teal.sim.faults import NAMES

_COUNTERS = (
    *(
        "arrived",
        "done",
        "cancelled",
        "expired",
        "turned_away",
        "reruns",
        "preempted",
        "yielded",
        "local",
        "taken_over",
    ),
    *("events", "messages", "decisions", "moved", "refused", "rescans", "fallbacks", "upgrades", "restarts"),
)
_PERCENTILES = (50.0, 90.0, 99.0, 99.9)


@dataclass(frozen=True, eq=False)
class TypeResult:
    """Of one type of requests.

    Attributes:
        arrived: how many came; each of them is ``done``, ``cancelled``, ``expired`` or ``turned_away``.
        missed: done, after their deadline.
        busy_s: seconds of workers that it had.
        latency_ns: uint64, ascending: from arrival to end, of those that are done.
    """

    name: str
    arrived: int
    done: int
    cancelled: int
    expired: int
    turned_away: int
    missed: int
    busy_s: float
    latency_ns: npt.NDArray[np.uint64]

    def percentile_us(self, p: float | Sequence[float]) -> Any:
        """Microseconds that p percent of the requests took at most: a float, or an array for several. The latency of
        a request that there was, not one between two; NaN where none is done."""
        if not len(self.latency_ns):
            return float("nan") if np.isscalar(p) else np.full(len(np.atleast_1d(p)), np.nan)
        found = np.percentile(self.latency_ns, p, method="inverted_cdf") / 1e3
        return float(found) if np.isscalar(p) else found

    @property
    def mean_us(self) -> float:
        """The average latency."""
        return float(np.mean(self.latency_ns)) / 1e3 if len(self.latency_ns) else float("nan")

    def as_json(self) -> dict[str, Any]:
        """For programs: counts, mean and percentiles."""
        found = {each.name: getattr(self, each.name) for each in dataclasses.fields(self) if each.name != "latency_ns"}
        if len(self.latency_ns):
            found["mean_us"] = self.mean_us
            found |= {f"p{p:g}_us": self.percentile_us(p) for p in _PERCENTILES}
        return found


class Result:
    """Of one run. Counters are whole numbers of the whole run.

    Attributes:
        policy, seed: which run it was.
        types: by name.
        counters: arrived, done, cancelled, expired, turned_away; reruns after a worker's death; preempted, yielded;
            local, that ran in the pool's own order; taken_over, by one of several agents from another; messages, decisions, refused decisions, moved to another worker;
            rescans, fallbacks, upgrades, restarts of the agent; events of the simulation.
        met: how often each fault happened.
        violations: what may never happen: a request lost, run twice, or run after its end. The run ended there.
        breaches: what the policy owes and did not keep, the first few of ``breached``: a request that waits beside a
            worker that may run it, an exception. The pool went on as a host does.
        policy_error: the first exception of the policy, with its traceback.
        virtual_s, real_s: how long it took there and here.
        utilisation: of the workers.
        longest_gap_s: from an agent's end to the pool's own order.
        fingerprint: of all that happened; equal for equal runs.
    """

    def __init__(self, core: _core.SimResult, policy: str, seed: int, workers: int, real_s: float) -> None:
        self.policy = policy
        self.seed = seed
        self.types: Mapping[str, TypeResult] = MappingProxyType({each.name: _type(each) for each in core.types})
        self.counters: Mapping[str, int] = MappingProxyType({name: getattr(core, name) for name in _COUNTERS})
        self.met: Mapping[str, int] = MappingProxyType({name: int(getattr(core.met, name)) for name in NAMES})
        self.violations = tuple(core.violations)
        self.breaches = tuple(core.breaches)
        self.breached: int = core.breached
        self.policy_error: str = core.policy_error
        self.virtual_s = core.virtual_ns / 1e9
        self.real_s = real_s
        self.utilisation = core.busy_ns / max(core.virtual_ns * workers, 1)
        self.longest_gap_s = core.longest_gap_ns / 1e9
        self.fingerprint: int = core.fingerprint

    @property
    def ok(self) -> bool:
        """Nothing was violated, and the policy kept what it owes."""
        return not self.violations and not self.breached

    def __getitem__(self, name: str) -> TypeResult:
        """One type's. Raises NotFound."""
        if name not in self.types:
            raise NotFound(f"type {str(name)[:80]!r}: there were {', '.join(self.types)}; give one of them")
        return self.types[name]

    def __repr__(self) -> str:
        how = "ok" if self.ok else "not ok"
        return f"<Result of {self.policy}, seed {self.seed}: {self.counters['done']} done, {how}>"

    @cached_property
    def latency_ns(self) -> npt.NDArray[np.uint64]:
        """Of all types together, ascending."""
        return np.sort(np.concatenate([each.latency_ns for each in self.types.values()]))

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        plain = ("policy", "seed", "violations", "breaches", "breached", "policy_error", "virtual_s", "real_s")
        found: dict[str, Any] = {name: getattr(self, name) for name in plain}
        found |= {"utilisation": self.utilisation, "longest_gap_s": self.longest_gap_s}
        found["fingerprint"] = f"{self.fingerprint:016x}"
        found["counters"], found["met"] = dict(self.counters), dict(self.met)
        found["types"] = [each.as_json() for each in self.types.values()]
        return found


def _type(core: _core.SimTypeResult) -> TypeResult:
    latency = np.frombuffer(core.latencies(), np.uint64)
    counts = (core.arrived, core.done, core.cancelled, core.expired, core.turned_away, core.missed)
    return TypeResult(core.name, *counts, core.busy_ns / 1e9, latency)
