"""The lane of `starts`: hosts that are started, and workers that are killed; ns to the first answer."""

from __future__ import annotations

import contextlib
import os
import signal
import tempfile
import time
from array import array
from importlib import import_module
from typing import Any

from teal.bench.rivals import lane, zoo

PATIENCE = 120.0  # seconds for a worker to come back


def client(config: dict[str, Any]) -> lane.Contender:
    """config: subject, model, source, settings (of the load)."""
    teal = import_module(config["subject"])
    arrays = zoo.ZOO[config["model"]].inputs(1, 0)

    def loaded(host: Any) -> Any:
        return host.load("m", config["source"], tuned=False, **config["settings"])

    def cold(cache: str | bool) -> int:
        start = time.perf_counter_ns()
        with teal.Host(cache=cache) as host:
            loaded(host)(**arrays)
            return time.perf_counter_ns() - start

    def again() -> int:
        """The second start of a host with a cache on disk."""
        with tempfile.TemporaryDirectory(prefix="teal-bench-") as folder:
            cold(folder)
            return cold(folder)

    def warm(spares: int) -> int:
        with teal.Host(spares=spares, cache=False) as host:
            model = loaded(host)
            model(**arrays)
            settled(host, spares)
            (worker,) = host.statistics().workers
            start = time.perf_counter_ns()
            os.kill(worker.pid, signal.SIGKILL)
            while True:
                with contextlib.suppress(teal.PeerDied):  # what ran in it; the next one waits for its successor
                    model(**arrays, deadline=PATIENCE)
                    return time.perf_counter_ns() - start

    def settled(host: Any, spares: int) -> None:
        """Waits until the spare worker is ready."""
        until = time.monotonic() + PATIENCE
        while spares and time.monotonic() < until:
            if getattr(host.statistics().pools[0], "spares", spares) >= spares:
                return
            time.sleep(0.05)

    def starts(kind: str, rounds: int) -> str:
        if kind == "again":
            taken = [again() for _ in range(rounds)]
        else:
            taken = [cold(False) if kind == "cold" else warm(int(kind == "spare")) for _ in range(rounds)]
        return lane.encode(array("q", taken))

    return lane.Contender(questions={"starts": starts})


if __name__ == "__main__":
    lane.main(client)
