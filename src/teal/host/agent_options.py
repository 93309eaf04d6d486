"""How an agent is run: its core, its link, its bounds. What `Host(agent_core=…)` and `teal agent start` take."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from teal import _core
from teal.errors import InvalidArgument
from teal.host import argument
from teal.host.duration import nanoseconds

PLACEMENTS = ("offload", "host", "auto")
_LEAST_WAIT = 1_000_000
_HEARTBEAT = (30_000_000, 60_000_000_000)  # an agent that knows of requests beats every 20 ms at the latest
_MOST_AGENTS = 4  # seats of a pool
OPTIONS = (
    "agents", "link", "agent_core", "placement", "max_wait", "max_overtaken", "heartbeat", "come_back",
    "local_fast_path", "agent_memory",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class AgentOptions:
    """agents: how many share the pool, each with workers of its own; cores: one for each of them, or none; link: what
    messages and decisions travel over (core/link); core: the agent's own (None: any it may use);
    placement: "offload" (on its core), "host" (on the workers'), or "auto" (moved by load); max_wait_ns: longest that
    a request may wait for a decision while a worker has nothing to do; max_overtaken_ns: so much later may one that
    runs have come than one of the same priority that waits (0: any time); local_fast_path: a request that finds an idle
    worker and nobody waiting runs at once, and the agent is told; memory: bytes of address space that the policy may
    add; heartbeat_ns: longest that its heart may stand still while requests wait for it; come_back_ns: an agent whose
    heart stood still and beats again within so long is taken back, a later one is replaced."""

    agents: int = 1
    cores: tuple[int, ...] = ()
    link: str = "shm"
    core: int | None = None
    placement: str = "offload"
    max_wait_ns: int = 50_000_000
    max_overtaken_ns: int = 30_000_000_000
    local_fast_path: bool = False
    memory: int = 1 << 30
    heartbeat_ns: int = 50_000_000
    come_back_ns: int = 2_000_000_000


def agent_options(base: AgentOptions, given: Mapping[str, Any], path: str) -> AgentOptions:
    """``base`` with what ``given`` says otherwise: some of OPTIONS. Raises InvalidArgument."""
    changed: dict[str, Any] = {}
    if given.get("link") is not None:
        text = argument.one_of(given["link"], str, f"{path}.link", "a link such as shm, pcie or pcie:read=900ns")
        try:
            changed["link"] = _core.parse_link(text)["text"]
        except InvalidArgument as error:
            raise InvalidArgument(str(error), path=f"{path}.link") from None
    if given.get("placement") is not None:
        changed["placement"] = _choice(given["placement"], PLACEMENTS, f"{path}.placement")
    if given.get("agent_core") is not None:
        changed["cores"] = _cores(given["agent_core"], f"{path}.agent_core")
        changed["core"] = changed["cores"][0]
    changed["agents"] = _agents(base, given, changed.get("cores"), path)
    if given.get("max_wait") is not None:
        wait = nanoseconds(given["max_wait"], f"{path}.max_wait")
        if wait < _LEAST_WAIT:
            raise InvalidArgument(f"{given['max_wait']!r}, expected at least 1ms", path=f"{path}.max_wait")
        changed["max_wait_ns"] = wait
    if given.get("max_overtaken") is not None:
        changed["max_overtaken_ns"] = nanoseconds(given["max_overtaken"], f"{path}.max_overtaken")
    if given.get("heartbeat") is not None:
        beat = nanoseconds(given["heartbeat"], f"{path}.heartbeat")
        if not _HEARTBEAT[0] <= beat <= _HEARTBEAT[1]:
            raise InvalidArgument(f"{given['heartbeat']!r}, expected 30ms to 60s", path=f"{path}.heartbeat")
        changed["heartbeat_ns"] = beat
    if given.get("come_back") is not None:
        changed["come_back_ns"] = nanoseconds(given["come_back"], f"{path}.come_back")
    if given.get("local_fast_path") is not None:
        changed["local_fast_path"] = argument.one_of(
            given["local_fast_path"], bool, f"{path}.local_fast_path", "True or False"
        )
    if given.get("agent_memory") is not None:
        changed["memory"] = argument.whole(given["agent_memory"], 1 << 24, 1 << 46, f"{path}.agent_memory")
    options = replace(base, **changed)
    if options.placement == "auto" and options.core is None:
        raise InvalidArgument(
            f"{options.placement!r} moves between the workers' cores and one of its own: give agent_core= too",
            path=f"{path}.placement",
        )
    return options


def _cores(value: object, path: str) -> tuple[int, ...]:
    """One, or one for each agent."""
    found = value if isinstance(value, (list, tuple)) else [value]
    cores = [argument.whole(core, 0, 4095, path) for core in found]
    if not cores or len(set(cores)) != len(cores):
        raise InvalidArgument(f"{found}, expected a core, or different ones for several agents", path=path)
    argument.cores(cores, os.sched_getaffinity(0), path)
    return tuple(cores)


def _agents(base: AgentOptions, given: Mapping[str, Any], cores: tuple[int, ...] | None, path: str) -> int:
    """How many; as many as they have cores, if nobody says."""
    if given.get("agents") is None:
        return base.agents if cores is None else len(cores)
    count = argument.whole(given["agents"], 1, _MOST_AGENTS, f"{path}.agents")
    theirs = base.cores if cores is None else cores
    if theirs and len(theirs) != count and (count > 1 or cores is not None):
        raise InvalidArgument(f"{count} agents on {len(theirs)} cores; give one core for each", path=f"{path}.agents")
    return count


def _choice(value: object, choices: tuple[str, ...], path: str) -> str:
    text = argument.one_of(value, str, path, f"one of {', '.join(choices)}")
    if text not in choices:
        raise InvalidArgument(f"{text[:80]!r}, expected one of {', '.join(choices)}", path=path)
    return text
