"""A process that waits to be told whose agent it is: no upgrade and no restart waits for an interpreter.

Theory of operation: there is one while the host has agents. It has imported what every agent needs and nothing of a
policy, and sits nowhere. An upgrade while requests come would else pay for some hundred milliseconds of imports on the
cores of those that serve. Another one is started once the one that was taken serves, and takes only what time nobody
else wants (where we may give it back the rest: CAP_SYS_NICE). So that there is such time, agents do not look for work
without sleeping meanwhile (``hush``).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from teal.host import agent_wire
from teal.host.agent_process import AgentProcess, OnEnd, OnReport, Wake

log = logging.getLogger("teal.host")

_NAME = "spare"

Hush = Callable[[bool], None]


class AgentSpare:
    """Of one host. All methods run on the daemon's loop."""

    def __init__(self, hush: Hush) -> None:
        self._hush = hush
        self._process: AgentProcess | None = None
        self._ended = asyncio.Event()

    @property
    def pid(self) -> int:
        return 0 if self._process is None else self._process.pid

    def fill(self) -> None:
        """Starts one, if there is none."""
        if self._process is not None:
            return
        process = AgentProcess(_NAME, self._reported, self._died, _nobody)
        try:
            process.start(gently=True)
        except OSError as error:
            log.warning("starting a spare agent process: %s", error)
            return
        self._process = process
        self._ended = asyncio.Event()
        if process.is_gentle:
            self._hush(True)

    def take(self, name: str, on_report: OnReport, on_end: OnEnd, wake: Wake) -> AgentProcess:
        """One that has started, and may be starting still; when there is none, one that has to be started."""
        process, self._process = self._process, None
        self._hush(False)
        if process is None or process.gone:
            return AgentProcess(name, on_report, on_end, wake)
        process.adopt(name, on_report, on_end, wake)
        return process

    def _reported(self, process: AgentProcess, report: agent_wire.AgentReport) -> None:
        if isinstance(report, agent_wire.Ready):
            self._hush(False)
        else:
            process.end(f"it said {type(report).__name__} before it was asked anything")

    def _died(self, process: AgentProcess, why: str) -> None:
        if process is self._process:
            self._process = None
            self._hush(False)
            if process.why == "":
                log.warning("spare agent process %d ended: %s", process.pid, why)
        self._ended.set()

    async def stop(self) -> None:
        """Returns once it is gone."""
        if self._process is not None:
            self._process.end("it is not needed")
            await self._ended.wait()

    def forget(self) -> None:
        """In a forked child."""
        if self._process is not None:
            self._process.forget()


def _nobody() -> None:
    """It has no seat to be rung at."""
