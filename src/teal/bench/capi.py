"""A C program as a client: what a call through liblaika costs (bar ``laika.c.identity.p50_us``).

Theory of operation: a host of our own with one worker on one core, and ``laika-bench`` (core/capi/bench/identity.c,
built and installed with the library) on another; it times each call itself and prints JSON. The echo of one line
between the two cores, measured before and after, is the floor that a call stands on: it differs by a factor of four
with where a virtual machine's cores lie, so a row without it says little. The program takes its ways in turns with us
("begin", "end", and a line back each time), so that what each of them costs can be read.
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
from teal.bench.energy import Effort, Meter
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
    cpu_s_per_1000: float  # of the program and the host, untimed calls included
    j_per_1000: float | None  # of the machine's packages, where they can be read


def rows(calls: int = 100_000, nbytes: int = 64, cores: tuple[int, int] | None = None) -> list[Row]:
    """The identity call from C: in place, moved by the worker to other shared memory, and copied (counted).

    cores: of the client and of the worker; the first two usable ones. Raises NotFound without liblaika, InternalError
    when the program fails.
    """
    program = config.root() / "bin" / "laika-bench"
    usable = sorted(os.sched_getaffinity(0))
    client, worker = cores or (usable[0], usable[1 % len(usable)])
    floor = _floor(client, worker)
    found, efforts = _run(program, calls, nbytes, client, worker)
    floor = min(floor, _floor(client, worker))
    return [
        _row("laika.c.identity", found, "in_place", found["copies_shared"], floor, efforts[0]),
        _row("laika.c.identity.moved", found, "moved", found["copies_shared"], floor, efforts[1]),
        _row(
            "laika.c.identity.copied",
            found,
            "copied",
            found["copies_copied"] - found["copies_shared"],
            floor,
            efforts[2],
        ),
    ]


def _floor(client: int, worker: int) -> float:
    if client == worker:
        return 0.0
    echoes = sorted(_core.measure_echo(64, 20_000, client, worker))
    return echoes[len(echoes) // 2] / 1e3


def _run(program: Path, calls: int, nbytes: int, client: int, worker: int) -> tuple[dict[str, Any], list[Effort]]:
    name = f"bench-capi-{os.getpid()}"
    serve = [sys.executable, "-c", "from teal.cli import main; main()", "serve", "--name", name]
    serve += ["--cores", str(worker), "--idle", "10ms"]
    with subprocess.Popen(serve, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as host:
        try:
            assert host.stdout is not None
            line = host.stdout.readline()
            if "ready" not in line:
                raise InternalError(f"the host of the bench did not start: {line.strip()}")
            return _turns([str(program), name, str(nbytes), str(calls), str(client), "turns"], host.pid)
        finally:
            host.terminate()


def _turns(command: list[str], host: int) -> tuple[dict[str, Any], list[Effort]]:
    """What the program found, and what each of its ways cost."""
    pipe = subprocess.PIPE
    efforts: list[Effort] = []
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        meter, line = Meter(), ""
        for line in process.stdout:
            if line == "begin\n":
                meter.start([process.pid, host])
            elif line == "end\n":
                efforts.append(meter.stop())
            else:
                break
            process.stdin.write("\n")
            process.stdin.flush()
        if process.wait() != 0 or len(efforts) != 3:
            raise InternalError(f"laika-bench: {process.stderr.read().strip()}")
        found: dict[str, Any] = json.loads(line)
        return found, efforts


def _row(bar: str, found: dict[str, Any], part: str, copies: int, floor: float, effort: Effort) -> Row:
    times = found[part]
    calls = found["calls"] + found["warm"]
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
        effort.cpu / calls * 1000,
        None if effort.joules is None else effort.joules / calls * 1000,
    )


if __name__ == "__main__":
    print(json.dumps([{field: getattr(row, field) for field in Row.__slots__} for row in rows()], indent=1))
