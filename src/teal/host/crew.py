"""A crew: one agent process and what it holds, an incarnation at each pool's seat.

Theory of operation: see agents.py. A crew serves once, from take_over() to fall_back() or leave().
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from teal.errors import DeadlineExceeded, PeerDied
from teal.host import agent_wire as orders
from teal.host import wire
from teal.host.agent_process import AgentProcess
from teal.host.audit import printable

if TYPE_CHECKING:
    from teal.host.agent import Agent
    from teal.host.agent_options import AgentOptions
    from teal.host.agent_part import AgentPart
    from teal.host.policy_spec import PolicySpec
    from teal.host.seat import Incarnation

log = logging.getLogger("teal.host")

_BEGIN = 60.0  # seconds for importing policies
_ANSWER = 5.0  # for anything else
_LEAVE = 1.0
_MOST_SETTINGS = 1_000
_LONGEST_SETTING = 200  # characters of a name or a value
_HEARD = 0.1  # for what need not be heard at once
_GENTLE = (
    2.0  # seconds for which one that starts beside another one makes way for it; arbitrary: ten times what it takes
)
_BREATH = 0.01  # makes up for a step of 2 ms on a core that is 80 % busy


class Crew:
    """``prepare``, ``take_over``, then ``leave``; all on the daemon's loop."""

    def __init__(
        self, agent: Agent, pools: tuple[AgentPart, ...], specs: tuple[PolicySpec, ...], options: AgentOptions
    ) -> None:
        self._agent = agent
        self._pools = pools
        self._specs = specs
        self.options = options
        self._incarnations: dict[str, Incarnation] = {}
        name = ",".join(pool.name for pool in pools)
        self.process = agent.agents.spare.take(name, self._reported, self._ended, self._call)
        self.walls: Mapping[str, Any] = {}
        self._settings: dict[str, dict[str, str]] = {}  # of its policies, by pool, as it says
        self._own = options.placement != "host"  # core of its own: there it looks for news before it sleeps
        self._hushed = False
        self._since: float | None = None
        self._until: float | None = None
        self._end = asyncio.Event()
        self.beats = asyncio.Event()  # its heart, after it stood still

    @property
    def pid(self) -> int:
        return self.process.pid

    def served(self, now: float) -> float:
        """Seconds for which its decisions counted, or count."""
        return 0.0 if self._since is None else (self._until or now) - self._since

    # ---- up --------------------------------------------------------------------------------------------------------

    async def prepare(self) -> None:
        """Everything but that it counts. Raises what the policy's makers raise, PeerDied, DeadlineExceeded."""
        before = self._agent.crew
        if not self.process.started:
            self.process.start(gently=before is not None)
        if before is not None and self.process.is_gentle:
            await self._start_beside(before)
        self.process.gentle(False)
        policies = [
            orders.Policy(pool.name, spec.target, spec.class_name, spec.settings)
            for pool, spec in zip(self._pools, self._specs, strict=True)
        ]
        begun = await self.process.ask(orders.Begin(policies, self.options.memory), "begun", _BEGIN)
        await self.breathe()
        if begun.error is not None:
            wire.raise_failure(begun.error)
        self.walls = begun.walls
        if begun.walls.get("missing"):
            log.warning("agent process %d has not all walls: %s", self.pid, printable(str(begun.walls["missing"])))
        self.process.place(self.cores(self.options.placement != "host"))
        await self.sit()

    async def _start_beside(self, other: Crew) -> None:
        """In time that the other one does not want."""
        other.hush(True)
        try:
            await asyncio.wait_for(self.process.ready.wait(), _GENTLE)
        except TimeoutError:
            log.info("agent process %d starts beside one that leaves it no time", self.pid)
        finally:
            other.hush(False)

    def cores(self, own: bool) -> set[int]:
        """Where it may run: on its own core, or on those of the workers."""
        if own and self.options.core is not None:
            return {self.options.core}
        return self._agent.agents.worker_cores(self._pools)

    async def sit(self) -> None:
        """At every seat, in an incarnation made for it."""
        for pool in self._pools:
            incarnation = await pool.seat.attach(self.options.link)
            before = self._incarnations.get(pool.name)
            self._incarnations[pool.name] = incarnation  # ours to drop, whatever ends us
            await self.breathe()
            if before is not None:
                await pool.seat.drop(before)
            spin_ns = pool.settings.idle_ns if self.options.placement != "host" else 0
            order = orders.TakeSeat(
                pool.name,
                pool.seat.index,
                incarnation.number,
                self.options.link,
                spin_ns,
                dict(pool.seat.models),
                dict(pool.seat.clients),
            )
            key = f"seated {pool.name} {incarnation.number}"
            seated = await self.process.ask(order, key, _ANSWER, (incarnation.agent_view, incarnation.desk))
            incarnation.handed_over()
            if seated.error is not None:
                wire.raise_failure(seated.error)
            self._settings[pool.name] = _for_people(seated.settings)
            await self.breathe()

    async def breathe(self) -> None:
        """Between two steps beside a crew that serves: what it could not do during the last one it does now."""
        if self._agent.crew not in (None, self):
            await asyncio.sleep(_BREATH)

    def check_alive(self) -> None:
        """Raises PeerDied when it has gone meanwhile."""
        if self.process.gone:
            raise PeerDied("agent", self.process.why or "it ended before it could serve")

    def take_over(self) -> None:
        """Its decisions count, in all pools. Raises PeerDied when it has gone meanwhile."""
        self.check_alive()
        self._since, self._until = self._now(), None
        self.beats.clear()
        for pool, spec in zip(self._pools, self._specs, strict=True):
            pool.seats.listen()
            pool.seat.on_named = partial(self._named, pool.name)
            pool.seat.on_client = partial(self._client_named, pool.name)
            pool.seat.on_event = partial(self._happened, pool.name)
            options = self.options
            pool.seat.bound(
                options.heartbeat_ns, options.max_wait_ns, options.max_overtaken_ns, options.local_fast_path
            )
            pool.seat.activate(self._incarnations[pool.name], str(spec))

    # ---- while it serves -------------------------------------------------------------------------------------------

    async def _named(self, pool: str, index: int, name: str) -> None:
        with contextlib.suppress(PeerDied, DeadlineExceeded):  # whoever takes its place is told; a load does not fail
            await self.process.ask(orders.NameModel(pool, index, name), f"named {pool} {index}", _HEARD)

    def _client_named(self, pool: str, index: int, name: str) -> None:
        self.process.send(orders.NameClient(pool, index, name))

    def _call(self) -> None:
        """Something was sent to its process."""
        for pool in self._pools:
            if (incarnation := self._incarnations.get(pool.name)) is not None:
                pool.seat.call(incarnation)

    def _happened(self, pool: str, number: int, kind: str, reason: str) -> None:
        """The core says so of a seat."""
        if (incarnation := self._incarnations.get(pool)) is None or incarnation.number != number:
            return
        if kind == "beats":
            self.beats.set()
        elif kind == "frozen" and self.options.come_back_ns:
            self._agent.froze(self, reason)
        else:
            self._agent.fell(self, reason)

    def _reported(self, process: AgentProcess, report: orders.AgentReport) -> None:
        if isinstance(report, orders.Faulted):
            why = f"its policy for {printable(report.pool)} failed: {printable(report.what)}"
            for line in report.where.splitlines():
                log.warning("agent %s: %s", process.name, printable(line))
            process.end(why)
            self._agent.fell(self, why)
        elif isinstance(report, orders.Looked) and not process.asked("looked"):  # it was signalled
            for figures in report.figures:
                for line in figures.dump.splitlines():
                    log.info("agent %s: %s: %s", process.name, printable(figures.pool), printable(line))

    def _ended(self, process: AgentProcess, why: str) -> None:
        self._end.set()
        self._agent.fell(self, f"its process ended: {why}")

    async def change(self, pool: str, settings: dict[str, str]) -> dict[str, str]:
        changed = await self.process.ask(orders.Change(pool, settings), f"changed {pool}", _ANSWER)
        if changed.error is not None:
            wire.raise_failure(changed.error)
        self._settings[pool] = now = _for_people(changed.settings)
        return now

    async def look(self, *, dump: bool) -> list[dict[str, Any]]:
        looked = await self.process.ask(orders.Look(dump), "looked", _ANSWER)
        return [
            {"pool": f.pool, "policy": f.policy, "settings": f.settings, "numbers": f.numbers, "dump": f.dump}
            for f in looked.figures
        ]

    def numbers(self) -> dict[str, dict[str, Any]]:
        """Of its seats, by pool."""
        return {
            pool.name: {**pool.seat.numbers(self.incarnation(pool)), "settings": self._settings[pool.name]}
            for pool in self._pools
        }

    def move(self, own: bool) -> None:
        """To its own core, or to those of the workers, where it sleeps at once when there is nothing to do."""
        self._own = own
        self.process.place(self.cores(own))
        self._say_how_to_wait()

    def hush(self, on: bool) -> None:
        """It sleeps at once when there is nothing to do, as somebody is to start on its core; or as before."""
        if on != self._hushed:
            self._hushed = on
            self._say_how_to_wait()

    def _say_how_to_wait(self) -> None:
        looks = self._own and not self._hushed
        self.process.send(orders.Move(max(pool.settings.idle_ns for pool in self._pools) if looks else 0))

    # ---- down ------------------------------------------------------------------------------------------------------

    def fall_back(self, why: str) -> None:
        """The pools go on by themselves."""
        self._until = self._until or self._now()
        for pool in self._pools:
            if (incarnation := self._incarnations.get(pool.name)) is not None:
                pool.seat.fall_back(incarnation, why)

    def incarnation(self, pool: AgentPart) -> Incarnation:
        """Where it sits at that pool."""
        return self._incarnations[pool.name]

    async def leave(self, *, kill: bool = False) -> None:
        """It goes, and everything that it had."""
        self.fall_back("it leaves")
        if self.process.started and not self.process.gone:
            if kill:
                self.process.end("it was ended")
            else:
                await self.breathe()
                self.process.send(orders.Leave())
                try:
                    await asyncio.wait_for(self._end.wait(), _LEAVE)
                except TimeoutError:
                    self.process.end("it did not leave when it was told to")
            await self._end.wait()
            await self.breathe()
        for pool in self._pools:
            if (incarnation := self._incarnations.pop(pool.name, None)) is not None:
                await pool.seat.drop(incarnation)

    def _now(self) -> float:
        return asyncio.get_running_loop().time()


def _for_people(settings: Mapping[str, str]) -> dict[str, str]:
    """What an agent says of its policy, cut."""
    some = list(settings.items())[:_MOST_SETTINGS]
    return {printable(name[:_LONGEST_SETTING]): printable(value[:_LONGEST_SETTING]) for name, value in some}
