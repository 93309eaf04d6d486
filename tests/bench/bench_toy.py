"""A contender of a few lines, with a server and, where asked for, a server that has children, to test lanes with."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from functools import partial
from typing import Any, TextIO

from teal.bench.rivals import lane

ORDER: list[str] = []


def serve(config: dict[str, Any], protocol: TextIO) -> None:
    """Says that it is ready and waits for ever, alone or with a child that knows nothing of parents."""
    if config.get("family"):
        subprocess.Popen([sys.executable, "-c", "import time\nwhile True: time.sleep(1)"])
    lane.ready(protocol)
    while True:
        time.sleep(1)


def nothing() -> None:
    """The call that costs least."""


def boom() -> None:
    raise ValueError("boom")


def client(config: dict[str, Any]) -> lane.Contender:
    if config.get("fails"):
        print("words on stdout that are not the protocol")
        raise RuntimeError("no licence today")
    server = None
    if config.get("server"):
        server = lane.Server("bench_toy", {"family": config.get("family")})
        server.pause()

    def variant(name: str) -> lane.Variant:
        ORDER.append(f"build {name}")
        before, after = partial(ORDER.append, name), partial(ORDER.append, "after")
        return lane.Variant(nothing, name.encode, before=before, after=after)

    return lane.Contender(
        variants={
            "a": lambda: variant("a"),
            "b": lambda: variant("b"),
            "inner": lambda: lane.Variant(nothing, inner=lambda: 7),
            "boom": lambda: lane.Variant(boom),
        },
        questions={
            "order": lambda: ORDER,
            "server": lambda: None if server is None else server.pid,
            "exit": os._exit,
            "pid": os.getpid,
        },
        note="a toy",
        versions={"toy": "1"},
        litter=[config["litter"]] if "litter" in config else [],
        close=(lambda: None) if server is None else server.close,
    )


if __name__ == "__main__":
    lane.main(client, serve, family='"family": true' in sys.argv[2])
