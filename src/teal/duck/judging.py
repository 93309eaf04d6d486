"""A judged run on the duck's side: what the program reads and writes, and the record of how it ran."""

from __future__ import annotations

import os
from typing import Any

from teal import _core
from teal.duck import messages
from teal.duck.blob import Blob
from teal.duck.yards import AnyYard
from teal.errors import InvalidArgument

ABIS = ("linux", "duckinfo")
MOST_OUTPUT = 32 << 20  # of stdout and stderr each, that travel with the record


def judged(yard: AnyYard, program: _core.DuckProgram, order: messages.Judge, given: Blob | None) -> dict[str, Any]:
    """The record, with what was written. Raises InvalidArgument; what the program does is in the record."""
    if order.abi not in ABIS:
        raise InvalidArgument(f"{order.abi[:40]!r}, expected one of {ABIS}", path="$.abi")
    if not 0 < order.output <= MOST_OUTPUT:
        raise InvalidArgument(f"{order.output}, expected 1 to {MOST_OUTPUT}", path="$.output")
    out, err = (os.memfd_create(f"teal:{name}", os.MFD_CLOEXEC) for name in ("stdout", "stderr"))
    stdin = -1
    try:
        if given is not None:
            stdin = os.open(f"/proc/self/fd/{given.fd}", os.O_RDONLY | os.O_CLOEXEC)
        record = (_duckinfo if order.abi == "duckinfo" else _linux)(yard, program, order, given, (stdin, out, err))
        record["stdout"] = os.pread(out, min(record["stdout-size"], order.output), 0)
        record["stderr"] = os.pread(err, min(record["stderr-size"], order.output), 0)
        return record
    finally:
        for fd in (out, err, stdin):
            if fd >= 0:
                os.close(fd)


def _linux(
    yard: AnyYard, program: _core.DuckProgram, order: messages.Judge, _: Blob | None, fds: tuple[int, int, int]
) -> dict[str, Any]:
    stdin, out, err = fds
    return yard.judge(program, {
        "abi": order.abi, "time_ns": order.time_ns, "memory_bytes": order.memory, "output_bytes": order.output,
        "stdin": stdin, "stdout": out, "stderr": err,
    })  # fmt: skip


def _duckinfo(
    yard: AnyYard, program: _core.DuckProgram, order: messages.Judge, given: Blob | None,
    fds: tuple[int, int, int],
) -> dict[str, Any]:  # fmt: skip
    stdin, out, err = fds
    return yard.judge_duckinfo(program, {
        "time_limit_ns": order.time_ns, "memory_bytes": order.memory,
        "in": stdin, "in_bytes": 0 if given is None else given.nbytes,
        "out": out, "out_limit": order.output, "err": err, "err_limit": order.output,
    })  # fmt: skip
