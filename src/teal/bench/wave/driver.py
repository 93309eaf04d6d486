"""A lane: a host with one worker on its core; on the other core the load, and the agent's loop if any.

One thread does a step of the load, a step of the agent, and so on, both in C++ without the GIL. With two cores this is
how an off-loaded agent has a core that is not the worker's and the load a place to come from; an in-line mode has the
same load on the same core, and no agent there. The host's own threads (it sweeps once a millisecond) are on that core
too, in every mode. Modes that differ in the agent alone have the same host, so that what lies where is no difference.
"""

from __future__ import annotations

import base64
import os
from pathlib import Path
from typing import Any

import teal
from teal import _core
from teal.bench.rivals import lane

from . import loads, rocks, seating
from .mode import Mode

PATIENCE_NS = 20_000_000_000
SLOTS = 256  # of each kind: as many may be out at once


class Driver:
    """A host and its only client. inline: the policy in its worker, "" for none."""

    def __init__(self, inline: str, worker_core: int, own_core: int) -> None:
        self._host = seating.host(inline, worker_core)
        for thread in os.listdir("/proc/self/task"):
            os.sched_setaffinity(int(thread), {own_core})
        self._loaded: set[str] = set()
        self._kept: list[Any] = []  # what the slots belong to
        self._kinds: dict[str, list[tuple[list[_core.Slot], bool]]] = {}

    def close(self) -> None:
        self._host.close()

    def prepare(self, load: loads.Load) -> None:
        """Loads its models and makes its slots, once."""
        if load.name in self._kinds:
            return
        for name, source in load.sources.items():
            if name not in self._loaded:
                self._host.load(name, source)
                self._loaded.add(name)
        self._kinds[load.name] = [(self._slots(kind), kind.draw != "none") for kind in load.kinds]

    def _slots(self, kind: loads.Kind) -> list[_core.Slot]:
        model = self._host.model(kind.model)
        first, slots = model.inputs[0], []
        for _ in range(SLOTS):
            given = {first.name: ("int64", ())}
            inputs = model.new_inputs(batch=1) if kind.draw == "none" else model.new_inputs(**given)
            inputs[first.name].numpy()[...] = 0
            slot = _core.slot_of(inputs[first.name])
            assert slot is not None
            self._kept.append(inputs)
            slots.append(slot)
        return slots

    def _delays(self) -> tuple[int, int]:
        """How long the worker, and this thread, have stood ready without their core; ns."""
        worker = self._host.statistics().workers[0].pid
        tasks = [path.read_text().split() for path in Path(f"/proc/{worker}/task").glob("*/schedstat")]
        busiest = max(tasks, key=lambda task: int(task[0]), default=["0", "0"])
        try:
            own = Path("/proc/thread-self/schedstat").read_text().split()
        except OSError:
            own = ["0", "0"]  # a kernel without scheduler statistics
        return int(busiest[1]), int(own[1])

    @property
    def host(self) -> teal.Host:
        return self._host

    def send(
        self, mode: Mode, load: loads.Load, arrivals: loads.Arrivals, most_out: int, nap_ns: int = 0
    ) -> dict[str, Any]:
        """Sends it all and waits for the end; sleeps for nap_ns between its looks. `seat`: what was counted there."""
        self.prepare(load)
        seen: dict[str, Any] = {}
        with seating.seated(self._host, mode, seen) as agent:
            found: dict[str, Any] = _core.open_loop(
                self._kinds[load.name],
                arrivals.at_ns,
                arrivals.kind,
                arrivals.value,
                min(most_out, SLOTS),
                PATIENCE_NS,
                nap_ns,
                agent,
            )
        return found | {"seat": seen}

    def run(
        self, mode: dict[str, Any], load: dict[str, Any], n: int, seed: int, rate: float | None, most_out: int,
        warm: int,
    ) -> dict[str, Any]:  # fmt: skip
        """Draws and sends n requests, after `warm` that do not count. mode: its fields; load: by loads.packed()."""
        chosen, how = loads.unpacked(load), Mode(**mode)
        if warm > 0:
            self.send(how, chosen, loads.draw(chosen, warm, seed + 1, rate), most_out)
        before = self._delays()
        found = self.send(how, chosen, loads.draw(chosen, n, seed, rate), most_out)
        worker, own = (after - earlier for after, earlier in zip(self._delays(), before, strict=True))
        found |= {"worker_delay_ns": worker, "load_delay_ns": own}
        for name in ("latency_ns", "ended_ns"):
            found[name] = base64.b64encode(found[name]).decode()
        return found


def client(config: dict[str, Any]) -> lane.Contender:
    """config: inline (policy in the worker), worker_core, own_core, rocks (folder of the data)."""
    os.environ[rocks.FOLDER] = config["rocks"]
    driver = Driver(config["inline"], config["worker_core"], config["own_core"])
    return lane.Contender(questions={"run": driver.run}, close=driver.close)


if __name__ == "__main__":
    lane.main(client)
