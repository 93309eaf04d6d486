"""Teal's host as a lane of `teal bench models`: a process of its own, as `teal serve` is.

Its worker may use all cores; the pool "bound" has one that is bound to a core, for models that run in one thread.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from teal.bench.rivals import lane


class Residence:
    """One host."""

    def __init__(self, config: dict[str, Any]) -> None:
        bound = {"workers": 1, "cores": [config["worker_core"]]}
        self._host = import_module(config["subject"]).Host(workers=1, pools={"bound": bound})

    def address(self) -> str:
        return str(self._host.address)

    def load(self, name: str, source: str, **settings: Any) -> dict[str, Any]:
        """Loads a model; returns its engine, what was said about it, and the seconds that it took."""
        model = self._host.load(name, source, **settings)
        info = model.info
        said = {"kernel": info.kernel, "precision": getattr(info, "precision", None), "seconds": info.seconds}
        return said | {"note": getattr(info, "note", "") or model.statistics().note}

    def unload(self, name: str) -> None:
        self._host.unload(name)

    def unload_all(self) -> None:
        for name in {info.name for info in self._host.models()}:
            self._host.unload(name)

    def close(self) -> None:
        self._host.close()


def client(config: dict[str, Any]) -> lane.Contender:
    """config: subject (the module that is Teal), worker_core."""
    residence = Residence(config)
    return lane.Contender(
        questions={
            "address": residence.address,
            "load": residence.load,
            "unload": residence.unload,
            "unload_all": residence.unload_all,
        },
        note="one worker, default idle",
        close=residence.close,
    )


if __name__ == "__main__":
    lane.main(client)
