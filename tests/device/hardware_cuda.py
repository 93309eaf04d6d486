"""The CUDA device on a machine that has one: correctness first, then what a call costs. Not run by pytest.

    PYTHONPATH=src python3 tests/device/hardware_cuda.py [--calls 100000] [--seconds 110] [--device cuda:0]

Needs Linux x86-64, an NVIDIA GPU with its driver, numpy, cuda-bindings with NVRTC, and g++; Teal need not be
installed. Prints one JSON object and ends with 0 if every check held. Another device ("opencl:pocl") tries the script
itself. Ends by itself after --seconds, whatever hangs: kernels here are bounded too.
"""

from __future__ import annotations

import argparse
import ctypes
import faulthandler
import json
import mmap
import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
# Teal's package itself imports its compiled core, which is not needed here: only teal.device and teal.errors are.
if "teal" not in sys.modules:
    package = types.ModuleType("teal")
    package.__path__ = [str(ROOT / "src" / "teal")]
    sys.modules["teal"] = package

from teal import device as teal_device  # noqa: E402
from teal.device import MappedRegion, Place, Resident, Task, source  # noqa: E402
from teal.device import cuda as teal_cuda  # noqa: E402
from teal.errors import InvalidArgument, KernelFailed  # noqa: E402

SHIM = """
#include "device/line.hpp"
#include "cpu/clock.hpp"
extern "C" {
unsigned shim_ask(teal::DeviceLine* line) { return teal::ask(*line); }
unsigned shim_wait(teal::DeviceLine* line, unsigned generation, unsigned long timeout, unsigned long spin) {
    return static_cast<unsigned>(teal::await(*line, generation, timeout, spin));
}
// n runs; ns of each into out. Returns the first answer that is not "done", or 0; done says how many ran.
unsigned shim_measure(teal::DeviceLine* line, unsigned n, long* out, unsigned* done) {
    for (*done = 0; *done < n; ++*done) {
        const unsigned long start = teal::ticks();
        const unsigned answer = shim_wait(line, teal::ask(*line), 2000000000ul, 2000000000ul);
        if (answer != 0) return answer;
        out[*done] = teal::ticks_to_ns(teal::ticks() - start);
    }
    return 0;
}
// A hostile client: writes anything into both halves of its line until *stop.
void shim_flood(volatile unsigned* line, volatile unsigned* stop) {
    for (unsigned i = 1; !*stop; i += 2654435761u) {
        line[0] = i;
        for (unsigned k = 16; k < 32; ++k) line[k] = i ^ k;
    }
}
}
"""

HANG = """
TEAL_TASK void teal_task(TEAL_GLOBAL const uchar* weights, TEAL_GLOBAL const uchar* in, TEAL_GLOBAL uchar* out0,
TEAL_GLOBAL uchar* out1, uint batch,
                         uint worker, uint workers, TEAL_LOCAL uchar* scratch) {
    const ulong start = TEAL_CLOCK(0);
    while (TEAL_CLOCK(0) - start < 4000000000ul) TEAL_RELAX(1);
}
"""


NONSENSE = "TEAL_TASK void teal_task(int nonsense"


def fake_compiler(text: str, architecture: str, scratch: int = 0) -> bytes:
    if text == NONSENSE:
        raise KernelFailed("cuda: the task does not compile: it is nonsense")
    return text.encode() + b"\0"


def build_shim() -> Any:
    with tempfile.TemporaryDirectory(prefix="teal-shim-") as made:
        folder = Path(made)
        (folder / "shim.cpp").write_text(SHIM)
        core = ROOT / "core"
        sources = [folder / "shim.cpp", core / "device/line.cpp", core / "queue/wait.cpp"]
        sources += [*core.glob("cpu/*.cpp"), *core.glob("base/*.cpp")]
        library = folder / "shim.so"
        compiler = shutil.which("g++") or shutil.which("c++") or shutil.which("clang++") or "g++"
        command = [
            compiler,
            "-std=c++20",
            "-O2",
            "-shared",
            "-fPIC",
            f"-I{core}",
            *map(str, sources),
            "-o",
            str(library),
            "-lpthread",
        ]
        subprocess.run(command, check=True, timeout=100)
        shim = ctypes.CDLL(str(library))
    shim.shim_wait.argtypes = [ctypes.c_void_p, ctypes.c_uint, ctypes.c_ulong, ctypes.c_ulong]
    shim.shim_measure.argtypes = [ctypes.c_void_p, ctypes.c_uint, ctypes.c_void_p, ctypes.c_void_p]
    shim.shim_ask.argtypes = [ctypes.c_void_p]
    shim.shim_flood.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    return shim


class Line:
    """What teal._core.DeviceLine is, over ctypes."""

    def __init__(self, shim: Any, region: MappedRegion, offset: int) -> None:
        self.address = region.address + offset
        self.shim, self.region, self.offset = shim, region, offset
        self.words = region.array(offset, (32,), np.uint32)

    def ask(self) -> int:
        return int(self.shim.shim_ask(self.address))

    def wait(self, generation: int, timeout_ns: int, spin_ns: int = 1_000_000) -> int:
        return int(self.shim.shim_wait(self.address, generation, timeout_ns, spin_ns))


class Setting:
    """A device with one region and the scale task in it."""

    FLOATS = 64

    def __init__(self, shim: Any, device: str) -> None:
        self.shim = shim
        self.device = teal_device.open(device)
        self.is_cuda = device.startswith("cuda")
        self.region = MappedRegion.create(1 << 20)
        self.imported = self.device.import_region(self.region)
        self.program = self.device.build(source.text(source.SCALE))
        self.x = self.array(0)
        self.x[:] = np.arange(self.FLOATS)

    def place(self, slot: int, part: int, nbytes: int) -> Place:
        return Place(self.imported, 8192 + slot * 4096 + part * 512, nbytes)

    def task(self, slot: int) -> Task:
        n = self.FLOATS * 4
        parts = self.place(slot, 1, 64), self.place(slot, 2, n), self.place(slot, 3, n), self.place(slot, 3, n)
        return Task(*parts, self.FLOATS)

    def line(self, slot: int) -> Line:
        return Line(self.shim, self.region, 8192 + slot * 4096)

    def line_place(self, slot: int) -> Place:
        return self.place(slot, 0, 128)

    def array(self, slot: int, part: int = 2) -> np.ndarray[Any, Any]:
        return self.region.array(8192 + slot * 4096 + part * 512, (1 if part == 1 else self.FLOATS,), np.float32)

    def serve(self, slot: int, resident: Resident) -> tuple[Line, np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """Adds a line; returns it with its weight and its output."""
        resident.add(self.line_place(slot), self.task(slot))
        self.array(slot)[:] = np.arange(self.FLOATS)
        return self.line(slot), self.array(slot, 1), self.array(slot, 3)


def open_setting(device: str, report: dict[str, Any]) -> Setting:
    """Where a driver does not take memfd regions, the rest is still tried, on anonymous memory; the verdict is then a
    failure."""
    shim = build_shim()
    try:
        return Setting(shim, device)
    except KernelFailed as error:
        report["memfd_refused"] = str(error)
        MappedRegion.create = classmethod(  # type: ignore[method-assign,assignment]
            lambda cls, nbytes: cls(
                mmap.mmap(-1, -(-nbytes // 4096) * 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            )
        )
        return Setting(shim, device)


def expect(condition: bool, what: str) -> None:
    if not condition:
        raise AssertionError(what)


def percentiles(samples: list[int] | np.ndarray[Any, Any]) -> dict[str, float]:
    ordered = sorted(int(sample) for sample in samples)
    at = lambda share: ordered[min(len(ordered) - 1, int(share * len(ordered)))] / 1000  # noqa: E731
    return {"n": len(ordered), "p50_us": at(0.5), "p99_us": at(0.99), "p999_us": at(0.999)}


# --- checks -----------------------------------------------------------------------------------------


def check_import(s: Setting, calls: int) -> dict[str, Any]:
    launch, y = s.program.prepare(s.task(0)), s.array(0, 3)
    for factor in range(200):
        s.array(0, 1)[0] = factor
        launch.run()
        expect(bool((y == s.x * factor).all()), f"launch {factor}: a wrong answer, the import is a copy")
    return {"runs": 200, "statistics": s.device.statistics()}


def check_held_weights(s: Setting, calls: int) -> dict[str, Any]:
    """A copy that the device keeps: what the host stores later is not seen, by launches nor by a resident kernel."""
    weights = MappedRegion.create(4096)
    weights.array(0, (1,), np.float32)[0] = 3
    held = s.device.hold(weights)
    place, y = Place(held, 0, 64), s.array(7, 3)
    n = s.FLOATS * 4
    s.array(7)[:] = np.arange(s.FLOATS)
    task = Task(place, s.place(7, 2, n), s.place(7, 3, n), s.place(7, 3, n), s.FLOATS)
    s.program.prepare(task).run()
    expect(bool((y == np.arange(s.FLOATS) * 3).all()), "a launch on held weights: a wrong answer")
    with Resident(s.program, idle=0.05) as resident:
        resident.add(s.line_place(7), task)
        line = s.line(7)
        if s.is_cuda:
            weights.array(0, (1,), np.float32)[0] = 99
        y[:] = 0
        resident.run(line)
        expect(bool((y == np.arange(s.FLOATS) * 3).all()), "a resident kernel on held weights: a wrong answer")
    held.close()
    return s.device.statistics()


def check_refusals(s: Setting, calls: int) -> dict[str, Any]:
    messages = []
    if s.is_cuda:
        try:
            s.device.import_region(s.region)
            raise AssertionError("a second import of the same memory was accepted")
        except KernelFailed as error:
            messages.append(str(error))
    for nbytes, offset in ((4095, 0), (4096, 64)):
        memory = np.zeros(3 * 4096, np.uint8)
        start = -memory.ctypes.data % 4096 + offset
        try:
            MappedRegion(memory[start : start + nbytes])
            raise AssertionError(f"{nbytes} bytes at {offset} of a page were accepted")
        except InvalidArgument as error:
            messages.append(str(error))
    try:
        s.device.build(NONSENSE)
        raise AssertionError("nonsense compiled")
    except KernelFailed as error:
        messages.append(str(error).splitlines()[0])
    return {"messages": messages}


def check_launch_ways(s: Setting, calls: int) -> dict[str, Any]:
    y = s.array(0, 3)
    for way in WAYS if s.is_cuda else list(WAYS)[:2]:
        s.array(0, 1)[0] = 7
        launch = s.program.prepare(s.task(0), way)
        for start in range(50):
            s.x[:] = np.arange(s.FLOATS) + start
            y[:] = 0
            launch.run()
            expect(bool((y == s.x * 7).all()), f"{way}: a wrong answer in run {start}")
        event = launch.start()
        event.wait()
        expect(event.done(), f"{way}: waited for and not done")
    return {}


def check_resident(s: Setting, calls: int) -> dict[str, Any]:
    with Resident(s.program, idle=0.05) as resident:
        line, weight, y = s.serve(1, resident)
        x = s.array(1)
        for factor in range(calls):
            weight[0] = factor
            x[0] = factor & 1023
            resident.run(line)
            if y[0] != np.float32(factor & 1023) * np.float32(factor) or y[63] != np.float32(63) * np.float32(factor):
                raise AssertionError(f"call {factor}: {y[0]}, {y[63]}")
        resident.check()
        return resident.statistics()


def check_parking(s: Setting, calls: int) -> dict[str, Any]:
    chance = random.Random(7)
    with Resident(s.program, idle=0.0002) as resident:
        line, weight, y = s.serve(2, resident)
        until = time.monotonic() + 10
        runs = 0
        while time.monotonic() < until and runs < max(200, calls // 25):
            weight[0] = runs
            resident.run(line, timeout=3)
            expect(y[3] == 3.0 * runs, f"run {runs}: {y[3]}")
            pause = time.perf_counter_ns() + chance.randrange(400_000)  # around the idle time, to meet it parking
            while time.perf_counter_ns() < pause:
                pass
            runs += 1
        statistics = resident.statistics()
        expect(statistics["launches"] > 1, "it never parked")
        return statistics | {"runs_asked": runs}


def check_quit(s: Setting, calls: int) -> dict[str, Any]:
    with Resident(s.program, idle=5.0) as resident:
        line, weight, _ = s.serve(3, resident)
        weight[0] = 2
        resident.run(line)
        start = time.perf_counter()
        resident.quit()
        took = time.perf_counter() - start
        expect(resident.parked and line.words[18] == 0, "not parked after quit")
        resident.run(line)
        resident.remove(0)
        expect(line.words[18] == 0, "a removed line is not parked")
        return {"quit_ms": took * 1000}


def check_hostile(s: Setting, calls: int) -> dict[str, Any]:
    stop = np.zeros(1, np.uint32)
    with Resident(s.program, idle=0.5) as resident:
        victim, weight, y = s.serve(4, resident)
        hostile, _, _ = s.serve(5, resident)
        resident.run(victim)
        alone = timed(lambda: resident.run(victim), max(200, calls // 20))
        thread = threading.Thread(target=s.shim.shim_flood, args=(hostile.address, stop.ctypes.data), daemon=True)
        thread.start()
        try:
            for factor in range(max(200, calls // 20)):
                weight[0] = factor
                resident.run(victim)
                expect(y[5] == 5.0 * factor, f"the victim's call {factor} is wrong")
            beside = timed(lambda: resident.run(victim), max(200, calls // 20))
        finally:
            stop[0] = 1
            thread.join()
        resident.check()
        return {"alone": percentiles(alone), "beside": percentiles(beside)}


def check_new_region(s: Setting, calls: int) -> dict[str, Any]:
    with Resident(s.program, idle=1.0) as resident:
        line, weight, _ = s.serve(6, resident)
        weight[0] = 3
        resident.run(line)
        other = s.device.import_region(MappedRegion.create(1 << 16))
        parts = [Place(other, 4096 + at, 256) for at in (0, 256, 512, 512)]
        resident.add(Place(other, 8192, 128), Task(*parts, 64))
        other.region.array(4096, (1,), np.float32)[0] = 4
        other.region.array(4096 + 256, (64,), np.float32)[:] = 1
        resident.run(Line(s.shim, other.region, 8192))
        expect(other.region.array(4096 + 512, (64,), np.float32).sum() == 256, "the new region's line is wrong")
        resident.run(line)
        statistics = resident.statistics()
        resident.quit()
        other.close()
        expect(statistics["relaunched_for_regions"] == 1, "not launched again")
        return statistics


def check_lost(s: Setting, calls: int) -> dict[str, Any]:
    """In a process of its own: the context is of no use afterwards. Its kernel ends by itself after 4 s."""
    done = subprocess.run(
        [sys.executable, __file__, "--lost", *sys.argv[1:]],
        capture_output=True,
        text=True,
        timeout=60,
        env=os.environ,
        check=False,
    )
    expect(done.returncode == 0, f"the child ended with {done.returncode}: {done.stderr[-1500:]}")
    return dict(json.loads(done.stdout.strip().splitlines()[-1]))


def lost_child(device: str) -> None:
    s = open_setting(device, {})
    resident = Resident(s.device.build(HANG), idle=0.05, answer_within=0.7)
    line, _, _ = s.serve(1, resident)
    resident.wake()
    generation = line.ask()
    time.sleep(0.05)
    try:
        resident.check()
        raise AssertionError("a kernel that hangs was not noticed")
    except KernelFailed as error:
        message = str(error)
    answer = line.wait(generation, 1_000_000_000)
    expect(answer == 4, f"the client's answer is {answer}, expected 4 (lost)")
    try:
        resident.wake()
        raise AssertionError("a lost kernel was woken")
    except KernelFailed:
        pass
    print(json.dumps({"message": message}), flush=True)
    os._exit(0)  # the kernel is still there


CHECKS: tuple[Callable[[Setting, int], dict[str, Any]], ...] = (
    check_import,
    check_held_weights,
    check_refusals,
    check_launch_ways,
    check_resident,
    check_parking,
    check_quit,
    check_hostile,
    check_new_region,
    check_lost,
)


WAYS = {
    "none": "launch in place",
    "copies": "launch + copies",
    "graph": "graph in place",
    "graph-copies": "graph + copies",
}

# --- measurements -----------------------------------------------------------------------------------


def timed(call: Callable[[], Any], n: int) -> list[int]:
    clock, samples = time.perf_counter_ns, []
    for _ in range(n):
        start = clock()
        call()
        samples.append(clock() - start)
    return samples


def measure(s: Setting, calls: int) -> dict[str, Any]:
    """Rows of at most as many samples as stand here; fewer with fewer --calls."""
    rows: dict[str, Any] = {}

    def few(n: int) -> int:
        return max(20, n * min(calls, 100_000) // 100_000)

    for way, name in list(WAYS.items())[: 4 if s.is_cuda else 2]:
        launch = s.program.prepare(s.task(0), way)
        timed(launch.run, few(500))
        rows[name] = percentiles(timed(launch.run, few(5000)))
    with Resident(s.program, idle=0.5) as resident:
        line, _, _ = s.serve(7, resident)
        timed(lambda: resident.run(line), few(2000))
        rows["resident, from Python (ctypes)"] = percentiles(timed(lambda: line.wait(line.ask(), 10**9), few(20000)))
        rows["resident, from C"] = from_c(s.shim, line, few(20000))
        for slot in range(8, 24):
            s.serve(slot, resident)
        timed(lambda: resident.run(line), few(200))
        rows["resident, from C, 17 lines"] = from_c(s.shim, line, few(10000))
    with Resident(s.program, idle=0.0001) as resident:
        line, _, _ = s.serve(24, resident)

        def again() -> None:
            while not resident.parked:
                time.sleep(0)
            start = time.perf_counter_ns()
            resident.run(line)
            woken.append(time.perf_counter_ns() - start)

        woken: list[int] = []
        for _ in range(few(500)):
            again()
        rows["resident, parked before"] = percentiles(woken)
    return rows


def from_c(shim: Any, line: Line, n: int) -> dict[str, Any]:
    out, done = np.zeros(n, np.int64), np.zeros(1, np.uint32)
    answer = shim.shim_measure(line.address, n, out.ctypes.data, done.ctypes.data)
    return percentiles(out[: int(done[0])]) | ({} if answer == 0 else {"stopped_by_answer": answer})


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--calls", type=int, default=100_000)
    parser.add_argument("--seconds", type=int, default=110)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument(
        "--fake", action="store_true", help="the driver is tests/device/fake_cuda.cpp, which takes sources"
    )
    parser.add_argument("--lost", action="store_true", help="the child of check_lost")
    options = parser.parse_args()
    faulthandler.dump_traceback_later(options.seconds, exit=True)
    if options.fake:
        teal_cuda.compile_source = fake_compiler
    if options.lost:
        lost_child(options.device)
    report: dict[str, Any] = {"checks": {}, "rows": {}}
    start = time.monotonic()
    try:
        s = open_setting(options.device, report)
        report["devices"] = [str(each) for each in teal_device.devices()]
        report["capabilities"] = str(s.device.capabilities)
    except Exception:
        report["opening"] = traceback.format_exc()
        print(json.dumps(report, indent=1))
        return 1
    for check in CHECKS:
        name = check.__name__.removeprefix("check_")
        began = time.monotonic()
        try:
            report["checks"][name] = {"ok": True, "found": check(s, options.calls)}
        except Exception as error:
            report["checks"][name] = {"ok": False, "error": repr(error), "trace": traceback.format_exc()[-1500:]}
        report["checks"][name]["seconds"] = round(time.monotonic() - began, 2)
        print(name, report["checks"][name], file=sys.stderr, flush=True)
    try:
        report["rows"] = measure(s, options.calls)
    except Exception:
        report["rows_failed"] = traceback.format_exc()[-1500:]
    report["seconds"] = round(time.monotonic() - start, 1)
    print(json.dumps(report, indent=1, default=str), flush=True)
    held = (
        "memfd_refused" not in report
        and all(each["ok"] for each in report["checks"].values())
        and "rows_failed" not in report
    )
    os._exit(0 if held else 1)


if __name__ == "__main__":
    sys.exit(main())
