"""The device tasks: OpenCL C on a CPU device against the reference, and the CUDA compiler, which needs no GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import systems_cases as cases

from teal.device import cuda, opencl
from teal.errors import InvalidArgument, NotFound
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


@pytest.fixture(scope="module")
def queue() -> Any:
    """Of PoCL, which takes groups of any size on a CPU."""
    try:
        devices = [each for each in opencl.raw_devices() if opencl.short_name(each) == "pocl"]
    except NotFound as error:
        pytest.skip(str(error))
    if not devices:
        pytest.skip("no PoCL: pip install 'teal-runtime[opencl]'")
    cl = opencl.load()
    return cl.CommandQueue(cl.Context(devices[:1]))


@pytest.mark.parametrize("workers", [1, 64, MOST_WORKERS])
@pytest.mark.parametrize("load", LOADS)
def test_opencl(queue: Any, load: str, workers: int) -> None:
    cl = opencl.load()
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
    task = task_of(load)
    try:
        assert cuda.compile_source(task.source, "sm_80", max(task.scratch, 16))[:4] == b"\x7fELF"
    except NotFound as error:
        pytest.skip(str(error))


def test_unknown_load() -> None:
    with pytest.raises(InvalidArgument, match="load 'gpt', expected one of"):
        task_of("gpt")


def test_scratch_is_what_most_devices_have() -> None:
    assert max(task_of(load).scratch for load in LOADS) <= 32 * 1024
