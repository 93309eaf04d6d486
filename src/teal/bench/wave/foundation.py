"""What a pool without an agent pays for there being agents: identity calls of this Teal and of an older one, in pairs.

The older Teal lives in an environment of its own (`--foundation`; `make bench-foundation` builds the last commit before
agents into .venv-foundation). Both sides are a host with one worker on its core and the core's own client on the other
one (`teal bench call`, "core to core"), block by block in turn.
"""

from __future__ import annotations

import sys
from contextlib import ExitStack
from pathlib import Path

from teal.bench import client
from teal.bench.lanes import Environment, Lane, LaneError, Times, decode, paired_difference
from teal.bench.report import Promise
from teal.bench.rivals import work

from .stage import Stage

BAR = "wave.noagent.cost_ns"
PROMISES = {BAR: Promise(20, "lower", "ns")}
NAME = ".venv-foundation"
GROUP = "identity 64 B, core to core, no agent"


def environment(folder: Path) -> Environment:
    """The older Teal's. Raises LaneError where there is none."""
    python = folder / "bin" / "python"
    if not python.exists():
        raise LaneError(f"{folder} is no virtual environment: make bench-foundation makes .venv-foundation")
    return Environment(str(python), "")


def measure(stage: Stage, folder: Path | None) -> None:
    places = [folder] if folder else [where / NAME for where in (Path.cwd(), Path(sys.prefix).parent)]
    found = next((place for place in places if folder or place.exists()), None)
    if found is None:
        stage.report.judge(BAR, None, note="no older Teal: make bench-foundation")
        return
    older = environment(found)
    with ExitStack() as stack:
        lanes = {name: pair(stage, stack, where) for name, where in (("this", stage.environment), ("older", older))}
        times = {name: Times() for name in lanes}
        for number in range(stage.plan.blocks):
            stage.say(f"identity beside an older Teal, block {number + 1} of {stage.plan.blocks}")
            for name in lanes if number % 2 == 0 else reversed(lanes):
                answer = lanes[name].ask("core", n=stage.plan.tries // 4)
                times[name].blocks.append(decode(answer["call"]))
    for name in times:
        stage.report.add_times(f"{name} Teal", GROUP, times[name], "builtin identity, client in C++")
    cost = paired_difference(times["this"], times["older"])
    stage.report.judge(BAR, cost.value * 1e3, se=cost.se * 1e3, note="this Teal less the older one, pairs of blocks")


def pair(stage: Stage, stack: ExitStack, where: Environment) -> Lane:
    """A host and a client of one Teal."""
    config = {"subject": "teal", "worker_core": stage.cores.host}
    host = stack.enter_context(where.lane("teal.bench.host", config))
    host.ask("load", name=client.IDENTITY, source="builtin:identity")
    more = {"address": str(host.ask("address")), "core": stage.cores.agent, "server_core": stage.cores.host}
    lane = stack.enter_context(where.lane("teal.bench.client", {"subject": "teal"} | more))
    lane.ask("core", n=work.SMALL)
    return lane
