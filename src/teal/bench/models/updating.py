"""Hot update under load: requests that failed, and answers that no single version could have given.

Theory of operation. Two models y = x + c (c = 1 and 2) over 4096 numbers take each other's place under one name, while
a client calls without pause, several calls in flight. An answer is mixed if its numbers differ among themselves, wrong
if they belong to neither version. The models are written here in ONNX's own bytes, so that no other package is needed.
"""

from __future__ import annotations

import struct
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from teal.bench.lanes import LaneError

if TYPE_CHECKING:
    from .stage import Stage

BARS = ("models.update.failed", "models.update.mixed")
WIDTH, IN_FLIGHT = 4096, 8


def varint(number: int) -> bytes:
    out = b""
    while number > 127:
        out, number = out + bytes([number & 127 | 128]), number >> 7
    return out + bytes([number])


def field(number: int, value: bytes | int) -> bytes:
    """One field of a protocol buffer: a number, or bytes with their length."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def adder(constant: float) -> bytes:
    """An ONNX model y = x + constant, x float32 of shape (WIDTH,)."""
    shape = field(2, field(1, field(1, WIDTH)))
    x, y = (field(1, name) + field(2, field(1, field(1, 1) + shape)) for name in (b"x", b"y"))
    node = field(1, b"x") + field(1, b"c") + field(2, b"y") + field(4, b"Add")
    weight = field(1, 1) + field(2, 1) + field(9, struct.pack("<f", constant)) + field(8, b"c")
    graph = field(1, node) + field(2, b"adder") + field(5, weight) + field(11, x) + field(12, y)
    return field(1, 8) + field(8, field(1, b"") + field(2, 17)) + field(7, graph)


def flooded(host: Any, name: str, seconds: float, replace: Any) -> dict[str, int]:
    """Calls for that long, several in flight; `replace` is asked each time to see to it that updates go on. Counts."""
    model = host.model(name)
    x = np.zeros(WIDTH, np.float32)
    counts = {"answers": 0, "failed": 0, "mixed": 0}
    waiting: list[Any] = []
    until = time.monotonic() + seconds
    while time.monotonic() < until or waiting:
        if time.monotonic() < until:
            while len(waiting) < IN_FLIGHT:
                waiting.append(model.submit(x))
            replace()
        try:
            y = waiting.pop(0).result()[0].numpy()
        except Exception:  # a request that is lost is what is counted, whatever its class
            counts["failed"] += 1
            continue
        counts["answers"] += 1
        counts["mixed"] += not (y == y[0]).all() or y[0] not in (1.0, 2.0)
    return counts


def measure(stage: Stage) -> None:
    """Raises LaneError where the host cannot load the models."""
    from teal.bench.lanes import Lane

    paths = []
    for number in (1, 2):
        paths.append(Path(stage.folder) / f"adder{number}.onnx")
        paths[-1].write_bytes(adder(float(number)))
    stage.host.ask("load", name="updated", source=str(paths[0]), kernel="onnx", threads=1)
    config = {"subject": stage.subject, "address": stage.address, "paths": [str(path) for path in paths]}
    client: Lane
    with stage.own.lane("teal.bench.models.updater", config) as client:
        counts = client.ask("flood", seconds=stage.plan.update_seconds)
    stage.host.ask("unload_all")
    if counts["updates"] == 0:
        raise LaneError("no update happened while requests were in flight")
    note = f"{counts['answers']} answers, {counts['updates']} updates under {IN_FLIGHT} requests in flight"
    stage.report.judge(BARS[0], counts["failed"], note=note)
    stage.report.judge(BARS[1], counts["mixed"], note=note)
