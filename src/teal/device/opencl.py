"""OpenCL devices, through pyopencl.

Theory of operation. A region becomes a buffer that uses the host's memory; a probe proves that the driver did not
copy it. The task is compiled with one of three ways to order memory, tried from the best: clang's builtins (CPU
drivers are clang inside), OpenCL 2.0 atomics over all devices, the same over one device. Launches and the resident
kernel have queues of their own, as a queue runs one thing at a time. Threads of CPU drivers can be kept to given
cores.
"""

from __future__ import annotations

import os
import platform
import threading
import time
import warnings
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np

from teal.device import opencl_runtimes, source
from teal.device.directory import LINE_BYTES, REGIONS
from teal.device.protocol import Capabilities, Copying, Imported, Place, Program, Task
from teal.device.region import PAGE, MappedRegion
from teal.errors import Closed, InvalidArgument, KernelFailed, NotFound

CPU_OPTIONS = ["-cl-std=CL1.2", "-DTEAL_ALONE", "-DTEAL_CLANG"]
GPU_WORKERS = 256
PROBES = 3

_driver_threads: set[int] = set()


def thread_ids() -> set[int]:
    return {int(name) for name in os.listdir("/proc/self/task")}


def load() -> Any:
    """pyopencl with all drivers known to it. Raises NotFound when it is not installed or does not load."""
    opencl_runtimes.prepare()
    try:
        import pyopencl

        opencl_runtimes.after_import()
    except ImportError as error:
        raise NotFound(f"pyopencl does not load ({error}); pip install 'teal-runtime[opencl]'") from None
    return pyopencl


def raw_devices() -> list[Any]:
    """All devices of all drivers. Raises NotFound when there is no driver."""
    cl = load()
    before = thread_ids()
    try:
        found = [device for platform_ in cl.get_platforms() for device in platform_.get_devices()]
    except cl.Error as error:
        raise NotFound(
            f"no OpenCL driver answers ({error}); "
            "pip install 'teal-runtime[opencl]', or apt-get install pocl-opencl-icd"
        ) from None
    _driver_threads.update(thread_ids() - before)
    return found


def short_name(device: Any) -> str:
    """pocl, intel, nvidia, amd or the platform's first word."""
    name = device.platform.name
    known = {"Portable Computing Language": "pocl", "Intel(R) OpenCL": "intel", "NVIDIA CUDA": "nvidia"}
    return known.get(name, name.split()[0].lower().removesuffix("(r)") if name else "unnamed")


class OpenClEvent:
    def __init__(self, cl: Any, event: Any, what: str) -> None:
        self._cl, self._event, self._what = cl, event, what

    def done(self) -> bool:
        status = self._event.command_execution_status
        if status < 0:
            raise KernelFailed(f"{self._what}: the driver reports error {status}")
        return bool(status == self._cl.command_execution_status.COMPLETE)

    def wait(self) -> None:
        try:
            self._event.wait()
        except self._cl.Error as error:
            raise KernelFailed(f"{self._what}: {error}") from None


class OpenClImported:
    def __init__(self, region: MappedRegion, buffer: Any) -> None:
        self.region, self.buffer, self.copied = region, buffer, False

    def close(self) -> None:
        if self.buffer is not None:
            self.buffer.release()
            self.buffer = None


def buffer_of(imported: Imported) -> Any:
    if not isinstance(imported, OpenClImported) or imported.buffer is None:
        raise InvalidArgument("region: not imported into this OpenCL device, or closed")
    return imported.buffer


class OpenClLaunch:
    """teal_launch with its arguments set. In place where the device shares memory; else inputs are pushed, outputs
    pulled."""

    def __init__(self, device: OpenClDevice, kernel: Any, task: Task, copying: Copying) -> None:
        self._device, self._kernel, self._queue = device, kernel, device.queue
        self._enqueue = device.cl.enqueue_nd_range_kernel
        self._global, self._local = (task.groups * device.workers,), (device.workers,)
        self._push: list[Place] = []
        self._pull: list[Place] = []
        self._staged: list[tuple[Any, Any, bool]] = []  # device buffer, host view, is an output
        places = [(buffer_of(place.imported), place.offset) for place in task.places]
        if copying == "copies":
            staged: dict[Place, tuple[Any, int]] = {}
            for number, place in enumerate(task.places):  # out1 may be out0: then once
                staged[place] = staged.get(place) or self._stage(place, number)
            places = [staged[place] for place in task.places]
        else:
            self._push = [place for place in task.places[:2] if place.imported.copied]
            self._pull = [place for place in task.places[2:] if place.imported.copied]
        self._held = places, task  # a driver's kernel does not keep its arguments alive
        arguments: list[Any] = [value for buffer, at in places for value in (buffer, np.uint64(at))]
        items = task.items or max(1, task.batch)
        kernel.set_args(*arguments, np.uint32(task.batch), np.uint32(items), *map(np.uint64, task.strides))

    def _stage(self, place: Place, number: int) -> tuple[Any, int]:
        flags = self._device.cl.mem_flags.READ_WRITE
        buffer = self._device.cl.Buffer(self._device.context, flags, max(1, place.nbytes))
        view = place.imported.region.array(place.offset, (place.nbytes,), np.uint8)
        if number == 0:  # weights are copied once, as everybody does
            self._device.cl.enqueue_copy(self._queue, buffer, view)
        else:
            self._staged.append((buffer, view, number >= 2))
        return buffer, 0

    def _before(self) -> None:
        for place in self._push:
            self._device.push(place)
        for buffer, view, is_output in self._staged:
            if not is_output:
                self._device.cl.enqueue_copy(self._queue, buffer, view, is_blocking=False)

    def _after(self) -> Any:
        event = None
        for place in self._pull:
            event = self._device.pull(place)
        for buffer, view, is_output in self._staged:
            if is_output and view.nbytes:
                event = self._device.cl.enqueue_copy(self._queue, view, buffer, is_blocking=False)
        return event

    def start(self) -> OpenClEvent:
        if self._push or self._staged:
            self._before()
        event = self._enqueue(self._queue, self._kernel, self._global, self._local)
        if self._pull or self._staged:
            event = self._after() or event
        self._queue.flush()
        return OpenClEvent(self._device.cl, event, "launch")

    def run(self) -> None:
        if self._push or self._staged:
            self._before()
        self._enqueue(self._queue, self._kernel, self._global, self._local)
        if self._pull or self._staged:
            self._after()
        try:
            self._queue.finish()
        except self._device.cl.Error as error:
            raise KernelFailed(f"launch: {error}") from None


class OpenClProgram:
    def __init__(self, device: OpenClDevice, program: Any) -> None:
        self._device, self._program = device, program

    @property
    def device(self) -> OpenClDevice:
        return self._device

    def prepare(self, task: Task, copying: Copying = "none") -> OpenClLaunch:
        if "graph" in copying:
            raise InvalidArgument('launch: OpenCL devices have no graphs here; use "none" or "copies"')
        return OpenClLaunch(self._device, self._device.cl.Kernel(self._program, "teal_launch"), task, copying)

    def start(self, directory: Imported, regions: Sequence[Imported | None]) -> OpenClEvent:
        device = self._device
        kernel = device.cl.Kernel(self._program, "teal_resident")
        buffers = [None if each is None else buffer_of(each) for each in regions]
        kernel.set_args(buffer_of(directory), *buffers, *[None] * (REGIONS - len(buffers)))
        event = device.cl.enqueue_nd_range_kernel(device.resident_queue(), kernel, (device.workers,), (device.workers,))
        device.flush_residents()
        return OpenClEvent(device.cl, event, "resident kernel")


class OpenClDevice:
    """One OpenCL device. cores: the cores to which a CPU driver's threads are kept (those that open() sees start)."""

    def __init__(self, raw: Any, cores: set[int] | None = None) -> None:
        self.cl, self.raw = load(), raw
        self.name = f"opencl:{short_name(raw)}"
        self.is_cpu = bool(raw.type & self.cl.device_type.CPU)
        self.workers = 1 if self.is_cpu else min(GPU_WORKERS, int(raw.max_work_group_size))
        self.parts = int(raw.max_compute_units)
        self._counts = {"imports": 0, "copied_imports": 0, "builds": 0}
        self._open: weakref.WeakSet[OpenClImported] = weakref.WeakSet()  # an import that is forgotten frees its pages
        self._resident_queue: Any = None
        self._sharing = self.cl.mem_flags.USE_HOST_PTR
        before = thread_ids()
        try:
            self.context = self.cl.Context([raw])
            self.queue = self.cl.CommandQueue(self.context)
        except self.cl.Error as error:
            raise KernelFailed(f"{self.name}: the driver does not open: {error}") from None
        self._options, self._fences = self._choose()
        self._probing = threading.Lock()
        self._probe_kernel = self.cl.Kernel(self._compile(source.text(source.IDENTITY), self._options), "teal_probe")
        self.capabilities = self._find_out()
        if cores is not None and self.is_cpu:
            for thread in (thread_ids() - before) | _driver_threads:
                try:
                    os.sched_setaffinity(thread, cores)
                except ProcessLookupError:
                    continue

    def resident_queue(self) -> Any:
        """A queue for one resident kernel: a queue runs one thing after another."""
        self._resident_queue = self.cl.CommandQueue(self.context)
        return self._resident_queue

    def flush_residents(self) -> None:
        self._resident_queue.flush()

    # --- what it can do -----------------------------------------------------------------------------

    def _compile(self, text: str, options: list[str], scratch: int = source.SCRATCH) -> Any:
        self._counts["builds"] += 1
        program = self.cl.Program(self.context, source.assemble(text, "opencl", scratch))
        try:
            with warnings.catch_warnings():  # a compiler that said anything at all is no news
                warnings.simplefilter("ignore", self.cl.CompilerWarning)
                return program.build(options, cache_dir=False)  # drivers cache themselves
        except self.cl.Error as error:
            raise KernelFailed(f"{self.name}: the task does not compile: {error}") from None

    def _choose(self) -> tuple[list[str], str]:
        x86 = ["-DTEAL_X86"] if platform.machine() == "x86_64" else []
        ways = [([*CPU_OPTIONS, *x86], "clang")] if self.is_cpu else []
        alone = ["-DTEAL_ALONE"] if self.is_cpu else []
        for scope, word in (
            ("memory_scope_all_svm_devices", "opencl2 all-devices"),
            ("memory_scope_device", "opencl2 device"),
        ):
            ways.append((["-cl-std=CL2.0", f"-DTEAL_SCOPE={scope}", *alone], word))
        first = None
        for options, word in ways:
            try:
                self._compile(source.text(source.IDENTITY), options)
                return options, word
            except KernelFailed as error:
                first = first or error
        hint = ""
        if "unknown target CPU" in str(first):
            hint = "; this PoCL is older than this processor: apt-get install pocl-opencl-icd, which is newer"
        raise KernelFailed(f"{self.name}: its compiler takes none of our ways to order memory{hint}; {first}")

    def _find_out(self) -> Capabilities:
        from teal.device.probe import is_live  # needs this class's protocol

        region = MappedRegion.create(4 * PAGE)
        found = Capabilities(
            True, True, self.workers, self._fences, 1.0, "cycles" if self._fences == "clang" else "polls"
        )
        self.capabilities = found  # what the probes below start from
        imported = self.import_region(region, copies=True)
        if imported.copied:
            imported.close()
            return Capabilities(
                False, False, self.workers, self._fences, 1.0, found.clock, "the driver copies host memory"
            )
        clock_ns = self._clock_ns(imported)
        self.capabilities = Capabilities(True, True, self.workers, self._fences, clock_ns, found.clock)
        note = is_live(
            OpenClProgram(self, self._compile(source.text(source.IDENTITY), self._options)), imported, LINE_BYTES
        )
        imported.close()
        return Capabilities(True, not note, self.workers, self._fences, clock_ns, found.clock, note)

    def _clock_ns(self, imported: OpenClImported) -> float:
        """Length of a unit of the kernel's clock: two looks, 5 ms apart. A look at the lines takes some 100 ns
        otherwise."""
        place = imported.region.array(imported.region.probe_at + 64, (1,), np.uint64)

        def look() -> tuple[int, int]:
            before = time.perf_counter_ns()
            self._probe(imported)
            return (before + time.perf_counter_ns()) // 2, int(place[0])

        host, device = look()
        time.sleep(0.005)
        host_later, device_later = look()
        return (host_later - host) / (device_later - device) if device_later > device else 100.0

    # --- regions ------------------------------------------------------------------------------------

    def import_region(self, region: MappedRegion, *, copies: bool = False) -> OpenClImported:
        if self.context is None:
            raise Closed(f"{self.name}: it was closed")
        flags = self._sharing | (self.cl.mem_flags.READ_WRITE if region.writable else self.cl.mem_flags.READ_ONLY)
        try:
            imported = OpenClImported(region, self.cl.Buffer(self.context, flags, hostbuf=region.bytes))
        except self.cl.Error as error:
            raise KernelFailed(f"{self.name}: it refuses a region of {region.nbytes} bytes: {error}") from None
        self._counts["imports"] += 1
        if region.writable and not self._shares(imported):
            if not copies:
                imported.close()
                raise KernelFailed(f"{self.name}: the driver made a copy of the region; allow it with copies=True")
            imported.copied = True
            self._counts["copied_imports"] += 1
        self._open.add(imported)
        return imported

    def hold(self, region: MappedRegion) -> OpenClImported:
        return self.import_region(region)

    def _probe(self, imported: OpenClImported) -> None:
        with self._probing:  # arguments are the kernel's, not the launch's
            self._probe_kernel.set_args(imported.buffer, np.uint64(imported.region.probe_at))
            self.cl.enqueue_nd_range_kernel(self.queue, self._probe_kernel, (1,), (1,))
        self.queue.finish()

    def _shares(self, imported: OpenClImported) -> bool:
        """Write after bind: does the device see what the host stores after the import, and the host what it answers?"""
        place = imported.region.array(imported.region.probe_at, (128,), np.uint8)
        kept, words = place.copy(), place.view(np.uint32)
        try:
            # Another process may probe the same region at the same moment, and write there: a copy is one each time.
            for _ in range(PROBES):
                pattern = np.frombuffer(os.urandom(32), np.uint32)
                words[:8] = pattern
                self._probe(imported)
                if (words[8:16] == ~pattern).all():
                    return True
        finally:
            place[:] = kept
        return False

    def push(self, place: Place) -> None:
        """Makes the host's bytes the device's, where it has a copy."""
        view = place.imported.region.array(place.offset, (place.nbytes,), np.uint8)
        buffer = buffer_of(place.imported)
        self.cl.enqueue_copy(self.queue, buffer, view, dst_offset=place.offset, is_blocking=False)

    def pull(self, place: Place) -> Any:
        view = place.imported.region.array(place.offset, (place.nbytes,), np.uint8)
        buffer = buffer_of(place.imported)
        return self.cl.enqueue_copy(self.queue, view, buffer, src_offset=place.offset, is_blocking=False)

    # --- programs -----------------------------------------------------------------------------------

    def build(self, text: str, scratch: int = source.SCRATCH) -> OpenClProgram:
        return OpenClProgram(self, self._compile(text, self._options, scratch))

    def fence(self) -> None:
        self.queue.finish()

    def statistics(self) -> dict[str, int]:
        return dict(self._counts)

    def close(self) -> None:
        for imported in list(self._open):
            imported.close()
        self._open.clear()
        self.context = self._resident_queue = None

    def __enter__(self) -> OpenClDevice:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _is_program(program: OpenClProgram) -> Program:
    return program  # mypy: the protocol is kept
