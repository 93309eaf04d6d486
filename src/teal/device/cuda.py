"""NVIDIA GPUs, through cuda-bindings (driver API and NVRTC).

Theory of operation. A region's mapping is registered with the driver (pinned, mapped into the device), so kernels
work in the host's own pages over the bus: nothing is copied, and a probe proves it. A launch runs one of three ways:
in place, through device memory with copies, or as a recorded graph of those copies. The resident kernel is one block
whose first thread polls; it leaves by itself after its idle time, so nothing here can hang the GPU for good.

What blocks while a kernel is resident: freeing and registering memory, unloading modules, anything on the default
stream. So all streams here are non-blocking ones, and things are freed after the resident kernels have left. Each
device has a context of its own, made current on every thread that calls.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from teal.device import source
from teal.device.directory import LINE_BYTES, REGIONS
from teal.device.protocol import Capabilities, Copying, Imported, Place, Program, Task
from teal.device.region import PAGE, MappedRegion
from teal.errors import Closed, InvalidArgument, KernelFailed, NotFound

WORKERS = 256
PROBES = 3
PORTABLE, DEVICE_MAP, READ_ONLY = 1, 2, 8
OWN_RULES = {
    1: "the driver calls an argument invalid: is the memory mapped, and the address a multiple of 4096?",
    2: "out of device memory",
    100: "no CUDA device",
    712: "part of this memory is registered already: import a region once a process",
    719: "a kernel touched memory it may not; the context is gone, so replace the process that holds the device",
    801: "the driver cannot register this kind of memory",
}


def bindings() -> tuple[Any, Any]:
    """cuda.bindings' driver and nvrtc. Raises NotFound when they are not installed."""
    try:
        from cuda.bindings import driver, nvrtc
    except ImportError as error:
        raise NotFound(f"cuda-bindings does not load ({error}); pip install 'teal-runtime[cuda]'") from None
    return driver, nvrtc


def check(result: tuple[Any, ...], what: str) -> Any:
    """The value of a call of the driver. Raises KernelFailed with the driver's word for an error, and what it means
    here."""
    code = result[0]
    if int(code) != 0:
        meaning = OWN_RULES.get(int(code), "") if type(code).__name__ == "CUresult" else ""
        raise KernelFailed(f"{what}: {getattr(code, 'name', 'error')} ({int(code)}){': ' if meaning else ''}{meaning}")
    return result[1] if len(result) == 2 else result[1:]


def initialise() -> Any:
    """The driver, ready. Raises NotFound where there is no driver or no GPU."""
    # Loaded when it is first used, a kernel would wait for the resident one to leave.
    os.environ.setdefault("CUDA_MODULE_LOADING", "EAGER")
    driver, _ = bindings()
    try:
        check(driver.cuInit(0), "cuInit")
        if check(driver.cuDeviceGetCount(), "cuDeviceGetCount") == 0:
            raise NotFound("the CUDA driver sees no GPU")
    except (KernelFailed, RuntimeError) as error:  # RuntimeError: there is no libcuda to load
        raise NotFound(f"no CUDA driver: {error}") from None
    return driver


def names() -> list[str]:
    """What each GPU calls itself. Raises NotFound where there is none."""
    driver = initialise()
    count = check(driver.cuDeviceGetCount(), "cuDeviceGetCount")
    return [
        check(driver.cuDeviceGetName(96, i), "cuDeviceGetName").split(b"\0")[0].decode(errors="replace")
        for i in range(count)
    ]


def compile_source(text: str, architecture: str, scratch: int = source.SCRATCH) -> bytes:
    """The GPU's code of a task and the kernels around it. Needs no GPU. Raises KernelFailed with the compiler's
    words."""
    _, nvrtc = bindings()
    program = check(
        nvrtc.nvrtcCreateProgram(source.assemble(text, "cuda", scratch).encode(), b"task.cu", 0, [], []),
        "nvrtcCreateProgram",
    )
    try:
        options = [f"--gpu-architecture={architecture}".encode(), b"--std=c++17"]
        code = nvrtc.nvrtcCompileProgram(program, len(options), options)[0]
        if int(code) != 0:
            log = b" " * check(nvrtc.nvrtcGetProgramLogSize(program), "nvrtcGetProgramLogSize")
            check(nvrtc.nvrtcGetProgramLog(program, log), "nvrtcGetProgramLog")
            raise KernelFailed(f"cuda: the task does not compile: {log.decode(errors='replace').rstrip(chr(0))}")
        cubin: bytes = b" " * check(nvrtc.nvrtcGetCUBINSize(program), "nvrtcGetCUBINSize")
        check(nvrtc.nvrtcGetCUBIN(program, cubin), "nvrtcGetCUBIN")
        return cubin
    finally:
        nvrtc.nvrtcDestroyProgram(program)


class Arguments:
    """A kernel's arguments as the driver wants them: an array of pointers to values, alive as long as this is."""

    def __init__(self, *values: int | np.uint32) -> None:
        self._values = [np.array([value], np.uint32 if isinstance(value, np.uint32) else np.uint64) for value in values]
        self._pointers = np.array([value.ctypes.data for value in self._values], np.uint64)
        self.address = int(self._pointers.ctypes.data)


class CudaEvent:
    def __init__(self, device: CudaDevice, event: Any, what: str) -> None:
        self._device, self._event, self._what = device, event, what

    def done(self) -> bool:
        code = self._device.driver.cuEventQuery(self._event)[0]
        if code == self._device.driver.CUresult.CUDA_ERROR_NOT_READY:
            return False
        check((code, None), self._what)
        return True

    def wait(self) -> None:
        check((*self._device.driver.cuEventSynchronize(self._event), None), self._what)

    def __del__(self) -> None:
        if self._device.is_open:  # the driver keeps an event that is still to come until it has come
            self._device.driver.cuEventDestroy(self._event)


class CudaImported:
    def __init__(self, device: CudaDevice, region: MappedRegion, pointer: int) -> None:
        self.region, self.copied = region, False
        self.pointer = pointer  # in the device's addresses; 0 when closed
        self._device = device

    def close(self) -> None:
        if self.pointer:
            self.pointer = 0
            self._device.unregister(self.region)


class CudaHeld(CudaImported):
    """A copy in the GPU's own memory of a region that never changes."""

    def close(self) -> None:
        if self.pointer:
            pointer, self.pointer = self.pointer, 0
            self._device.free(pointer)


def pointer_of(imported: Imported) -> int:
    if not isinstance(imported, CudaImported) or not imported.pointer:
        raise InvalidArgument("region: not imported into this CUDA device, or closed")
    return imported.pointer


class CudaLaunch:
    """teal_launch with its arguments set; the copies ways put device memory between, the graph ways record it all
    once."""

    def __init__(self, device: CudaDevice, function: Any, task: Task, copying: Copying) -> None:
        self._device, self._function, self._task = device, function, task
        self._groups = task.groups
        self._staged: dict[Place, int] = {}
        pointers = [pointer_of(place.imported) + place.offset for place in task.places]
        if "copies" in copying:
            for number, place in enumerate(task.places):
                if place not in self._staged:
                    self._staged[place] = device.allocate(place.nbytes)
                    if number == 0:  # weights are copied once, as everybody does
                        device.copy_in(self._staged[place], place)
            device.synchronize()
            pointers = [self._staged[place] for place in task.places]
        values: list[int | np.uint32] = [value for pointer in pointers for value in (pointer, 0)]
        items = task.items or max(1, task.batch)
        self._arguments = Arguments(*values, np.uint32(task.batch), np.uint32(items), *task.strides)
        self._graph = device.record(self._enqueue) if "graph" in copying else None

    def _enqueue(self) -> None:
        task, device = self._task, self._device
        if self._staged:
            device.copy_in(self._staged[task.input], task.input)
        device.launch(self._function, self._groups, self._arguments, device.stream)
        if self._staged:
            for place in {task.out0, task.out1}:
                device.copy_out(place, self._staged[place])

    def _go(self) -> None:
        if self._graph is None:
            self._enqueue()
        else:
            check((*self._device.driver.cuGraphLaunch(self._graph, self._device.stream), None), "cuGraphLaunch")

    def start(self) -> CudaEvent:
        self._device.use()
        self._go()
        return self._device.event(self._device.stream, "launch")

    def run(self) -> None:
        self._device.use()
        self._go()
        self._device.synchronize()


class CudaProgram:
    def __init__(self, device: CudaDevice, module: Any) -> None:
        self._device, self.module = device, module

    @property
    def device(self) -> CudaDevice:
        return self._device

    def function(self, name: str) -> Any:
        return check(self._device.driver.cuModuleGetFunction(self.module, name.encode()), "cuModuleGetFunction")

    def prepare(self, task: Task, copying: Copying = "none") -> CudaLaunch:
        self._device.use()
        return CudaLaunch(self._device, self.function("teal_launch"), task, copying)

    def start(self, directory: Imported, regions: Sequence[Imported | None]) -> CudaEvent:
        device = self._device
        device.use()
        pointers = [0 if each is None else pointer_of(each) for each in regions]
        arguments = Arguments(pointer_of(directory), *pointers, *[0] * (REGIONS - len(pointers)))
        device.launch(self.function("teal_resident"), 1, arguments, device.resident_stream)
        return device.event(device.resident_stream, "resident kernel")


class CudaDevice:
    """One GPU, in a context of its own."""

    def __init__(self, number: int = 0) -> None:
        self.driver = driver = initialise()
        self.name, self.workers = f"cuda:{number}", WORKERS
        count = check(driver.cuDeviceGetCount(), "cuDeviceGetCount")
        if not 0 <= number < count:
            raise NotFound(f"{self.name}: there are {count} GPUs, numbered from 0")
        device = check(driver.cuDeviceGet(number), "cuDeviceGet")
        self._context = self._new_context(device)
        self._local = threading.local()
        self.parts = 16  # blocks of one warp or more fit many times over; these are for resident kernels
        self._counts = {"imports": 0, "copied_imports": 0, "held": 0, "builds": 0}
        self._open: list[CudaImported] = []
        self._memory: list[int] = []
        self._graphs: list[Any] = []
        self._modules: list[Any] = []
        self.architecture = self._architecture(device)
        flags = int(driver.CUstream_flags.CU_STREAM_NON_BLOCKING)
        self.stream = check(driver.cuStreamCreate(flags), "cuStreamCreate")
        self.resident_stream = check(driver.cuStreamCreate(flags), "cuStreamCreate")
        program = self.build(source.text(source.IDENTITY))
        self._probe_function = program.function("teal_probe")
        self.capabilities = Capabilities(True, True, WORKERS, "cuda", 1.0, "ns")
        self.capabilities = self._find_out(program)

    def _new_context(self, device: Any) -> Any:
        """Waits by spinning: a launch that sleeps costs tens of microseconds more."""
        driver = self.driver
        flags = int(driver.CUctx_flags.CU_CTX_SCHED_SPIN) | int(driver.CUctx_flags.CU_CTX_MAP_HOST)
        try:
            return check(driver.cuCtxCreate(None, flags, device), "cuCtxCreate")
        except TypeError:  # cuda-bindings of CUDA 12
            return check(driver.cuCtxCreate(flags, device), "cuCtxCreate")

    def _architecture(self, device: Any) -> str:
        attributes = self.driver.CUdevice_attribute
        major, minor = (
            check(self.driver.cuDeviceGetAttribute(attribute, device), "cuDeviceGetAttribute")
            for attribute in (
                attributes.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
                attributes.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
            )
        )
        return f"sm_{major}{minor}"

    def _find_out(self, program: Program) -> Capabilities:
        from teal.device.probe import is_live  # needs this class's protocol

        imported = self.import_region(MappedRegion.create(4 * PAGE))
        note = is_live(program, imported, LINE_BYTES)
        if not note:
            imported.close()
        return Capabilities(True, not note, WORKERS, "cuda", 1.0, "ns", note)

    @property
    def is_open(self) -> bool:
        return self._context is not None

    # --- small calls, each checked ------------------------------------------------------------------

    def use(self) -> None:
        """Makes the context current on this thread, once a thread."""
        if self._context is None:
            raise Closed(f"{self.name}: it was closed")
        if not getattr(self._local, "current", False):
            check((*self.driver.cuCtxSetCurrent(self._context), None), "cuCtxSetCurrent")
            self._local.current = True

    def launch(self, function: Any, groups: int, arguments: Arguments, stream: Any) -> None:
        result = self.driver.cuLaunchKernel(function, groups, 1, 1, WORKERS, 1, 1, 0, stream, arguments.address, 0)
        check((*result, None), "cuLaunchKernel")

    def event(self, stream: Any, what: str) -> CudaEvent:
        flags = int(self.driver.CUevent_flags.CU_EVENT_DISABLE_TIMING)
        event = check(self.driver.cuEventCreate(flags), "cuEventCreate")
        check((*self.driver.cuEventRecord(event, stream), None), "cuEventRecord")
        return CudaEvent(self, event, what)

    def allocate(self, nbytes: int) -> int:
        pointer = int(check(self.driver.cuMemAlloc(max(1, nbytes)), f"cuMemAlloc of {nbytes} bytes"))
        self._memory.append(pointer)
        return pointer

    def free(self, pointer: int) -> None:
        self.use()
        self._memory.remove(pointer)
        check((*self.driver.cuMemFree(pointer), None), "cuMemFree")

    def copy_in(self, pointer: int, place: Place) -> None:
        host = place.imported.region.address + place.offset
        check((*self.driver.cuMemcpyHtoDAsync(pointer, host, place.nbytes, self.stream), None), "cuMemcpyHtoDAsync")

    def copy_out(self, place: Place, pointer: int) -> None:
        host = place.imported.region.address + place.offset
        check((*self.driver.cuMemcpyDtoHAsync(host, pointer, place.nbytes, self.stream), None), "cuMemcpyDtoHAsync")

    def synchronize(self) -> None:
        check((*self.driver.cuStreamSynchronize(self.stream), None), "launch")

    def record(self, enqueue: Any) -> Any:
        """An executable graph of what enqueue() puts into the stream."""
        driver = self.driver
        mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        check((*driver.cuStreamBeginCapture(self.stream, mode), None), "cuStreamBeginCapture")
        try:
            enqueue()
        finally:
            captured = driver.cuStreamEndCapture(self.stream)
        graph = check(captured, "cuStreamEndCapture")
        made = check(driver.cuGraphInstantiate(graph, 0), "cuGraphInstantiate")
        check((*driver.cuGraphDestroy(graph), None), "cuGraphDestroy")
        self._graphs.append(made)
        return made

    # --- regions ------------------------------------------------------------------------------------

    def import_region(self, region: MappedRegion, *, copies: bool = False) -> CudaImported:
        self.use()
        flags = PORTABLE | DEVICE_MAP | (0 if region.writable else READ_ONLY)
        what = f"{self.name}: registering a region of {region.nbytes} bytes"
        check((*self.driver.cuMemHostRegister(region.address, region.nbytes, flags), None), what)
        try:
            pointer = int(check(self.driver.cuMemHostGetDevicePointer(region.address, 0), "cuMemHostGetDevicePointer"))
            imported = CudaImported(self, region, pointer)
            if region.writable and not self._shares(imported):
                raise KernelFailed(f"{self.name}: the GPU does not see what the host stores after the import")
        except KernelFailed:
            self.unregister(region)
            raise
        self._counts["imports"] += 1
        self._open.append(imported)
        return imported

    def hold(self, region: MappedRegion) -> CudaHeld:
        """Across a bus each run would fetch the weights anew: 51 µs for 66 KB on an H200, where a launch took 11."""
        self.use()
        held = CudaHeld(self, region, self.allocate(region.nbytes))
        check((*self.driver.cuMemcpyHtoD(held.pointer, region.address, region.nbytes), None), "cuMemcpyHtoD")
        self._counts["held"] += 1
        self._open.append(held)
        return held

    def unregister(self, region: MappedRegion) -> None:
        self.use()
        check((*self.driver.cuMemHostUnregister(region.address), None), "cuMemHostUnregister")

    def _shares(self, imported: CudaImported) -> bool:
        """Write after bind: does the GPU see what the host stores after the import, and the host what it answers?"""
        place = imported.region.array(imported.region.probe_at, (128,), np.uint8)
        kept, words = place.copy(), place.view(np.uint32)
        try:
            # Another process may probe the same region at the same moment, and write there: a copy is one each time.
            for _ in range(PROBES):
                pattern = np.frombuffer(os.urandom(32), np.uint32)
                words[:8] = pattern
                self.launch(self._probe_function, 1, Arguments(imported.pointer, imported.region.probe_at), self.stream)
                self.synchronize()
                if (words[8:16] == ~pattern).all():
                    return True
        finally:
            place[:] = kept
        return False

    # --- programs -----------------------------------------------------------------------------------

    def build(self, text: str, scratch: int = source.SCRATCH) -> CudaProgram:
        self.use()
        self._counts["builds"] += 1
        code = compile_source(text, self.architecture, scratch)
        module = check(self.driver.cuModuleLoadData(code), f"{self.name}: cuModuleLoadData")
        self._modules.append(module)
        return CudaProgram(self, module)

    def fence(self) -> None:
        self.use()
        self.synchronize()

    def statistics(self) -> dict[str, int]:
        return dict(self._counts)

    def close(self) -> None:
        """Frees everything. Where a resident kernel is still there, the context is left to the end of the process."""
        if self._context is None:
            return
        self.use()
        if self.driver.cuStreamQuery(self.resident_stream)[0] == self.driver.CUresult.CUDA_ERROR_NOT_READY:
            self._context = None
            return
        for imported in self._open:
            imported.close()
        check((*self.driver.cuCtxDestroy(self._context), None), "cuCtxDestroy")
        self._context = None

    def __enter__(self) -> CudaDevice:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
