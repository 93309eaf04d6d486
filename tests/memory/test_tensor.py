"""The ways to look at a tensor: NumPy, buffers, DLPack, torch. All of them share its memory, and keep it."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import weakref
from typing import Any

import numpy as np
import pytest

import teal
from teal import memory


@pytest.fixture
def tensor(host: teal.Host) -> teal.Tensor:
    """(2, 3) float32 of 0 … 5."""
    tensor = host.empty((2, 3))
    tensor.numpy()[...] = np.arange(6, dtype=np.float32).reshape(2, 3)
    return tensor


def address(array: np.ndarray[Any, Any]) -> int:
    return int(array.__array_interface__["data"][0])


def test_what_it_says_of_itself(host: teal.Host, tensor: teal.Tensor) -> None:
    assert (tensor.shape, tensor.dtype, tensor.nbytes, tensor.size, tensor.ndim) == ((2, 3), "float32", 24, 6, 2)
    assert (tensor.readonly, tensor.released, tensor.exports, len(tensor)) == (False, False, 0, 2)
    assert repr(tensor) == "teal.Tensor(shape=(2, 3), dtype=float32)"
    scalar = host.empty(())
    assert (scalar.shape, scalar.ndim, scalar.size, scalar.nbytes) == ((), 0, 1, 4)
    with pytest.raises(TypeError, match="scalar"):
        len(scalar)


def test_fresh_memory_is_zero_and_aligned(host: teal.Host) -> None:
    for shape in ((), (0,), (1,), (7, 11), (1 << 16,)):
        tensor = host.empty(shape, "complex128")
        assert not tensor.numpy().any()
        assert tensor.address % 256 == 0


def test_empty_refuses(host: teal.Host) -> None:
    for shape, dtype, complaint in (
        ((-1,), "float32", "expected extents of 0 to"),
        ((1 << 62, 4), "float32", "2\\^63 bytes"),
        ((1,) * 9, "float32", "rank 9"),
        ((1,), "BYTES", "BYTES"),
        ((1,), "float99", "float99"),
    ):
        with pytest.raises(teal.InvalidArgument, match=complaint):
            host.empty(shape, dtype)
    with pytest.raises(teal.QuotaExceeded, match="more bytes of shared memory: this client has"):
        host.empty((1 << 42,))


def test_numpy_views_share_memory(tensor: teal.Tensor) -> None:
    views = [
        tensor.numpy(),
        np.asarray(tensor),
        np.array(tensor, copy=False),
        np.asarray(memoryview(tensor)),
        np.from_dlpack(tensor),
    ]
    assert {address(view) for view in views} == {tensor.address}
    views[0][1, 2] = 50
    assert [view[1, 2] for view in views] == [50] * 5
    assert tensor[1, 2] == 50
    tensor[0, :] = 7
    assert all((view[0] == 7).all() for view in views)
    assert tensor.exports == 5
    del views
    assert tensor.exports == 0


def test_copies_that_are_asked_for(tensor: teal.Tensor) -> None:
    copy = np.array(tensor)
    assert address(copy) != tensor.address
    assert np.asarray(tensor, dtype=np.float64).dtype == np.float64
    with pytest.raises(ValueError, match="copy"):
        np.asarray(tensor, dtype=np.float64, copy=False)
    assert tensor.exports == 0


def test_memoryview(tensor: teal.Tensor) -> None:
    view = memoryview(tensor)
    assert (view.format, view.itemsize, view.shape, view.strides, view.readonly) == ("f", 4, (2, 3), (12, 4), False)
    assert view.tolist() == [[0, 1, 2], [3, 4, 5]]
    view[1, 1] = 9
    assert tensor[1, 1] == 9
    with view.cast("B") as flat:
        assert len(flat) == 24
    assert bytes(tensor) == tensor.numpy().tobytes()


@pytest.mark.parametrize(
    ("dtype", "bits"), [("bfloat16", "uint16"), ("float8_e4m3fn", "uint8"), ("float8_e5m2", "uint8")]
)
@pytest.mark.parametrize("shape", [(), (0,), (2, 3)], ids=str)
def test_dtypes_without_a_buffer_format(host: teal.Host, dtype: str, bits: str, shape: tuple[int, ...]) -> None:
    tensor = host.empty(shape, dtype)
    with pytest.raises(BufferError, match="no buffer format"):
        memoryview(tensor)
    view = tensor.numpy()
    assert (view.dtype.name, view.shape) == (dtype, shape)
    view[...] = 1
    assert np.array_equal(np.asarray(tensor).view(bits), view.view(bits))
    if shape:
        assert address(view) == tensor.address
    assert tensor.exports > 0
    del view
    gc.collect()
    assert tensor.exports == 0


def test_torch_views_share_memory(tensor: teal.Tensor) -> None:
    torch = pytest.importorskip("torch")
    view = torch.from_dlpack(tensor)
    assert (view.data_ptr(), tuple(view.shape), view.dtype) == (tensor.address, (2, 3), torch.float32)
    view += 1
    assert tensor[1, 2] == 6
    with pytest.raises(teal.Busy):
        tensor.release()
    del view
    tensor.release()


def test_a_capsule_that_nobody_takes(tensor: teal.Tensor) -> None:
    for options in ({}, {"max_version": (1, 0)}, {"dl_device": (1, 0)}):
        capsule = tensor.__dlpack__(**options)
        assert tensor.exports == 1
        del capsule
        assert tensor.exports == 0
    assert tensor.__dlpack_device__() == (1, 0)


def test_dlpack_refuses(tensor: teal.Tensor) -> None:
    with pytest.raises(BufferError, match="CPU memory"):
        tensor.__dlpack__(dl_device=(2, 0))
    with pytest.raises(BufferError, match="copy"):
        tensor.__dlpack__(copy=True)


def test_strings_have_no_views(host: teal.Host) -> None:
    (text,) = host.load("strings", "builtin:identity")(["a"])
    with pytest.raises(BufferError):
        memoryview(text)
    with pytest.raises(BufferError, match="BYTES"):
        np.from_dlpack(text)
    copy = text.numpy()
    copy[0] = b"changed"
    assert text.numpy()[0] == b"a"
    assert text.exports == 0


def test_fortran_order_is_refused(tensor: teal.Tensor) -> None:
    """A consumer that insists on Fortran order must not get C order."""
    import ctypes

    with pytest.raises(BufferError, match="Fortran"):
        _get_buffer(ctypes, tensor, 0x40 | 0x10 | 0x08)
    _get_buffer(ctypes, tensor, 0x20 | 0x10 | 0x08)  # C order
    assert tensor.exports == 0


def _get_buffer(ctypes: Any, tensor: teal.Tensor, flags: int) -> None:
    view = ctypes.create_string_buffer(256)
    get, release = ctypes.pythonapi.PyObject_GetBuffer, ctypes.pythonapi.PyBuffer_Release
    get.argtypes, get.restype = [ctypes.py_object, ctypes.c_void_p, ctypes.c_int], ctypes.c_int
    release.argtypes, release.restype = [ctypes.c_void_p], None
    get(tensor, view, flags)
    release(view)


# ---- read-only -----------------------------------------------------------------------------------------------------


def test_inputs_inside_a_kernel_are_read_only(load: Any) -> None:
    model = load("toy_kernels:writes")
    for kind in ("numpy", "setflags", "slice"):
        with pytest.raises(teal.KernelFailed, match=r"read-only|WRITEABLE"):
            model(np.zeros(3), kind)


def test_read_only_tensors_give_read_only_views(load: Any) -> None:
    assert load("toy_kernels:read_only_views")(np.arange(3.0))[0].numpy().tolist() == [
        b"tensor", b"memoryview", b"numpy", b"dlpack", b"old dlpack", b"writable buffer", b"setitem",
    ]  # fmt: skip


# ---- release -------------------------------------------------------------------------------------------------------


def test_release_waits_for_views(tensor: teal.Tensor) -> None:
    for make in (
        tensor.numpy,
        lambda: memoryview(tensor),
        lambda: np.from_dlpack(tensor),
        lambda: tensor.numpy()[0, 1:],
    ):
        view: Any = make()
        with pytest.raises(teal.Busy, match="1 views of this tensor are still in use"):
            tensor.release()
        assert not tensor.released
        del view
    tensor.release()
    assert tensor.released
    tensor.release()  # again: nothing happens


def test_after_release_everything_is_closed(host: teal.Host, tensor: teal.Tensor) -> None:
    model = host.load("closed", "builtin:identity")
    tensor.release()
    assert tensor.shape == (2, 3)
    assert "released" in repr(tensor)
    for use in (
        tensor.numpy,
        lambda: np.asarray(tensor),
        lambda: np.from_dlpack(tensor),
        lambda: tensor.address,
        lambda: tensor[0],
        lambda: tensor.__setitem__(0, 1),
        lambda: model(tensor),
        lambda: model(x=tensor),
    ):
        with pytest.raises(teal.Closed, match="tensor is released"):
            use()
    with pytest.raises(BufferError, match="released"):
        memoryview(tensor)


def test_release_gives_the_memory_back(host: teal.Host) -> None:
    session = host._connection.session("default").core
    start = session.bytes_used
    for _ in range(100):
        tensor = host.empty((1 << 20,))
        assert session.bytes_used == start + (4 << 20)
        tensor.release()
        assert session.bytes_used == start
    del tensor
    assert session.bytes_used == start


def test_views_keep_the_memory(host: teal.Host) -> None:
    session = host._connection.session("default").core
    start = session.bytes_used
    tensor = host.empty((1000,))
    view = tensor.numpy()[10:20]
    seen = weakref.ref(tensor)
    del tensor
    gc.collect()
    assert seen() is not None
    assert session.bytes_used > start
    view[:] = 5
    assert (view == 5).all()
    del view
    gc.collect()
    assert seen() is None
    assert session.bytes_used == start


def test_views_outlive_the_host() -> None:
    with teal.Host() as host:
        tensor = host.empty((1000,))
        view = tensor.numpy()
        out = host.load("double", "builtin:identity")(np.arange(5.0))[0]
    view[:] = 3
    assert (tensor.numpy() == 3).all()
    assert out.numpy().tolist() == [0, 1, 2, 3, 4]
    with pytest.raises(teal.Closed, match="connection to the host is closed"):
        host.empty((1,))


# ---- what is still on loan -----------------------------------------------------------------------------------------


def test_leaks(host: teal.Host) -> None:
    gc.collect()
    before = memory.leaks()
    tensor = host.empty((3, 5), "int16")
    view = tensor.numpy()
    (loan,) = [loan for loan in memory.leaks() if loan not in before]
    assert loan == memory.Loan((3, 5), "int16", 30, 1)
    assert (loan.age_s, loan.taken_by) == (None, None)
    del view
    tensor.release()
    assert memory.leaks() == before


TRACED = """
import numpy as np, teal
with teal.Host() as host:
    kept = host.empty((4, 2))
    model = host.load("id", "builtin:identity")
    view = model(np.arange(3))[0].numpy()
    gone = host.empty((9, 9))
    gone.release()
    first, second = teal.memory.leaks()
    assert first.taken_by.endswith(":4") and second.taken_by.endswith(":6"), (first, second)
    assert first.age_s >= second.age_s >= 0
"""


def test_leaks_are_traced_and_printed(tmp_path: Any) -> None:
    program = tmp_path / "program.py"
    program.write_text(TRACED)
    environment = {**os.environ, "TEAL_TRACE_LOANS": "1"}
    done = subprocess.run([sys.executable, program], env=environment, capture_output=True, text=True, check=True)
    first, second = done.stderr.splitlines()
    assert first.startswith("teal: still on loan: shape (4, 2), float32, 32 bytes, 0 views")
    assert f"taken at {program}:4" in first
    assert f"taken at {program}:6" in second
    assert "docs/ownership.md" in second
    quiet = subprocess.run(
        [sys.executable, "-c", TRACED.split("first,")[0]], capture_output=True, text=True, check=True
    )
    assert quiet.stderr == ""
