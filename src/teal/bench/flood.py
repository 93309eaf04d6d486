"""A client that uses all of its quota at once: ``python -m teal.bench.flood ADDRESS MODEL REQUESTS CORE``.

It submits its requests behind an event, so that they wait on the host's side and need no core of ours, says "filled",
and lets them go when it reads a line. Then it sleeps, without spinning on the core that the victim needs, for most of
what the round before took and a millisecond at a time after that, and says "drained" when all have ended, again and
again.
"""

from __future__ import annotations

import os
import sys
import time

import numpy as np

import teal

_NAP_S = 0.001


def main(argv: list[str]) -> int:
    address, name, requests, core = argv[1], argv[2], int(argv[3]), int(argv[4])
    os.sched_setaffinity(0, {core})
    with teal.connect(address, idle=0) as host:
        model = host.model(name)
        x = np.zeros((1, 64), np.float32)
        usual = _NAP_S
        while sys.stdin.readline():
            event = host.event()
            futures = [model.submit(x, after=event) for _ in range(requests)]
            print("filled", flush=True)
            if not sys.stdin.readline():
                break
            began = time.monotonic()
            event.signal()
            time.sleep(usual)  # and no wake-up by each of them, on the core that the victim needs
            for future in reversed(futures):
                while not future.done():
                    time.sleep(_NAP_S)
            usual = max(_NAP_S, (time.monotonic() - began) * 0.8)
            for future in futures:
                future.result()
            futures.clear()  # their slots are the next round's
            print("drained", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
