"""The device tasks: OpenCL C on a CPU device against the reference, and the CUDA compiler, which needs no GPU."""

from __future__ import annotations

import ctypes
import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import systems_cases as cases

from teal.errors import InvalidArgument
from teal.kernel.systems import LOADS, file
from teal.kernel.systems.task import MOST_WORKERS, task_of

OPENCL = """
#define TEAL_TASK static inline
#define TEAL_GLOBAL __global
#define TEAL_LOCAL __local
#define TEAL_BARRIER() barrier(CLK_LOCAL_MEM_FENCE)
"""
OPENCL_KERNEL = """
__kernel void run(__global const uchar* weights, __global const uchar* in, __global uchar* out0, __global uchar* out1,
                  uint batch, uint workers, __local uchar* scratch) {
    teal_task(weights, in, out0, out1, batch, workers == 1 ? 0 : (uint)get_local_id(0), workers, scratch);
}
"""
CUDA = """
typedef unsigned char uchar;
typedef unsigned int uint;
#define TEAL_TASK static __device__
#define TEAL_GLOBAL
#define TEAL_LOCAL
#define TEAL_BARRIER() __syncthreads()
"""
CUDA_KERNEL = """
extern "C" __global__ void run(const uchar* weights, const uchar* in, uchar* out0, uchar* out1, uint batch,
                               uint workers) {
    extern __shared__ uchar scratch[];
    teal_task(weights, in, out0, out1, batch, threadIdx.x, workers, scratch);
}
"""


@pytest.fixture(scope="module")
def queue() -> Any:
    cl = pytest.importorskip("pyopencl", reason="pyopencl is not installed")
    try:
        devices = [d for p in cl.get_platforms() for d in p.get_devices() if d.type & cl.device_type.CPU]
    except cl.Error:
        devices = []
    if not devices:
        pytest.skip("no OpenCL CPU device: pip install pocl-binary-distribution")
    return cl.CommandQueue(cl.Context(devices[:1]))


@pytest.mark.parametrize("workers", [1, 64, MOST_WORKERS])
@pytest.mark.parametrize("load", LOADS)
def test_opencl(queue: Any, load: str, workers: int) -> None:
    import pyopencl as cl

    task = task_of(load)
    kernel = cl.Kernel(cl.Program(queue.context, OPENCL + task.source + OPENCL_KERNEL).build(), "run")
    tensors = cases.weights(load)
    contents = file.pack(load, tensors)
    flags = cl.mem_flags.COPY_HOST_PTR
    weights = cl.Buffer(queue.context, flags, hostbuf=np.frombuffer(contents[file.view(contents).offset :], np.uint8))
    for batch in (0, 1, 3, 4, 5, 9) if load == "kleio" else (0, 1, 2, 3, 4, 5, 31, 64, 130, 257):
        x = cases.inputs(load, batch, seed=batch)
        guard = 8
        scores = np.full((batch + guard, LOADS[load].classes), 77, LOADS[load].weights)
        verdict = np.full(batch + guard, 77, np.int32)
        given = cl.Buffer(queue.context, flags, hostbuf=x if batch else np.zeros(64, np.uint8))
        buffers = [cl.Buffer(queue.context, flags, hostbuf=array) for array in (scores, verdict)]
        scratch = cl.LocalMemory(max(task.scratch, 16))
        kernel(queue, (workers,), (workers,), weights, given, *buffers, np.uint32(batch), np.uint32(workers), scratch)
        for array, buffer in zip((scores, verdict), buffers, strict=True):
            cl.enqueue_copy(queue, array, buffer)
        assert (scores[batch:] == 77).all()
        assert (verdict[batch:] == 77).all()
        cases.check(load, tensors, x, scores[:batch], verdict[:batch])


@pytest.mark.parametrize("load", LOADS)
def test_cuda_compiles(load: str) -> None:
    library = nvrtc()
    program = ctypes.c_void_p()
    source = (CUDA + task_of(load).source + CUDA_KERNEL).encode()
    assert library.nvrtcCreateProgram(ctypes.byref(program), source, b"task.cu", 0, None, None) == 0
    options = (ctypes.c_char_p * 2)(b"--gpu-architecture=compute_80", b"--std=c++17")
    status = library.nvrtcCompileProgram(program, 2, options)
    size = ctypes.c_size_t()
    library.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    library.nvrtcGetProgramLog(program, log)
    library.nvrtcDestroyProgram(ctypes.byref(program))
    assert (status, log.value) == (0, b"")


def nvrtc() -> Any:
    for package in ("nvidia.cuda_nvrtc", "nvidia.cu13"):
        try:
            found = importlib.util.find_spec(package)
        except ModuleNotFoundError:
            continue
        for folder in (found.submodule_search_locations or []) if found else []:
            for path in sorted(Path(folder).glob("lib/libnvrtc.so.*")):
                return ctypes.CDLL(str(path))
    return pytest.skip("no CUDA compiler: pip install nvidia-cuda-nvrtc-cu12")


def test_unknown_load() -> None:
    with pytest.raises(InvalidArgument, match="load 'gpt', expected one of"):
        task_of("gpt")


def test_scratch_is_what_most_devices_have() -> None:
    assert max(task_of(load).scratch for load in LOADS) <= 32 * 1024
