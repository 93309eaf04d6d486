"""The client of `updating`, as a lane: one connection floods a model, another replaces it meanwhile."""

from __future__ import annotations

import itertools
import threading
from importlib import import_module
from typing import Any

from teal.bench.rivals import lane

from . import updating


class Replacer:
    """Loads the next version in a thread of its own, one at a time: the flood goes on meanwhile."""

    def __init__(self, host: Any, paths: list[str]) -> None:
        self._host, self._paths = host, itertools.cycle(paths[::-1])
        self._thread: threading.Thread | None = None
        self.errors: list[str] = []
        self.updates = 0

    def __call__(self) -> None:
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._replace, daemon=True)
            self._thread.start()

    def _replace(self) -> None:
        try:
            self._host.load("updated", next(self._paths), kernel="onnx", threads=1)
            self.updates += 1
        except Exception as error:  # reported with the counts
            self.errors.append(f"{type(error).__name__}: {error}")

    def join(self) -> None:
        if self._thread is not None:
            self._thread.join()


def client(config: dict[str, Any]) -> lane.Contender:
    """config: subject, address, paths."""
    teal = import_module(config["subject"])
    host, other = teal.connect(config["address"]), teal.connect(config["address"])
    replacer = Replacer(other, config["paths"])

    def flood(seconds: float) -> dict[str, int]:
        counts = updating.flooded(host, "updated", seconds, replacer)
        replacer.join()
        counts["updates"] = replacer.updates
        counts["failed"] += len(replacer.errors)
        return counts

    return lane.Contender(questions={"flood": flood})


if __name__ == "__main__":
    lane.main(client)
