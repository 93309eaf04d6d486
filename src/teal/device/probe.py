"""The live probe: do a running kernel and the host see each other's stores?"""

from __future__ import annotations

import time

import numpy as np

from teal.device.protocol import Imported, Place, Program, Task
from teal.device.resident import Resident
from teal.errors import KernelFailed

BYTES = 64


def is_live(program: Program, imported: Imported, line_bytes: int) -> str:
    """Runs the identity task resident over a fresh region of at least two pages. Returns "" when it works, else why
    not."""
    region = imported.region
    line = Place(imported, 4096, line_bytes)
    weights, given, made, unused = (Place(imported, 4096 + at, BYTES) for at in (256, 512, 768, 1024))
    task = Task(weights, given, made, unused, BYTES)
    source, copy = (region.array(4096 + at, (BYTES,), np.uint8) for at in (512, 768))
    request, reply = (region.array(4096 + at, (1,), np.uint32) for at in (0, 64))
    try:
        with Resident(program, idle=0.2, answer_within=2.0) as resident:
            resident.add(line, task)
            resident.wake()
            for generation in (1, 2, 3):
                source[:] = generation
                request[0] = generation
                until = time.monotonic() + 1.0
                while reply[0] != generation and time.monotonic() < until:
                    time.sleep(0)
                if reply[0] != generation:
                    return "a running kernel does not see what the host stores"
                if (copy != generation).any():
                    return "the host does not see what a running kernel stores"
    except KernelFailed as error:
        return f"the live probe failed: {error}"
    return ""
