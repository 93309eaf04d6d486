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
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from teal.agents.spec import make
from teal.errors import Busy, InvalidArgument, NotFound, PeerDied, TealError
from teal.host import policy_spec
from teal.host.agent_options import AgentOptions, agent_options
from teal.host.agent_spare import AgentSpare
from teal.host.audit import Audit
from teal.host.backoff import Backoff
from teal.host.crew import Crew
from teal.host.policy_spec import PolicySpec
from teal.host.watch import Watch

if TYPE_CHECKING:
    from teal.host.pool import Pool

log = logging.getLogger("teal.host")

_MOST_POOLS = 16  # of one agent
_MOST_RETURNS = 5  # in a minute; what freezes more often is not slow for a moment
_MINUTE = 60.0


class Agent:
    """One agent, whatever process serves for it at the moment."""

    def __init__(self, agents: Agents, pools: tuple[Pool, ...], specs: tuple[PolicySpec, ...], options: AgentOptions):
        self.agents = agents
        self.pools = pools
        self.specs = specs
        self.options = options
        self.crew: Crew | None = None
        self._coming: Crew | None = None  # does not serve yet
        self.state = "starting"  # then online, frozen (it may beat again), fallen (it is started again), stopped
        self.why = ""  # it fell or froze
        self.fallbacks = 0
        self.restarts = 0
        self.returns = 0
        self._returned: deque[float] = deque(maxlen=_MOST_RETURNS)  # when
        self.upgrades = 0
        self.changed: dict[str, dict[str, str]] = {}  # settings by pool, beyond what its specs say
        self.busy = asyncio.Lock()  # one start, upgrade or stop at a time
        self._backoff = Backoff()
        self._restart: asyncio.Task[None] | None = None
        self.watch: Watch | None = None

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(pool.name for pool in self.pools)

    @property
    def policy(self) -> str:
        return ", ".join(dict.fromkeys(str(spec) for spec in self.specs))

    def note(self, what: str, crew: Crew | None, why: str = "", *, bad: bool = False, **more: Any) -> None:
        ended = what in ("fallback", "stopped")
        seconds = crew.served(self._now()) if crew is not None and ended else 0.0
        self.agents.audit.note(what, self.names, self.policy, crew.pid if crew else 0, why, seconds, bad=bad, **more)

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    # ---- up --------------------------------------------------------------------------------------------------------

    async def bring_up(self, specs: tuple[PolicySpec, ...], options: AgentOptions) -> None:
        """A crew that serves, instead of the one that does. Raises what is wrong; then nothing has changed."""
        crew = self._coming = Crew(self, self.pools, specs, options)
        try:
            self.agents.check_going_on()
            await crew.prepare()
            self.agents.check_going_on()
        except BaseException:
            await crew.leave(kill=True)
            if self.crew is not None and not self.agents.stopping:
                self.agents.spare.fill()  # the next try need not wait either
            raise
        finally:
            self._coming = None
        before, self.crew = self.crew, crew
        crew.take_over()
        self.specs, self.options, self.state, self.why = specs, options, "online", ""
        self._backoff.began(self._now())
        if self.watch is not None:
            self.watch.stop()
        self.watch = Watch(self, crew)
        if before is not None:
            await before.leave()
            await before.breathe()
        if not self.agents.stopping:
            self.agents.spare.fill()

    # ---- down ------------------------------------------------------------------------------------------------------

    def froze(self, crew: Crew, why: str) -> None:
        """Its heart stands still. Its pools go on by themselves, and it may come back."""
        if crew is not self.crew or self.state != "online":
            return
        if len(self._returned) == _MOST_RETURNS and self._now() - self._returned[0] < _MINUTE:
            self.fell(crew, f"{why}; it came back {_MOST_RETURNS} times within a minute")
            return
        crew.fall_back(why)
        self.state, self.why = "frozen", why
        seconds = crew.options.come_back_ns / 1e9
        self.note("fallback", crew, why, bad=True, taken_back_within_s=seconds)
        self._restart = self.agents.spawn(self._await_return(crew, seconds))

    async def _await_return(self, crew: Crew, seconds: float) -> None:
        away = self._now()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(crew.beats.wait(), seconds)
        async with self.busy:
            if crew is not self.crew or self.state != "frozen":
                return
            if not crew.beats.is_set() or crew.process.gone:
                self._give_up(crew, f"its heart did not beat again within {seconds:g} s", "gave up")
                return
            why, self.why = self.why, ""
            crew.take_over()
            self.state = "online"
            self.returns += 1
            self._returned.append(self._now())
            self.note("returned", crew, why, away_s=round(self._now() - away, 3))

    def fell(self, crew: Crew, why: str) -> None:
        """That crew serves no more, through no wish of ours. Called once for each that does."""
        if crew is not self.crew or self.state == "stopped":
            return
        self._give_up(crew, why, "fallback")

    def _give_up(self, crew: Crew, why: str, what: str) -> None:
        crew.fall_back(why)
        self.crew = None
        self.fallbacks += 1
        self.state, self.why = "fallen", why
        if self.watch is not None:
            self.watch.stop()
        delay = self._backoff.failed(self._now())
        self.note(what, crew, why, bad=True, again_in_s=round(delay, 3))
        self.agents.spawn(crew.leave(kill=True))
        self._restart = self.agents.spawn(self._start_again(delay))

    async def _start_again(self, delay: float) -> None:
        await asyncio.sleep(delay)
        async with self.busy:
            if self.state != "fallen":
                return
            try:
                await self.bring_up(self.specs, self.options)
            except (TealError, OSError) as error:
                if self.state != "fallen":
                    return
                delay = self._backoff.failed(self._now())
                self.why = str(error)
                self.note("refused", None, str(error), bad=True, again_in_s=round(delay, 3))
                self._restart = self.agents.spawn(self._start_again(delay))
                return
            self.restarts += 1
            self.note("restart", self.crew, f"attempt {self._backoff.failures}")

    async def give_up(self) -> None:
        """What is being brought up is not waited for: it is ended. Returns once whoever did that has heard."""
        if self._coming is not None:
            self._coming.process.end("the host stops")
        async with self.busy:
            pass

    async def stop(self, why: str) -> None:
        self.state = "stopped"
        if self._restart is not None:
            self._restart.cancel()
        if self.watch is not None:
            self.watch.stop()
        crew, self.crew = self.crew, None
        if crew is not None:
            self.note("stopped", crew, why)
            await crew.leave()

    # ---- numbers ---------------------------------------------------------------------------------------------------

    def numbers(self) -> dict[str, Any]:
        """What a look shows; records.AgentStatistics."""
        crew = self.crew
        return {
            "pools": list(self.names),
            "policies": [str(spec) for spec in self.specs],
            "state": self.state,
            "why": self.why,
            "pid": crew.pid if crew else 0,
            "core": self.options.core,
            "place": self.watch.place if self.watch is not None else self.options.placement,
            "placement": self.options.placement,
            "link": self.options.link,
            "fallbacks": self.fallbacks,
            "restarts": self.restarts,
            "returns": self.returns,
            "upgrades": self.upgrades,
            "moves": self.watch.moves if self.watch is not None else 0,
            "served_s": crew.served(self._now()) if crew else 0.0,
            "walls": dict(crew.walls) if crew else {},
            "seats": crew.numbers() if crew else {},
        }


class Agents:
    """All of a host. Methods run on the daemon's loop."""

    def __init__(self, pools: Mapping[str, Pool]) -> None:
        self._pools = pools
        self.audit = Audit()
        self.spare = AgentSpare()
        self._agents: list[Agent] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self.stopping = False

    def check_going_on(self) -> None:
        """Raises PeerDied when the host is stopping: nobody would end what comes up now."""
        if self.stopping:
            raise PeerDied("host", "it is stopping, and takes no more work")

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
        """One agent for these pools: a policy for all, or one each.

        Raises Busy, NotFound, InvalidArgument, PeerDied.
        """
        if not isinstance(options, AgentOptions):
            base = self._pool(pools[0]).settings.agent if pools else AgentOptions()
            options = agent_options(base, options, "$.options")
        found = self._free(pools)
        specs = _specs(policies, len(found))
        self._check_core(options, None)
        agent = Agent(self, found, specs, options)
        self._agents.append(agent)
        try:
            async with agent.busy:
                await agent.bring_up(specs, options)
        except BaseException as error:
            if agent in self._agents:
                self._agents.remove(agent)
            if not self._agents:
                await self.spare.stop()
            agent.state = "stopped"
            agent.note("refused", None, str(error), bad=True)
            raise
        agent.note("online", agent.crew)
        return agent.numbers()

    async def upgrade(self, pool: str, policies: Sequence[str], options: Mapping[str, Any]) -> dict[str, Any]:
        """Another crew for the agent of that pool, while the one that serves goes on until it is ready."""
        agent = self.agent_of(pool)
        specs = _specs(policies, len(agent.pools)) if policies else agent.specs
        asked = agent_options(agent.options, options, "$.options")
        self._check_core(asked, agent)
        async with agent.busy:
            self._check_there(agent, pool)
            before = agent.policy
            if not policies:
                specs = agent.specs
            await agent.bring_up(specs, asked)
            agent.changed.clear()
            agent.upgrades += 1
            agent.note("upgraded", agent.crew, f"from {before}")
        return agent.numbers()

    async def stop_agent(self, pool: str) -> None:
        """Its pools go on in their own order. Raises NotFound."""
        agent = self.agent_of(pool)
        async with agent.busy:
            self._check_there(agent, pool)
            await agent.stop("asked to")
            if agent in self._agents:
                self._agents.remove(agent)
            if not self._agents:
                await self.spare.stop()

    async def change(self, pool: str, settings: Mapping[str, str]) -> dict[str, str]:
        """Settings of the policy that serves the pool; the answer has all of them. Raises NotFound, InvalidArgument."""
        agent = self.agent_of(pool)
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

    async def dump(self, pool: str) -> list[dict[str, Any]]:
        """What the agent of that pool says of itself and of its policies' state."""
        agent = self.agent_of(pool)
        return [] if agent.crew is None or agent.state == "frozen" else await agent.crew.look(dump=True)

    def list(self, pool: str | None = None) -> dict[str, Any]:
        """Agents with their numbers, and the audit."""
        chosen = self._agents if pool is None else [self.agent_of(pool)]
        return {"agents": [agent.numbers() for agent in chosen], "audit": self.audit.lines(pool)}

    # ---- who is where ----------------------------------------------------------------------------------------------

    def _pool(self, name: str) -> Pool:
        pool = self._pools.get(name)
        if pool is None:
            raise NotFound(f"pool {name[:80]!r}: this host has {', '.join(self._pools)}")
        return pool

    def agent_of(self, pool: str) -> Agent:
        """Raises NotFound."""
        self._pool(pool)
        for agent in self._agents:
            if pool in agent.names:
                return agent
        raise NotFound(f"pool {pool!r} has no agent; start one: teal agent start {pool} --policy shinjuku")

    def _check_there(self, agent: Agent, pool: str) -> None:
        """Raises when it was stopped while somebody waited for his turn with it."""
        if self.agent_of(pool) is not agent:
            raise Busy(f"pool {pool!r} has another agent by now; look at it, and ask again")

    def _free(self, names: Sequence[str]) -> tuple[Pool, ...]:
        if not 1 <= len(names) <= _MOST_POOLS or len(set(names)) != len(names):
            raise InvalidArgument(f"{list(names)[:17]}, expected 1 to {_MOST_POOLS} different pools", path="$.pools")
        pools = tuple(self._pool(name) for name in names)
        for agent in self._agents:
            if taken := sorted(set(agent.names) & set(names)):
                raise Busy(f"pool {taken[0]!r} has an agent already ({agent.policy}); upgrade it, or stop it first")
        return pools

    def _check_core(self, options: AgentOptions, but: Agent | None) -> None:
        for agent in self._agents:
            if agent is not but and options.core is not None and agent.options.core == options.core:
                raise Busy(
                    f"core {options.core} has the agent of {', '.join(agent.names)}; one agent a core: "
                    f"put them into one, as in teal agent start {','.join(agent.names)},…"
                )

    def worker_cores(self, pools: Sequence[Pool]) -> set[int]:
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
