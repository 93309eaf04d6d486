"""Agents as a person meets them: ``host.agents``, and the frozen records that say how they do."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from teal.errors import InvalidArgument
from teal.host import argument, policy_spec, wire
from teal.host.audit import AuditLine
from teal.host.records import Histogram

_SAID = ("events", "decisions", "busy_ns", "errors", "rescans", "spins", "sleeps", "rings", "rings_spared", "batches",
         "batched")  # fmt: skip
STAGES = ("message", "decision", "commit", "start", "run", "done")  # each from the one before; message: from arrival
_AS_THEY_ARE = ("messages", "lost", "hits", "misses", "local", "preempted", "yielded", "asked", "asks_in_vain",
                "asks_refused", "unread", "bells", "groups", "groups_refused")  # fmt: skip


@dataclass(frozen=True, slots=True)
class SeatStatistics:
    """What happened at one pool since its agent sat down; ``pool``: "default", or "default/1" where several share it.

    settings: of its policy, all of them. stages: arrival → message → decision → commit → start → run → done, each from
    the one before. staleness: age of decisions when a worker took them up: how old the agent's view was. hits, misses:
    looks of a worker that found a decision staged, or none though requests waited; hit_rate: share of the former, 0
    when there were none. completed: decisions that were carried out; refused: others, by the reason; bugs: those that
    no correct agent meets. local: requests that ran without a decision. preempted, yielded: requests that left their
    worker and were offered again; asked: those among them that left because the agent said so, and not a quantum;
    asks_in_vain: when what it named did not run any more; asks_refused: when that ran, and could not be left.
    queued: requests that wait for its decisions now; unread: messages that it has not read yet; lost: those that
    found the ring full, after which it reads all words anew (rescans). bells: rung for an agent that slept. groups,
    groups_refused: gangs that began, or did not.
    As the agent says: events, decisions, runnable, busy_ns, errors, rescans; asks: to leave a worker; spins, sleeps:
    waits for news that ended while it looked, or asleep; rings: sleeping workers that it woke; rings_spared: decisions
    that needed none; batches: rings for several decisions, and batched these."""

    pool: str
    incarnation: int
    active: bool
    messages: int
    lost: int
    hits: int
    misses: int
    hit_rate: float
    local: int
    preempted: int
    yielded: int
    asked: int
    asks_in_vain: int
    asks_refused: int
    unread: int
    bells: int
    groups: int
    groups_refused: int
    completed: int
    refused: Mapping[str, int]
    bugs: int
    queued: int
    runnable: int
    events: int
    decisions: int
    busy_ns: int
    errors: int
    rescans: int
    asks: int
    spins: int
    sleeps: int
    rings: int
    rings_spared: int
    batches: int
    batched: int
    heart_ms: float
    stages: Mapping[str, Histogram]
    staleness: Histogram
    settings: Mapping[str, str] = field(default_factory=dict)

    @property
    def left(self) -> int:
        """Requests that left their worker in the middle."""
        return self.preempted + self.yielded


@dataclass(frozen=True, slots=True)
class AgentStatistics:
    """One agent. part, parts: which of several that share the pool, and workers: those that it decides for; none: all.
    state: "online", "frozen" (its heart stands still, its pools go on in their own order, and it is
    taken back if it beats again soon), "fallen" (the same; it is started again), "starting", "stopped"; why: it fell
    or froze. fallbacks: times its pools went on without it; restarts: times another process came; returns: how often
    it was taken back. place: where it runs now; walls: what its process is locked in with."""

    pools: tuple[str, ...]
    part: int
    parts: int
    workers: tuple[int, ...]
    policies: tuple[str, ...]
    state: str
    why: str
    pid: int
    core: int | None
    place: str
    placement: str
    link: str
    fallbacks: int
    restarts: int
    returns: int
    upgrades: int
    moves: int
    served_s: float
    walls: Mapping[str, Any] = field(default_factory=dict)
    seats: Mapping[str, SeatStatistics] = field(default_factory=dict)


def label(pool: str, agent: Mapping[str, Any]) -> str:
    """The name of a seat, for people: the pool's, and which part where several agents share it."""
    return pool if agent["parts"] == 1 else f"{pool}/{agent['part']}"


def agent_of(raw: Mapping[str, Any]) -> AgentStatistics:
    """From what a host says."""
    seats = {name: seat_of(label(name, raw), numbers) for name, numbers in raw["seats"].items()}
    tuples = {name: tuple(raw[name]) for name in ("pools", "policies", "workers")}
    return AgentStatistics(**{**raw, **tuples, "seats": seats})


def seat_of(pool: str, raw: Mapping[str, Any]) -> SeatStatistics:
    """From what a host says of a pool's seat."""
    desk = raw["desk"]
    looks = raw["hits"] + raw["misses"]
    refused = {reason: count for reason, count in raw["refused"].items() if count}
    return SeatStatistics(
        pool=pool,
        incarnation=raw["incarnation"],
        active=raw["active"],
        completed=raw["completed"],
        refused=refused,
        bugs=raw["bugs"],
        queued=raw["offered"],
        runnable=desk["runnable"],
        asks=desk["preempts"],
        heart_ms=raw["heart_ms"],
        hit_rate=raw["hits"] / looks if looks else 0.0,
        settings=raw.get("settings", {}),
        stages={stage: Histogram.of(raw["stages"].get(stage, [])) for stage in STAGES},
        staleness=Histogram.of(raw["age"]),
        **{name: raw[name] for name in _AS_THEY_ARE},
        **{name: desk[name] for name in _SAID},
    )


class Agents:
    """``host.agents``. Each method asks the host; all raise Closed and PeerDied as any call to it does."""

    def __init__(self, ask: Callable[[Any], Any]) -> None:
        self._ask = ask

    def start(self, pools: str | Sequence[str], policy: str | Sequence[str], **options: Any) -> AgentStatistics:
        """One agent for a pool, or for several that share its process (and whatever their policies keep in common).

        policy: one for all of these pools, or one each. options: agents, link, agent_core, placement, max_wait,
        max_overtaken, heartbeat, come_back, local_fast_path, agent_memory, as ``Host`` takes them. Returns once its
        decisions count.
        Raises NotFound (no such pool), Busy (it has an agent), InvalidArgument (the policy cannot be made), PeerDied
        (it ended first).
        """
        return agent_of(self._ask(wire.StartAgent(_texts(pools), _policies(policy), options)))

    def upgrade(self, pool: str, policy: str | Sequence[str] | None = None, **options: Any) -> AgentStatistics:
        """Another process for the agent of that pool, with another policy, other options or newer code.

        The old one serves until the new one is ready; if that never is, it goes on. Raises as ``start`` does.
        """
        policies = [] if policy is None else _policies(policy)
        return agent_of(self._ask(wire.UpgradeAgent(_name(pool), policies, options)))

    def set(self, pool: str, **settings: object) -> dict[str, str]:
        """Settings of the policy that serves the pool, while it runs; returns all of them as they are now.

        Raises NotFound, InvalidArgument (it has no such setting, or the value makes no sense).
        """
        found: dict[str, str] = self._ask(
            wire.ChangeAgent(_name(pool), {name: str(value) for name, value in settings.items()})
        )
        return found

    def stop(self, pool: str) -> None:
        """The agent of that pool leaves; its pools go on in their own order. Raises NotFound."""
        self._ask(wire.StopAgent(_name(pool)))

    def dump(self, pool: str) -> str:
        """The state of the policies of that pool's agent, in their own words. Raises NotFound."""
        return "\n".join(said["dump"] for said in self._ask(wire.LookAtAgents(_name(pool), True))["said"])

    def audit(self, pool: str | None = None) -> list[AuditLine]:
        """What happened to agents, oldest first: the last 256 lines."""
        found = self._ask(wire.LookAtAgents(_name(pool)) if pool is not None else wire.LookAtAgents())["audit"]
        return [AuditLine(**{**line, "pools": tuple(line["pools"])}) for line in found]

    def __getitem__(self, pool: str) -> AgentStatistics:
        """How the agent of that pool does, or the first of several (``of``). Raises NotFound."""
        return agent_of(self._ask(wire.LookAtAgents(_name(pool)))["agents"][0])

    def of(self, pool: str) -> list[AgentStatistics]:
        """All that share that pool, by their workers. Raises NotFound."""
        return [agent_of(raw) for raw in self._ask(wire.LookAtAgents(_name(pool)))["agents"]]

    def __iter__(self) -> Iterator[AgentStatistics]:
        return iter([agent_of(raw) for raw in self._ask(wire.LookAtAgents())["agents"]])

    def __len__(self) -> int:
        return len(self._ask(wire.LookAtAgents())["agents"])

    def __contains__(self, pool: object) -> bool:
        return any(pool in agent.pools for agent in self)


def _name(pool: object) -> str:
    return argument.one_of(pool, str, "$.pool", "the name of a pool")


def _texts(value: str | Iterable[str]) -> list[str]:
    if isinstance(value, str):
        return value.split(",")
    return [argument.one_of(item, str, "$.pools", "the name of a pool, or several") for item in value]


def _policies(value: str | Iterable[str]) -> list[str]:
    """With the paths of their files made absolute here, where they were typed."""
    texts = [value] if isinstance(value, str) else list(value)
    specs = [policy_spec.parse(argument.one_of(text, str, "$.policy", "a policy")) for text in texts]
    for spec in specs:
        if spec.target.endswith(".py") and not os.path.isfile(spec.target):
            raise InvalidArgument(f"{spec.target}: no such file; give the path of a policy's .py file", path="$.policy")
    return [str(spec) for spec in specs]
