"""One agent, whatever process serves for it at the moment: brought up, replaced, put off, started again.

Theory of operation: see agents.py.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from typing import TYPE_CHECKING, Any

from teal.errors import TealError
from teal.host.audit import printable
from teal.host.backoff import Backoff
from teal.host.crew import Crew
from teal.host.watch import Watch

if TYPE_CHECKING:
    from teal.host.agent_options import AgentOptions
    from teal.host.agent_part import AgentPart
    from teal.host.agents import Agents
    from teal.host.policy_spec import PolicySpec

_MOST_RETURNS = 5  # in a minute; what freezes more often is not slow for a moment
_MINUTE = 60.0


class Agent:
    """One agent, whatever process serves for it at the moment."""

    def __init__(
        self, agents: Agents, pools: tuple[AgentPart, ...], specs: tuple[PolicySpec, ...], options: AgentOptions
    ) -> None:
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
        if self.pools[0].count > 1:
            more["workers"] = list(self.pools[0].workers)
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
            crew.check_alive()  # before the one that serves is let go
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

    def forgive(self) -> None:
        """Another policy is asked for and serves: what those before it did is not held against it."""
        self._backoff = Backoff()
        self._backoff.began(self._now())
        self._returned.clear()

    # ---- down ------------------------------------------------------------------------------------------------------

    def froze(self, crew: Crew, why: str) -> None:
        """Its heart stands still. Its pools go on by themselves, and it may come back."""
        if crew is not self.crew or self.state != "online":
            return
        if len(self._returned) == _MOST_RETURNS and self._now() - self._returned[0] < _MINUTE:
            self.fell(crew, f"{why}; it came back {_MOST_RETURNS} times within a minute")
            return
        crew.fall_back(why)
        self.fallbacks += 1
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
        if self.state == "online":  # else that was counted when it froze
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
                self.why = printable(str(error))
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
            "part": self.pools[0].index,
            "parts": self.pools[0].count,
            "workers": [] if self.pools[0].count == 1 else list(self.pools[0].workers),
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
