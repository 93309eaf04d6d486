"""Teal's host as a lane: a process that owns the host and its worker and changes its models when told to.

The host is a process of its own, as `teal serve` would be, so that clients in other processes call it and its memory
and CPU time can be read apart from the bench's.
"""

from __future__ import annotations

import time
from importlib import import_module
from typing import Any

from .rivals import lane


class Residence:
    """One host and the questions about it; subject: the module that is Teal."""

    def __init__(self, subject: str, core: int) -> None:
        self._host = import_module(subject).Host(workers=1, cores=[core])

    def address(self) -> str:
        return str(self._host.address)

    def load(self, name: str, source: str) -> None:
        """Loads a model, one thread."""
        self._host.load(name, source, threads=1)

    def unload(self, name: str) -> None:
        self._host.unload(name)

    def reload(self, name: str, source: str, first: int, count: int) -> list[int]:
        """Replaces a model `count` times by its next version and gives up the version before; versions from `first`.

        Returns how long each took; ns.
        """
        taken = []
        for version in range(first, first + count):
            start = time.perf_counter_ns()
            self._host.load(name, source, version=version, threads=1)
            if version > 1:
                self._host.unload(name, version=version - 1)
            taken.append(time.perf_counter_ns() - start)
        return taken

    def pids(self) -> list[int]:
        """The processes that keep models resident: the host and its workers."""
        statistics = self._host.statistics()
        return sorted({int(statistics.pid), *(int(worker.pid) for worker in statistics.workers)})

    def close(self) -> None:
        self._host.close()


def client(config: dict[str, Any]) -> lane.Contender:
    """config: subject; worker_core, the core of the worker (the host itself is not bound)."""
    residence = Residence(config["subject"], config["worker_core"])
    return lane.Contender(
        questions={
            "address": residence.address,
            "load": residence.load,
            "unload": residence.unload,
            "reload": residence.reload,
            "pids": residence.pids,
        },
        note="one worker, default idle",
        close=residence.close,
    )


if __name__ == "__main__":
    lane.main(client)
