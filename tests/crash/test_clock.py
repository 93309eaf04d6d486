"""The wall clock jumps a day back and forth, in client, host and worker: deadlines and waits do not notice.

Theory of operation: a small library, compiled here and preloaded into all three, adds an offset out of a shared file
to what CLOCK_REALTIME, time() and gettimeofday() say; a thread of the client changes that offset all the time.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import watch
from crash_host import CrashHost

import teal

SHIM = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile long *offset(void) {
    static volatile long *at;
    static long none;
    if (!at) {
        const char *path = getenv("CLOCK_OFFSET");
        int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
        void *map = fd < 0 ? MAP_FAILED : mmap(0, sizeof(long), PROT_READ, MAP_SHARED, fd, 0);
        if (fd >= 0) close(fd);
        at = map == MAP_FAILED ? &none : map;
    }
    return at;
}
int clock_gettime(clockid_t clock, struct timespec *now) {
    long result = syscall(SYS_clock_gettime, clock, now);
    if (result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) now->tv_sec += *offset();
    return (int)result;
}
int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec precise;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &precise);
    now->tv_sec = precise.tv_sec;
    now->tv_usec = precise.tv_nsec / 1000;
    return 0;
}
time_t time(time_t *out) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (out) *out = now.tv_sec;
    return now.tv_sec;
}
"""

CLIENT = """
import asyncio, mmap, os, struct, sys, threading, time
import numpy as np
import teal

file = open(os.environ["CLOCK_OFFSET"], "r+b")
clock = mmap.mmap(file.fileno(), 8)
stop = threading.Event()

def jump():
    for days in (0, 1, 0, -1) * 1_000_000:
        clock[:8] = struct.pack("q", days * 86400)
        if stop.wait(0.003):
            return

before = time.time()
clock[:8] = struct.pack("q", 86400)
assert time.time() - before > 80_000, "the clock does not jump here"
jumper = threading.Thread(target=jump)
jumper.start()
host = teal.connect(sys.argv[1], timeout=30)
sleep, identity = host.model("sleep"), host.model("identity")
x = np.arange(1000.0)
for _ in range(30):
    assert int(sleep(3_000, deadline=60)[0].numpy()) == 3_000
    assert np.array_equal(identity(x, deadline=60)[0].numpy(), x)
for _ in range(5):
    begun = time.monotonic()
    try:
        sleep(150_000, deadline=0.03)
        raise AssertionError("no deadline")
    except teal.DeadlineExceeded:
        assert time.monotonic() - begun >= 0.03
    future = sleep.submit(20_000)
    begun = time.monotonic()
    try:
        future.result(timeout=0.01)
        raise AssertionError("no timeout")
    except TimeoutError:
        assert time.monotonic() - begun >= 0.01
    future.result(timeout=60)

async def main():
    await sleep.submit(5_000, deadline=60)
    try:
        await sleep.submit(150_000, deadline=0.03)
        raise AssertionError("no deadline")
    except teal.DeadlineExceeded:
        pass

asyncio.run(main())
sleep(0)  # behind what still sleeps unseen
longest = max(stage.max_us for stage in sleep.statistics().stages.values())
assert longest < 60e6, f"a stage took {longest} us"
assert host.statistics().uptime_s < 3600
host.load("later", "builtin:identity")
host.unload("later")
stop.set()
jumper.join()
host.close()
print("fine")
"""


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler for the library that makes the clock jump")
    folder = tmp_path_factory.mktemp("clock")
    (folder / "shim.c").write_text(SHIM)
    subprocess.run([compiler, "-O1", "-shared", "-fPIC", "-o", "shim.so", "shim.c"], cwd=folder, check=True)
    return folder / "shim.so"


def test_wall_clock_jumps(shim: Path, hosts: Callable[..., CrashHost], tmp_path: Path) -> None:
    offset = tmp_path / "offset"
    offset.write_bytes(bytes(8))
    environment = {"LD_PRELOAD": str(shim), "CLOCK_OFFSET": str(offset)}
    host = hosts(workers=1, environment=environment)
    with teal.connect(host.address) as attached:
        attached.load("sleep", "builtin:sleep")
        attached.load("identity", "builtin:identity")
        workers = host.workers()
        done = subprocess.run(
            [sys.executable, "-c", CLIENT, host.address],
            env={**os.environ, **environment, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
            timeout=2 * watch.PATIENCE,
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, done.stdout) == (0, "fine\n"), done.stderr
        assert host.workers() == workers
