"""A host in a process of its own, to be killed: host.py NAME."""

from __future__ import annotations

import sys
import time

import teal

if __name__ == "__main__":
    with teal.Host(sys.argv[1]) as host:
        host.load("sum", "builtin:sum")
        host.load("sleep", "builtin:sleep")
        print(host.address, flush=True)
        time.sleep(3600)
