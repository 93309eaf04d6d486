"""Will this read be slow? A decision for every read of this process, asked for inside the kernel.

    python examples/bpf/slow_io.py [--reads N] [--folder DIR] [--idle 50ms]

1. A BPF program at block_rq_issue and block_rq_complete writes down what reads of a scratch file do (DIR must lie on a
   disk; nothing is pinned, nothing stays behind).
2. LinnOS's network learns from that trace which of them are slow.
3. The program asks the resident network at every further read, in the pages that the worker computes on, and counts how
   often the verdict was there in time, and how often it was right.

Needs root (CAP_BPF, CAP_PERFMON), and clang and libbpf: apt-get install clang libbpf-dev.
"""

import argparse
import mmap
import os
import struct
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

import teal
import teal.bpf

sys.path.insert(0, str(Path(__file__).parents[1] / "systems"))

import mlp
import train_linnos

PROGRAM = Path(__file__).with_name("slow_io.bpf.c")
SIZE = 64 << 20
BLOCK = 4096
ROW = np.dtype([("digits", np.uint8, 31), ("ended", np.uint8), ("us", np.uint32), ("verdict_ns", np.uint32)])


def scratch_file(folder):
    path = Path(folder) / "scratch"
    with path.open("wb") as file:
        for _ in range(SIZE >> 20):
            file.write(os.urandom(1 << 20))
        os.fsync(file.fileno())
    return path


def reader(path, size, done, seed):
    """Reads around the page cache until ``done()``: small ones, or large ones in bursts, that they wait for."""
    generator = np.random.default_rng(seed)
    buffer = mmap.mmap(-1, size)
    fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
    try:
        while not done():
            os.preadv(fd, [buffer], int(generator.integers(0, (SIZE - size) // BLOCK)) * BLOCK)
            if size > BLOCK and time.monotonic() % 0.02 > 0.01:
                time.sleep(0.01)
    finally:
        os.close(fd)


def read_all(path, reads, seed):
    """That many small reads, two at a time, beside two readers of 1 MiB that come and go."""
    left = iter(range(reads))
    ended = threading.Event()
    small = [
        threading.Thread(target=reader, args=(path, BLOCK, lambda: next(left, None) is None, seed + i))
        for i in range(2)
    ]
    large = [threading.Thread(target=reader, args=(path, 1 << 20, ended.is_set, seed + 8 + i)) for i in range(2)]
    for thread in (*large, *small):
        thread.start()
    for thread in small:
        thread.join()
    ended.set()
    for thread in large:
        thread.join()


def trace_of(programs):
    raw = programs.read("trace")
    count = min(int.from_bytes(raw[:4], sys.byteorder), (len(raw) - 4) // ROW.itemsize)
    rows = np.frombuffer(raw, ROW, count, 4)
    return rows[rows["ended"] == 1]


def start(programs, deciding, slow_us):
    """Empties the maps and attaches. 2,000 rounds of waiting are some 20 microseconds."""
    for name in ("counts", "past", "trace"):
        programs.write(name, bytes(len(programs.read(name))))
    programs.write("control", struct.pack("=IIII", os.getpid(), deciding, 2000, slow_us))
    programs.attach()


def learn(host, path, reads):
    """The network, trained on a trace of this disk, and what it takes for slow (microseconds)."""
    host.load("nothing", "builtin:identity")
    with (
        teal.bpf.Session(host.model("nothing"), slots=1, x=("uint8", (1, 31))) as session,
        teal.bpf.Programs(PROGRAM, session) as programs,
    ):
        for attempt in range(5):  # until there are slow ones to learn from
            start(programs, 0, 0)
            read_all(path, reads, 100 * attempt)
            programs.detach()
            rows = trace_of(programs)
            if len(rows) < 100:
                sys.exit(f"only {len(rows)} reads reached a disk from {path.parent}: give a --folder that lies on one")
            slow_us = int(2 * np.median(rows["us"]))
            slow = rows["us"] > slow_us
            if slow.mean() > 0.05:
                break
    median = int(np.median(rows["us"]))
    print(f"trace: {len(rows)} reads, median {median} us; slow is above {slow_us} us ({slow.mean():.0%})")
    random = np.random.default_rng(2)
    weights = mlp.new_weights([31, 256, 2], random)
    digits = rows["digits"].astype(np.float32) / 9
    mlp.train(weights, digits, mlp.one_hot(slow.astype(int), 2), epochs=20, random=random, rate=1e-3)
    weights["w0"] /= 9  # the kernel is given digits, not fractions
    train_linnos.save(path.with_name("linnos.safetensors"), "linnos", weights)
    return host.load("linnos", path.with_name("linnos.safetensors")), slow_us


def report(programs, session):
    reads, slow, in_time, late, none, fast_right, slow_right, fast_wrong, slow_wrong = struct.unpack(
        "=9Q", programs.read("counts")
    )
    took = trace_of(programs)["verdict_ns"]
    took = took[took > 0] / 1000
    print(f"reads: {reads}, {slow} of them slow")
    print(f"verdicts: {in_time} in time, {late} at completion, {none} never")
    if len(took):
        print(f"event to verdict: p50 {np.percentile(took, 50):.1f} us, p99 {np.percentile(took, 99):.1f} us")
    print(f"said slow: {slow_right} right, {slow_wrong} wrong; said fast: {fast_right} right, {fast_wrong} wrong")
    print(session.statistics())


def decide(options, path):
    first, *others = sorted(os.sched_getaffinity(0))
    with teal.Host(idle=options.idle, cores=[first]) as host:
        if others:  # a worker that waits for its turn answers nobody in time
            os.sched_setaffinity(0, others)
            for worker in host.statistics().workers:
                os.sched_setscheduler(worker.pid, os.SCHED_FIFO, os.sched_param(1))
        model, slow_us = learn(host, path, options.reads)
        with (
            teal.bpf.Session(model, slots=64, batch=1) as session,
            teal.bpf.Programs(PROGRAM, session) as programs,
        ):
            start(programs, 1, slow_us)
            read_all(path, options.reads, 1000)
            programs.detach()
            report(programs, session)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reads", type=int, default=6000)
    parser.add_argument("--folder", default=None)
    parser.add_argument("--idle", default="50ms")
    options = parser.parse_args()
    if (reason := teal.bpf.why_not()) is not None:
        print(f"skipped: {reason}")
        return
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        decide(options, scratch_file(folder))


if __name__ == "__main__":
    main()
