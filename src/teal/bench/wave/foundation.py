"""What a pool without an agent pays for there being agents: identity calls of this Teal and of an older one, in pairs.

The older Teal lives in an environment of its own (`--foundation`; `make bench-foundation` builds the last commit before
agents into .venv-foundation). Both sides are a host with one worker on its core and the core's own client on the other
one (`teal bench call`, "core to core"), block by block in turn. A call takes some 20 ticks of the clock, so a block is
the mean of its middle half and not its median, which would come in tens of nanoseconds.
"""

from __future__ import annotations

import sys
from contextlib import ExitStack
from pathlib import Path

from teal.bench import client
from teal.bench.lanes import Environment, Lane, LaneError, Times, decode
from teal.bench.report import Promise
from teal.bench.rivals import work

from .stage import Stage, middle

BAR = "wave.noagent.cost_ns"
PROMISES = {BAR: Promise(20, "lower", "ns")}
NAME = ".venv-foundation"
MISSING = (
    f"no older Teal here to compare with: `make bench-foundation` builds it into {NAME} (some minutes), or give"
    " --foundation FOLDER"
)
LEAST_BLOCKS = 12
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
        stage.say(MISSING)
        stage.report.absent("older Teal", GROUP, MISSING)
        stage.report.judge(BAR, None, note=MISSING)
        return
    older = environment(found)
    with ExitStack() as stack:
        lanes = {name: pair(stage, stack, where) for name, where in (("this", stage.environment), ("older", older))}
        times = {name: Times() for name in lanes}
        count = max(LEAST_BLOCKS, stage.plan.blocks)
        for number in range(count):
            stage.say(f"identity beside an older Teal, block {number + 1} of {count}")
            for name in lanes if number % 2 == 0 else reversed(lanes):
                answer = lanes[name].ask("core", n=stage.plan.tries // 4)
                times[name].blocks.append(decode(answer["call"]))
    for name in times:
        stage.report.add_times(f"{name} Teal", GROUP, times[name], "builtin identity, client in C++")
    blocks = [[middle(block).value for block in times[name].blocks] for name in ("this", "older")]
    cost = middle([this - older for this, older in zip(*blocks, strict=True)])
    note = f"this Teal less the older one, {count} pairs of blocks"
    stage.report.judge(BAR, cost.value, se=cost.se, note=note)


def pair(stage: Stage, stack: ExitStack, where: Environment) -> Lane:
    """A host and a client of one Teal."""
    config = {"subject": "teal", "worker_core": stage.cores.host}
    host = stack.enter_context(where.lane("teal.bench.host", config))
    host.ask("load", name=client.IDENTITY, source="builtin:identity")
    more = {"address": str(host.ask("address")), "core": stage.cores.agent, "server_core": stage.cores.host}
    lane = stack.enter_context(where.lane("teal.bench.client", {"subject": "teal"} | more))
    lane.ask("core", n=work.SMALL)
    return lane
