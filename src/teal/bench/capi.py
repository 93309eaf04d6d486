"""A C program as a client: what a call through liblaika costs (bar ``laika.c.identity.p50_us``).

Theory of operation: a host of our own with one worker on one core, and ``laika-bench`` (core/capi/bench/identity.c,
built and installed with the library) on another; it times each call itself and prints JSON. The echo of one line
between the two cores, measured before and after, is the floor that a call stands on: it differs by a factor of four
with where a virtual machine's cores lie, so a row without it says little.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from teal import _core
from teal.cli import config
from teal.errors import InternalError

BAR_US = 0.8


@dataclass(frozen=True, slots=True)
class Row:
    """One measured way to call: microseconds. floor_us: an echo of one 64-byte line between the same cores."""

    bar: str
    bytes: int
    calls: int
    p50_us: float
    p99_us: float
    p999_us: float
    floor_us: float
    clock_us: float  # reading the clock twice, which is in the numbers
    copies: int  # over all calls of this row


def rows(calls: int = 100_000, nbytes: int = 64, cores: tuple[int, int] | None = None) -> list[Row]:
    """The identity call from C: in place, moved by the worker to other shared memory, and copied (counted).

    cores: of the client and of the worker; the first two usable ones. Raises NotFound without liblaika, InternalError
    when the program fails.
    """
    program = config.root() / "bin" / "laika-bench"
    usable = sorted(os.sched_getaffinity(0))
    client, worker = cores or (usable[0], usable[1 % len(usable)])
    floor = _floor(client, worker)
    found = _run(program, calls, nbytes, client, worker)
    floor = min(floor, _floor(client, worker))
    return [
        _row("laika.c.identity", found, "in_place", found["copies_shared"], floor),
        _row("laika.c.identity.moved", found, "moved", found["copies_shared"], floor),
        _row("laika.c.identity.copied", found, "copied", found["copies_copied"] - found["copies_shared"], floor),
    ]


def _floor(client: int, worker: int) -> float:
    if client == worker:
        return 0.0
    echoes = sorted(_core.measure_echo(64, 20_000, client, worker))
    return echoes[len(echoes) // 2] / 1e3


def _run(program: Path, calls: int, nbytes: int, client: int, worker: int) -> dict[str, Any]:
    name = f"bench-capi-{os.getpid()}"
    serve = [sys.executable, "-c", "from teal.cli import main; main()", "serve", "--name", name]
    serve += ["--cores", str(worker), "--idle", "10ms"]
    with subprocess.Popen(serve, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as host:
        try:
            assert host.stdout is not None
            line = host.stdout.readline()
            if "ready" not in line:
                raise InternalError(f"the host of the bench did not start: {line.strip()}")
            command = [str(program), name, str(nbytes), str(calls), str(client)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                raise InternalError(f"laika-bench: {done.stderr.strip()}")
            found: dict[str, Any] = json.loads(done.stdout)
            return found
        finally:
            host.terminate()


def _row(bar: str, found: dict[str, Any], part: str, copies: int, floor: float) -> Row:
    times = found[part]
    return Row(
        bar,
        found["bytes"],
        found["calls"],
        times["p50_ns"] / 1e3,
        times["p99_ns"] / 1e3,
        times["p999_ns"] / 1e3,
        floor,
        found["clock"]["p50_ns"] / 1e3,
        copies,
    )


if __name__ == "__main__":
    print(json.dumps([{field: getattr(row, field) for field in Row.__slots__} for row in rows()], indent=1))
