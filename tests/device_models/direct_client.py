"""A client in a process of its own: calls a device model and checks every answer.

``python direct_client.py ADDRESS NAME LOAD FILE MODE``; it says "ready" when it calls, and ends when its stdin does:
status 0, or 1 and what was wrong. MODE: "honest"; "hostile", which scribbles over its own lines while it calls.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from typing import Any

import numpy as np

import teal
from teal.errors import TealError
from teal.kernel.systems import file, reference

SESSION_HEADER, RING_HEADER, RING_SLOT, LINE = 192, 192, 64, 64


def device_lines() -> tuple[int, int]:
    """Address and number of this process's device lines: what a hostile client can find out (core/host/session.hpp)."""
    with open("/proc/self/maps", encoding="ascii", errors="replace") as maps:
        for row in maps:
            address, rights, *_ = row.split()
            start, end = (int(part, 16) for part in address.split("-"))
            if "memfd:teal" not in row or "w" not in rights or end - start < 3 * 4096:
                continue
            words = (ctypes.c_uint32 * 8).from_address(start + 4096)
            if words[0] == 0x53534554:
                slots, capacity = words[2], words[3]
                return start + 4096 + SESSION_HEADER + RING_HEADER + capacity * RING_SLOT + slots * 2 * LINE, slots
    raise SystemExit("no session found")


def scribble(stop: threading.Event) -> None:
    start, slots = device_lines()
    words = np.ctypeslib.as_array((ctypes.c_uint32 * (slots * 32)).from_address(start)).reshape(slots, 32)
    rng = np.random.default_rng(os.getpid())
    while not stop.is_set():
        words[:8] = rng.integers(0, 1 << 32, (8, 32), dtype=np.uint64).astype(np.uint32)
        words[:8, 18] = 1  # "resident"
        words[:8, 0] += 1


def main(address: str, name: str, load: str, path: str, mode: str) -> None:
    host = teal.connect(address)
    model: Any = host.model(name)
    weights = file.view(path).tensors
    inputs = model.new_inputs(batch=3)
    array = np.asarray(inputs["x"])
    call = model.prepare(**inputs, deadline=20.0)
    rng = np.random.default_rng(os.getpid())
    stop = threading.Event()
    if mode == "hostile":
        call()
        threading.Thread(target=scribble, args=(stop,), daemon=True).start()
    threading.Thread(target=lambda: (sys.stdin.read(), stop.set()), daemon=True).start()
    print("ready", flush=True)
    while not stop.is_set():
        array[:] = x = rng.normal(size=array.shape)
        try:
            outputs = call()
        except TealError:
            if mode == "hostile":
                continue
            raise
        if mode == "honest":
            scores, _ = reference.REFERENCES[load](weights, x.astype(array.dtype))
            np.testing.assert_allclose(np.asarray(outputs["scores"]), scores, rtol=1e-4, atol=1e-4)
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
