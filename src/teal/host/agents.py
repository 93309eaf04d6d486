"""The host's agents: started, sat down, watched, replaced, moved and sent away.

Theory of operation. An agent is a name for what somebody asked for (which policies for which pools, how run) and at
most one *crew* that serves: a process and its incarnation at each pool's seat. Bringing one up is: start the process,
let it make its policies and lock itself in, sit it down at every seat, then let its decisions count. An upgrade brings
up a second crew while the first one serves, and only then changes whose decisions count; if that fails the first one
stays.

A crew falls when its process dies (heard at once), when a policy raises, when the core's sweeper took its rights (a
request waited too long), or when it decides too much that no correct agent would. The pool then goes on in its own
order (the core sees to that first), one audit line says who, why and how long, and a new crew is brought up after a
while that doubles with each fall (backoff.py). The host runs no line of a policy's code.

A crew whose heart stood still may only have been slow (a stopped process, a machine that paused, a method that took too
long): the pool goes on in its own order as well, but the process is kept, and when its heart beats again within
``come_back`` it decides again, from the status words as they are then. One that takes longer, or freezes again and
again, is replaced like one that fell.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from teal.agents.spec import make
from teal.errors import Busy, InvalidArgument, NotFound, PeerDied
from teal.host import agent_part, policy_spec
from teal.host.agent import Agent
from teal.host.agent_options import AgentOptions, agent_options
from teal.host.agent_part import AgentPart
from teal.host.agent_spare import AgentSpare
from teal.host.audit import Audit
from teal.host.policy_spec import PolicySpec

if TYPE_CHECKING:
    from teal.host.pool import Pool

log = logging.getLogger("teal.host")

_MOST_POOLS = 16  # of one agent


class Agents:
    """All of a host. Methods run on the daemon's loop."""

    def __init__(self, pools: Mapping[str, Pool]) -> None:
        self._pools = pools
        self.audit = Audit()
        self.spare = AgentSpare(self._hush)
        self._agents: list[Agent] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self.stopping = False

    def check_going_on(self) -> None:
        """Raises PeerDied when the host is stopping: nobody would end what comes up now."""
        if self.stopping:
            raise PeerDied("host", "it is stopping, and takes no more work")

    def _hush(self, on: bool) -> None:
        """Somebody is to start on what time the agents leave."""
        for agent in self._agents:
            if agent.crew is not None:
                agent.crew.hush(on)

    def spawn(self, coroutine: Any) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("agents: %s: %s", type(error).__name__, error)

    async def start_configured(self) -> None:
        """Those that the pools' settings ask for. Raises what is wrong with one of them."""
        for name, pool in self._pools.items():
            if pool.settings.policy and not self._inline(name, pool):
                await self.start([name], [pool.settings.policy], pool.settings.agent)

    def _inline(self, name: str, pool: Pool) -> bool:
        """``inline=1``: the policy is called in the pool's worker. False: it is not asked for."""
        spec = policy_spec.parse(pool.settings.policy)
        asked = spec.settings.pop("inline", "0")
        if asked == "0":
            return False
        if asked != "1" or pool.settings.workers != 1 or spec.custom:
            raise InvalidArgument(
                f"{pool.settings.policy!r} of pool {name!r}: with inline=1 expected a shipped policy and one worker",
                path="$.policy",
            )
        make(spec.target, spec.class_name, spec.settings)  # what is wrong with it is said here
        pool.seat.decide_inline(str(spec))
        return True

    # ---- what people ask -------------------------------------------------------------------------------------------

    async def start(
        self, pools: Sequence[str], policies: Sequence[str], options: AgentOptions | Mapping[str, Any]
    ) -> dict[str, Any]:
        """One agent for these pools: a policy for all, or one each. With ``agents`` several that share one pool.

        Raises Busy, NotFound, InvalidArgument, PeerDied.
        """
        if not isinstance(options, AgentOptions):
            base = self._pool(pools[0]).settings.agent if pools else AgentOptions()
            options = agent_options(base, options, "$.options")
        found = self._free(pools)
        specs = _specs(policies, len(found))
        count = options.agents
        agent_part.check(found, count)
        agents = [
            Agent(self, tuple(AgentPart(pool, i, count) for pool in found), specs, _of_part(options, i))
            for i in range(count)
        ]
        for agent in agents:
            self._check_core(agent.options, agents)
        self._agents += agents
        if count > 1:
            agent_part.deal(found[0], count)
        for agent in agents:
            await self._bring_up_first(agent, agents)
        return agents[0].numbers()

    async def _bring_up_first(self, agent: Agent, agents: Sequence[Agent]) -> None:
        """One of some that come together: all of them, or none."""
        try:
            async with agent.busy:
                await agent.bring_up(agent.specs, agent.options)
        except BaseException as error:
            for one in agents:
                if one in self._agents:
                    self._agents.remove(one)
            if not self._agents:
                await self.spare.stop()
            agent.state = "stopped"
            agent.note("refused", None, str(error), bad=True)
            for one in agents:
                if one.state != "stopped":
                    await one.stop("another one could not be started")
            self._deal_no_more(agents)
            raise
        agent.note("online", agent.crew)

    def _deal_no_more(self, agents: Sequence[Agent]) -> None:
        """They have left; what is one agent's alone needs no dealing."""
        for part in {agent.pools[0].pool for agent in agents if agent.pools[0].count > 1}:
            if not self.stopping and not any(part.name in other.names for other in self._agents):
                agent_part.deal(part, 1)

    async def upgrade(self, pool: str, policies: Sequence[str], options: Mapping[str, Any]) -> dict[str, Any]:
        """Another crew for the agent of that pool, while the one that serves goes on until it is ready.

        Of several agents one after the other; if one cannot be, those after it stay as they are.
        """
        agents = self.agents_of(pool)
        specs = _specs(policies, len(agents[0].pools)) if policies else agents[0].specs
        asked = agent_options(agents[0].options, options, "$.options")
        if asked.agents != len(agents):
            raise InvalidArgument(
                f"{asked.agents} agents, expected as many as pool {pool!r} has: {len(agents)}; "
                "or stop them and start others",
                path="$.options.agents",
            )
        for agent in agents:
            own = _of_part(asked, agent.pools[0].index)
            self._check_core(own, agents)
            await self._upgrade_one(agent, pool, policies, specs, own)
        return agents[0].numbers()

    async def _upgrade_one(
        self, agent: Agent, pool: str, policies: Sequence[str], specs: tuple[PolicySpec, ...], asked: AgentOptions
    ) -> None:
        async with agent.busy:
            self._check_there(agent, pool)
            before = agent.policy
            if not policies:
                specs = agent.specs
            await agent.bring_up(specs, asked)
            agent.changed.clear()
            agent.forgive()
            agent.upgrades += 1
            agent.note("upgraded", agent.crew, f"from {before}")

    async def stop_agent(self, pool: str) -> None:
        """Its pools go on in their own order. Raises NotFound."""
        agents = self.agents_of(pool)
        for agent in agents:
            async with agent.busy:
                self._check_there(agent, pool)
                await agent.stop("asked to")
                if agent in self._agents:
                    self._agents.remove(agent)
                if not self._agents:
                    await self.spare.stop()
        self._deal_no_more(agents)

    async def change(self, pool: str, settings: Mapping[str, str]) -> dict[str, str]:
        """Settings of the policy that serves the pool; the answer has all of them. Raises NotFound, InvalidArgument."""
        now: dict[str, str] = {}
        for agent in self.agents_of(pool):
            now = await self._change_one(agent, pool, settings)
        return now

    async def _change_one(self, agent: Agent, pool: str, settings: Mapping[str, str]) -> dict[str, str]:
        if agent.crew is None or agent.state == "frozen":
            raise PeerDied("agent", f"it serves no more: {agent.why}; it comes back, or is started again")
        now = await agent.crew.change(pool, dict(settings))
        index = agent.names.index(pool)
        spec = agent.specs[index]  # a crew that comes later is given them too
        specs = list(agent.specs)
        specs[index] = replace(spec, settings={**spec.settings, **settings})
        agent.specs = tuple(specs)
        agent.note("changed", agent.crew, ", ".join(f"{name}={value}" for name, value in settings.items()))
        return now

    async def dump(self, pool: str) -> Sequence[dict[str, Any]]:
        """What the agent of that pool says of itself and of its policies' state."""
        serve = [agent.crew for agent in self.agents_of(pool) if agent.crew is not None and agent.state != "frozen"]
        return [said for crew in serve for said in await crew.look(dump=True)]

    def list(self, pool: str | None = None) -> dict[str, Any]:
        """Agents with their numbers, and the audit."""
        chosen = self._agents if pool is None else self.agents_of(pool)
        return {"agents": [agent.numbers() for agent in chosen], "audit": self.audit.lines(pool)}

    # ---- who is where ----------------------------------------------------------------------------------------------

    def _pool(self, name: str) -> Pool:
        pool = self._pools.get(name)
        if pool is None:
            raise NotFound(f"pool {name[:80]!r}: this host has {', '.join(self._pools)}")
        return pool

    def agents_of(self, pool: str) -> Sequence[Agent]:
        """One, or those that share it. Raises NotFound."""
        self._pool(pool)
        if found := [agent for agent in self._agents if pool in agent.names]:
            return found
        raise NotFound(f"pool {pool!r} has no agent; start one: teal agent start {pool} --policy shinjuku")

    def _check_there(self, agent: Agent, pool: str) -> None:
        """Raises when it was stopped while somebody waited for his turn with it."""
        if agent not in self.agents_of(pool):
            raise Busy(f"pool {pool!r} has another agent by now; look at it, and ask again")

    def _free(self, names: Sequence[str]) -> tuple[Pool, ...]:
        if not 1 <= len(names) <= _MOST_POOLS or len(set(names)) != len(names):
            raise InvalidArgument(f"{list(names)[:17]}, expected 1 to {_MOST_POOLS} different pools", path="$.pools")
        pools = tuple(self._pool(name) for name in names)
        for agent in self._agents:
            if taken := sorted(set(agent.names) & set(names)):
                raise Busy(f"pool {taken[0]!r} has an agent already ({agent.policy}); upgrade it, or stop it first")
        return pools

    def _check_core(self, options: AgentOptions, but: Sequence[Agent]) -> None:
        for agent in self._agents:
            if agent not in but and options.core is not None and agent.options.core == options.core:
                raise Busy(
                    f"core {options.core} has the agent of {', '.join(agent.names)}; one agent a core: "
                    f"put them into one, as in teal agent start {','.join(agent.names)},…"
                )

    def worker_cores(self, pools: Sequence[AgentPart]) -> set[int]:
        """Where the workers of these pools may run."""
        usable = os.sched_getaffinity(0)
        return {core for pool in pools for core in (pool.settings.cores or usable)}

    # ---- the end ---------------------------------------------------------------------------------------------------

    def dump_all(self) -> None:
        """SIGUSR1 to each: their states go to the log."""
        for agent in self._agents:
            if agent.crew is not None:
                agent.crew.process.signal(signal.SIGUSR1)

    async def stop(self) -> None:
        """All of them leave; their pools finish in their own order."""
        self.stopping = True
        agents, self._agents = self._agents, []
        await asyncio.gather(*(agent.stop("the host stops") for agent in agents))
        await asyncio.gather(*(agent.give_up() for agent in agents))
        await self.spare.stop()
        for task in list(self._tasks):
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def forget(self) -> None:
        """In a forked child."""
        self.spare.forget()
        for agent in self._agents:
            if agent.crew is not None:
                agent.crew.process.forget()


def _of_part(options: AgentOptions, index: int) -> AgentOptions:
    """For the so-manieth of several agents."""
    return options if options.agents == 1 else replace(options, core=options.cores[index] if options.cores else None)


def _specs(policies: Sequence[str], count: int) -> tuple[PolicySpec, ...]:
    if len(policies) not in (1, count):
        raise InvalidArgument(
            f"{len(policies)} policies for {count} pools, expected one for all of them or one for each",
            path="$.policies",
        )
    specs = tuple(policy_spec.parse(text, "$.policies") for text in policies)
    for spec in specs:
        if not spec.custom and "inline" in spec.settings:  # then there would be no agent
            raise InvalidArgument(
                f"{str(spec)[:80]!r}: give inline when the pool is made, as in teal serve --policy fifo:inline=1",
                path="$.policies",
            )
    return specs if len(specs) == count else specs * count
