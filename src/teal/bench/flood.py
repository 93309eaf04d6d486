"""A client that uses all of its quota at once: ``python -m teal.bench.flood ADDRESS MODEL REQUESTS CORE``.

It submits its requests behind an event, so that they wait on the host's side and need no core of ours, and says
"filled". At the next line that it reads it lets them go and says so; at the one after that it says how many still wait,
and "drained" when none does. It sleeps meanwhile, for the victim needs the core.
"""

from __future__ import annotations

import os
import sys

import numpy as np

import teal


def main(argv: list[str]) -> int:
    address, name, requests, core = argv[1], argv[2], int(argv[3]), int(argv[4])
    os.sched_setaffinity(0, {core})
    with teal.connect(address, idle=0) as host:
        model = host.model(name)
        x = np.zeros((1, 64), np.float32)
        while sys.stdin.readline():
            event = host.event()
            futures = [model.submit(x, after=event) for _ in range(requests)]
            print("filled", flush=True)
            if not sys.stdin.readline():
                break
            event.signal()
            print("let go", flush=True)
            if not sys.stdin.readline():
                break
            print(sum(not future.done() for future in futures), flush=True)
            for future in futures:
                future.result()
            futures.clear()  # their slots are the next round's
            print("drained", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
