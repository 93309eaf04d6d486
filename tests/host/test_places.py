"""Tensors of one's own as inputs and as memory for outputs: nothing copied, nothing overwritten, nothing left."""

from __future__ import annotations

import gc
import os
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import teal
from teal import memory


@pytest.fixture(scope="module")
def mlp(host: teal.Host, mlp_path: Path) -> teal.Model:
    return host.load("mlp", mlp_path, threads=1)


@pytest.fixture
def double(load: Any) -> teal.Model:
    """float32 (n,) → float32 (n,); a function, so its outputs are copied once by the worker."""
    return load("toy_kernels:pure_double")


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "gate"
    yield path
    path.touch()


def core_of(host: teal.Host) -> Any:
    return host._connection.session("default").core


def filled(host: teal.Host, values: Any, dtype: str = "float32") -> teal.Tensor:
    values = np.asarray(values, dtype)
    tensor = host.empty(values.shape, dtype)
    tensor.numpy()[...] = values
    return tensor


def running(gate: Path) -> None:
    while not gate.with_name(gate.name + ".in").exists():
        time.sleep(0.0005)


# ---- inputs --------------------------------------------------------------------------------------------------------


def test_free_tensors_are_not_copied(host: teal.Host, mlp: teal.Model, counted: Any) -> None:
    x = filled(host, np.random.default_rng(1).random((2, 64)))
    expected = mlp(x.numpy().copy())[0].numpy().copy()
    before = counted(mlp)
    for _ in range(20):
        assert np.array_equal(mlp(x)[0].numpy(), expected)
        assert np.array_equal(mlp.submit(x).result()[0].numpy(), expected)
    call = mlp.prepare(x)
    assert np.array_equal(call()[0].numpy(), expected)
    x.numpy()[...] = 0  # read anew
    assert np.array_equal(call()[0].numpy(), mlp(x)[0].numpy())
    after = counted(mlp)
    assert (after.copies_in, after.copies_out, after.bytes_copied) == (
        before.copies_in,
        before.copies_out,
        before.bytes_copied,
    )


def test_the_binding_is_used_again(host: teal.Host, mlp: teal.Model, counted: Any) -> None:
    x, y = host.empty((3, 64)), host.empty((3, 8))
    mlp(x, out=y)
    before = counted(mlp).bindings
    for _ in range(50):
        mlp(x, out=y)
    assert counted(mlp).bindings == before
    seen = set()
    for _ in range(50):  # others at the same places
        del x, y
        x, y = host.empty((3, 64)), host.empty((3, 8))
        seen.add((x.address, y.address))
        mlp(x, out=y)
    assert len(seen) <= 3
    assert counted(mlp).bindings <= before + len(seen)


def test_outputs_of_other_models_are_not_copied(host: teal.Host, mlp: teal.Model, load: Any, counted: Any) -> None:
    norms, identity = load("toy_kernels:norms"), load("builtin:identity")
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    norm, mean = norms(x)
    before = counted(identity).copies_in
    assert np.array_equal(identity(norm)[0].numpy(), np.linalg.norm(x, axis=1))
    assert float(identity(mean)[0].numpy()) == 2.5
    assert counted(identity).copies_in == before
    # A call after the other, each on what the one before has made.
    rows = mlp(np.ones((8, 64), np.float32))[0]
    for _ in range(10):
        rows = identity(rows)[0]
    assert np.array_equal(rows.numpy(), mlp(np.ones((8, 64), np.float32))[0].numpy())


def test_a_chain_keeps_only_its_end(host: teal.Host, double: teal.Model) -> None:
    """h = step(h) must not keep all that h ever was."""
    h = double(np.full(1000, 2.0**-60, np.float32))[0]
    sizes = []
    for _ in range(60):
        h = double(h)[0]
        sizes.append(core_of(host).bytes_used)
    assert h.numpy()[0] == 2.0
    assert max(sizes[10:]) <= max(sizes[:10])


def test_an_output_keeps_no_input(host: teal.Host, double: teal.Model) -> None:
    x = filled(host, np.ones(1 << 16))
    y = double(x)[0]
    used = core_of(host).bytes_used
    del x
    gc.collect()
    assert core_of(host).bytes_used <= used - (1 << 18)
    other = filled(host, np.full(1 << 16, 9.0))
    assert float(y.numpy()[5]) == 2
    del other


def test_outputs_of_a_prepared_call_keep_no_input(host: teal.Host, double: teal.Model) -> None:
    x = filled(host, np.ones(1 << 16))
    call = double.prepare(x)
    y = call()[0]
    used = core_of(host).bytes_used
    del x
    gc.collect()
    assert core_of(host).bytes_used == used  # the call reads it
    del call
    gc.collect()
    assert core_of(host).bytes_used <= used - (1 << 18)
    assert float(y.numpy()[7]) == 2


def test_arrays_beside_tensors(host: teal.Host, load: Any) -> None:
    add = load("toy_kernels:add")
    x = filled(host, [1, 2], "float64")
    before = add.statistics().copies_in
    assert add(x=x, y=np.full(2, 5.0))[0].numpy().tolist() == [6, 7]
    assert add.statistics().copies_in == before + 1
    assert add(x=x, y=3.0)[0].numpy().tolist() == [4, 5]
    assert add(x=x)[0].numpy().tolist() == [11, 12]
    assert add(x=x, y=x)[0].numpy().tolist() == [2, 4]  # twice the same: it is only read
    assert add.statistics().copies_in == before + 2


@pytest.mark.parametrize(
    ("view", "copies"),
    [
        (lambda t: t.numpy(), 0),
        (lambda t: t[2:5], 0),
        (lambda t: t.numpy()[2:5], 0),
        (lambda t: t.numpy()[:, 1:][1], 0),
        (lambda t: t.numpy().reshape(-1)[3:9].reshape(2, 3), 0),
        (lambda t: np.asarray(t)[4], 0),
        (lambda t: np.frombuffer(t, np.float32), 0),
        (memoryview, 0),
        (lambda t: memoryview(t)[1:3], 0),
        (lambda t: t.numpy().view(np.int32), 0),
        (lambda t: t.numpy().view(np.uint8)[1, 4:8].view(np.float32), 0),
        (lambda t: t.numpy()[3:3], 0),
        (lambda t: t.numpy()[:, 1], 1),  # with gaps
        (lambda t: t.numpy().T, 1),
        (lambda t: t.numpy()[::-1], 1),
        (lambda t: t.numpy()[2:5].copy(), 1),
        (lambda t: t.numpy()[[2, 3]], 1),
        (lambda t: t.numpy().view(np.uint8).reshape(-1)[1:97][:92].view(np.float32), 1),  # not aligned
    ],
)
def test_packed_views_are_not_copied(host: teal.Host, load: Any, view: Any, copies: int) -> None:
    model = load("builtin:identity")
    tensor = filled(host, np.arange(24).reshape(6, 4))
    array = view(tensor)
    expected = np.asarray(array).copy()
    before = model.statistics().copies_in
    out = model(array)[0]
    assert out.dtype == expected.dtype.name
    assert np.array_equal(out.numpy(), expected)
    assert model.statistics().copies_in == before + copies
    assert (out.nbytes == 0 or copies == 1) or tensor.address <= out.address < tensor.address + tensor.nbytes


def test_views_of_dtypes_that_numpy_has_no_buffer_for(host: teal.Host, load: Any) -> None:
    model = load("builtin:identity")
    tensor = host.empty((4, 2), "bfloat16")
    tensor.numpy()[...] = np.arange(8).reshape(4, 2)
    before = model.statistics().copies_in
    for array in (tensor, tensor.numpy(), tensor.numpy()[1:3]):
        out = model(array)[0]
        assert out.numpy().dtype == ml_dtypes.bfloat16
        assert np.array_equal(out.numpy(), np.asarray(array))
    assert model.statistics().copies_in == before


def test_a_view_keeps_its_memory_while_a_request_is_out(host: teal.Host, load: Any, gate: Path) -> None:
    model = load("toy_kernels:gated_double")
    tensor = filled(host, np.arange(100))
    future = model.submit(tensor.numpy()[10:20], str(gate))
    running(gate)
    del tensor
    gc.collect()
    others = [filled(host, np.zeros(100)) for _ in range(20)]
    gate.touch()
    assert np.array_equal(future.result()[0].numpy(), 2 * np.arange(10, 20))
    del others


def test_strings_of_another_call(load: Any) -> None:
    model = load("builtin:identity")
    words = model(["a", "bc", "def"])[0]
    before = model.statistics().copies_in
    again = model(words)[0]
    assert again.numpy().tolist() == [b"a", b"bc", b"def"]
    assert model.statistics().copies_in == before


def test_readers_may_share(host: teal.Host, load: Any, gate: Path) -> None:
    model = load("toy_kernels:gated_double")
    x = filled(host, [1, 2, 3])
    futures = [model.submit(x, str(gate)) for _ in range(5)]
    gate.touch()
    assert all(future.result()[0].numpy().tolist() == [2, 4, 6] for future in futures)


# ---- out= ----------------------------------------------------------------------------------------------------------


def test_outputs_go_where_they_should(host: teal.Host, mlp: teal.Model, counted: Any) -> None:
    random = np.random.default_rng(3)
    x, y = host.empty((4, 64)), host.empty((4, 8))
    before = counted(mlp)
    for _ in range(5):
        x.numpy()[...] = random.random((4, 64))
        assert mlp(x, out=y)[0] is y
        assert mlp.submit(x, out=[y]).result()[0] is y
        assert mlp(x, out={mlp.outputs[0].name: y})[0] is y
        after = counted(mlp)
        assert (after.copies_in, after.copies_out) == (before.copies_in, before.copies_out)
        assert np.array_equal(y.numpy(), mlp(x.numpy().copy())[0].numpy())
        before = counted(mlp)
    call = mlp.prepare(x, out=y)
    assert call()[0] is y is call.outputs[0]
    many = filled(host, np.zeros((10, 8)))
    for i in range(0, 10, 2):  # parts of something larger
        mlp(random.random((2, 64), np.float32), out=many.numpy()[i : i + 2])
    assert np.all(many.numpy() != 0)


def test_out_for_some_of_the_outputs(host: teal.Host, load: Any) -> None:
    norms = load("toy_kernels:norms")
    x = np.ones((2, 3), np.float32)
    mean = host.empty((), "float64")
    for out in ([None, mean], {"mean": mean}, (None, mean)):
        mean.numpy()[...] = 0
        got = norms(x, out=out)
        assert got["mean"] is mean
        assert float(mean.numpy()) == 1
        assert np.allclose(got["norm"].numpy(), 3**0.5)
    first = norms(x)
    again = norms(2 * x, out=first)  # what a call gave may receive the next one's
    assert again["norm"] is first["norm"]
    assert float(first["mean"].numpy()) == 2


def test_out_may_be_another_models_input(host: teal.Host, mlp: teal.Model, double: teal.Model, counted: Any) -> None:
    """One model writes straight into what the next one reads."""
    onward = double.new_inputs(n=64)
    other = mlp.new_inputs(batch=1)
    name = mlp.inputs[0].name
    onward["x"].numpy()[...] = 3
    double(**onward, out=other[name].numpy()[0])
    assert np.all(other[name].numpy() == 6)
    before = counted(mlp).copies_in
    assert np.array_equal(mlp(**other)[0].numpy(), mlp(np.full((1, 64), 6, np.float32))[0].numpy())
    assert counted(mlp).copies_in == before + 1


def test_out_of_unknown_shape(host: teal.Host, load: Any) -> None:
    echo = load("toy_kernels:echo")
    out = host.empty((3,), "int64")
    assert echo(np.arange(3), out=out)[0] is out
    assert out.numpy().tolist() == [0, 1, 2]
    for given in (np.arange(2), np.arange(3.0), np.arange(5000)):
        with pytest.raises(
            teal.InvalidArgument, match=r"\$\.outputs\[0\]: the model wrote .*, the memory given is int64"
        ):
            echo(given, out=out)
    assert echo(np.arange(3) + 1, out=out)[0].numpy().tolist() == [1, 2, 3]
    call = echo.prepare(np.arange(3) + 5, out=out)
    assert call()[0] is out
    assert out.numpy().tolist() == [5, 6, 7]


def test_out_beside_an_output_that_spills(host: teal.Host, load: Any) -> None:
    """When one output is larger than planned, all come in a region of their own; the one with memory is copied."""
    model = load("toy_kernels:sized")
    count = host.empty((), "int64")
    before = model.statistics().copies_in
    got = model(20_000, out={"count": count})
    assert got["count"] is count
    assert int(count.numpy()) == 20_000
    assert np.array_equal(got["big"].numpy(), np.arange(20_000, dtype=np.float32))
    assert model.statistics().copies_in == before + 2  # the argument, and this one
    view = host.empty((4,), "int64").numpy()
    got = model(30_000_0, out={"count": view[2:3].reshape(())})
    assert (view[2], int(got["count"].numpy()), got["big"].size) == (300_000, 300_000, 300_000)
    with pytest.raises(teal.InvalidArgument, match=r"\$\.outputs\[0\]: the model wrote float32 \(9000000,\)"):
        model(9_000_000, out=[host.empty((5,)), None, None])
    big = host.empty((7,))
    assert model(7, out=[big, None, None])["big"] is big
    assert big.numpy().tolist() == list(range(7))


def test_identity_on_free_tensors(host: teal.Host, load: Any) -> None:
    """In place: the output is the tensor's own memory. With out= it is written there, by the kernel."""
    model = load("builtin:identity")
    x, y = filled(host, [1, 2, 3]), host.empty((3,))
    before = model.statistics()
    out = model(x)[0]
    assert out.address == x.address
    assert model(x, out=x)[0] is x
    assert model(x, out=y)[0] is y
    assert y.numpy().tolist() == [1, 2, 3]
    x.numpy()[...] = 7
    assert out.numpy().tolist() == [7, 7, 7]
    assert y.numpy().tolist() == [1, 2, 3]
    del x
    gc.collect()
    filled(host, [0, 0, 0])
    assert out.numpy().tolist() == [7, 7, 7]  # keeps what it shows
    after = model.statistics()
    assert (after.copies_in, after.copies_out) == (before.copies_in, before.copies_out)


def test_an_input_that_is_called_out(host: teal.Host, load: Any) -> None:
    model = load("toy_kernels:awkward_names")
    arrays = {"out": np.full(2, 5, np.float32), "deadline": np.full(2, 3, np.float32)}
    assert model(arrays)[0].numpy().tolist() == [2, 2]
    assert model(*arrays.values())[0].numpy().tolist() == [2, 2]
    y = host.empty((2,))
    assert model(arrays, out=y)[0] is y
    with pytest.raises(teal.InvalidArgument, match=r"\$\.out: memory for the outputs, but .* has an input 'out' too"):
        model(out=arrays["out"])


def test_out_is_refused(host: teal.Host, mlp: teal.Model, load: Any) -> None:
    norms, text = load("toy_kernels:norms"), load("builtin:identity")
    rows = np.ones((2, 64), np.float32)
    good = host.empty((2, 8))
    whole = host.empty((4, 64))
    released = host.empty((2, 8))
    released.release()
    locked = good.numpy()[...]
    locked.flags.writeable = False
    words = text(["a"])[0]
    for out, complaint in (
        (np.empty((2, 8), np.float32), r"\$\.outputs\[0\]: ndarray that is not packed memory of this model's host"),
        (host.empty((2, 16)).numpy()[:, ::2], "not packed memory"),
        ([[1, 2]], r"\$\.outputs\[0\]: list cannot receive an output"),
        (3.5, "float cannot receive"),
        ("y", "str cannot receive"),
        (locked, r"\$\.outputs\[0\]: read-only memory cannot receive"),
        (host.empty((2, 8), "float64"), r"\$\.outputs\[0\]\.dtype: float64, output .* needs float32"),
        (host.empty((8, 2)), r"\$\.outputs\[0\]\.shape: \(8, 2\), output .* needs \(2, 8\)"),
        (host.empty((16,)), r"\$\.outputs\[0\]\.shape"),
        (words, r"\$\.outputs\[0\]\.dtype: BYTES, output"),
        ([good, good], r"\$\.out: 2 given, expected one for each of"),
        ([], r"\$\.out: 0 given"),
        ({"nobody": good}, r"\$\.out: \['nobody'\]: not outputs"),
    ):
        with pytest.raises(teal.InvalidArgument, match=complaint):
            mlp(rows, out=out)
        with pytest.raises(teal.InvalidArgument, match=complaint):
            mlp.submit(rows, out=out)
        with pytest.raises(teal.InvalidArgument, match=complaint):
            mlp.prepare(rows, out=out)
    with pytest.raises(teal.InvalidArgument, match=r"\$\.out: Tensor, expected a sequence or mapping"):
        norms(np.ones((2, 3), np.float32), out=host.empty((2,)))
    with pytest.raises(teal.InvalidArgument, match=r"\$\.outputs\[0\]: strings cannot be received in place"):
        text(["b"], out=words)
    with pytest.raises(teal.InvalidArgument, match=r"\$\.outputs\[0\]: overlaps \$\.inputs\[0\]"):
        mlp(whole.numpy()[:2], out=whole.numpy().reshape(-1)[64:80].reshape(2, 8))
    both = host.empty((4,), "float64")
    with pytest.raises(teal.InvalidArgument, match=r"\$\.outputs\[1\]: overlaps \$\.outputs\[0\]"):
        norms(np.ones((2, 3), np.float32), out=[both.numpy()[:1].view(np.float32), both.numpy()[:1].reshape(())])
    with pytest.raises(teal.Closed, match="tensor is released"):
        mlp(rows, out=released)
    with pytest.raises(teal.Closed, match="tensor is released"):
        mlp(released)
    assert mlp(rows, out=good)[0] is good


def test_memory_of_another_host(host: teal.Host, mlp: teal.Model, mlp_path: Path) -> None:
    with teal.Host() as elsewhere:
        foreign, out = elsewhere.empty((1, 64)), elsewhere.empty((1, 8))
        before = mlp.statistics().copies_in
        mlp(foreign)
        mlp(foreign.numpy())
        assert mlp.statistics().copies_in == before + 2
        with pytest.raises(teal.InvalidArgument, match="not packed memory of this model's host"):
            mlp(foreign, out=out)
    view = foreign.numpy()
    view[...] = 1  # its host is gone, its pages are not
    expected = mlp(np.ones((1, 64), np.float32))[0].numpy()
    assert np.array_equal(mlp(foreign)[0].numpy(), expected)
    second = teal.connect(host.address)  # another client of the same host has regions of its own
    with second, pytest.raises(teal.InvalidArgument, match="not packed memory"):
        mlp(foreign, out=second.empty((1, 8)))


def test_memory_of_another_pool(mlp_path: Path) -> None:
    """Workers of one pool do not map what belongs to another one."""
    with teal.Host(pools={"aside": {}}) as own:
        model = own.load("mlp", mlp_path, threads=1, pool="aside")
        x = own.empty((1, 64))
        model(x)
        assert model.statistics().copies_in == 1
        with pytest.raises(teal.InvalidArgument, match="not packed memory of this model's host and pool"):
            model(x, out=own.empty((1, 8)))
        rows = model.new_inputs(batch=2)
        y = model(np.ones((1, 64), np.float32))[0]
        before = model.statistics().copies_in
        (name,) = rows
        model(rows[name].numpy()[:1], out=y)
        assert model.statistics().copies_in == before


def test_after_close(mlp_path: Path) -> None:
    with teal.Host() as own:
        model = own.load("mlp", mlp_path, threads=1)
        x, y = own.empty((1, 64)), own.empty((1, 8))
        call = model.prepare(x, out=y)
        call()
        future = model.submit(x)
        future.result()
    for use in (lambda: model(x), lambda: model(x, out=y), lambda: model.submit(x), call):
        with pytest.raises(teal.Closed):
            use()
    assert y.numpy().shape == (1, 8)


# ---- at once -------------------------------------------------------------------------------------------------------


def test_memory_that_is_written_is_busy(host: teal.Host, load: Any, double: teal.Model, gate: Path) -> None:
    gated = load("toy_kernels:gated_double")
    x, y, z = filled(host, [1, 2]), host.empty((2,)), host.empty((2,))
    future = gated.submit(x, str(gate), out=y)
    running(gate)
    with pytest.raises(teal.Busy, match=r"\$\.outputs\[0\]: a request that is still out uses this memory"):
        double.submit(z, out=y)
    with pytest.raises(teal.Busy, match=r"\$\.outputs\[0\]: a request that is still out uses this memory"):
        double(z, out=x)
    with pytest.raises(teal.Busy, match=r"\$\.inputs\[0\]: a request that is still out writes this memory"):
        double(y)
    with pytest.raises(teal.Busy):
        double.prepare(y)()
    waiting = double.submit(x, out=z)  # both only read it
    gate.touch()
    assert future.result()[0].numpy().tolist() == [2, 4]
    assert waiting.result()[0].numpy().tolist() == [2, 4]
    assert double(y)[0].numpy().tolist() == [4, 8]


def test_stages_after_one_another(host: teal.Host, load: Any, double: teal.Model, gate: Path, counted: Any) -> None:
    """With after= the next stage may read what the one before still writes: it runs when that is done."""
    gated = load("toy_kernels:gated_double")
    x, y, z = filled(host, [1, 2]), host.empty((2,)), host.empty((2,))
    before = counted(double).copies_in
    first = gated.submit(x, str(gate), out=y)
    running(gate)
    second = double.submit(y, out=z, after=first)
    third = double.submit(z, out=y, after=second)  # and write where the first one wrote
    with pytest.raises(teal.Busy):
        double.submit(x, out=z)
    gate.touch()
    assert third.result()[0] is y
    assert (z.numpy().tolist(), y.numpy().tolist()) == ([4, 8], [8, 16])
    assert second.result()[0] is z
    assert counted(double).copies_in == before


def test_new_inputs_that_another_request_writes(host: teal.Host, load: Any, double: teal.Model, gate: Path) -> None:
    gated = load("toy_kernels:gated_double")
    onward = double.new_inputs(n=2)
    future = gated.submit(filled(host, [1, 2]), str(gate), out=onward["x"])
    running(gate)
    with pytest.raises(teal.Busy, match=r"\$\.inputs\[0\]"):
        double(**onward)
    gate.touch()
    future.result()
    assert double(**onward)[0].numpy().tolist() == [4, 8]


def test_cancelled_memory_stays_busy_until_the_kernel_is_through(
    host: teal.Host, load: Any, double: teal.Model, gate: Path
) -> None:
    gated = load("toy_kernels:gated_double")
    x, y = filled(host, [1, 2]), host.empty((2,))
    future = gated.submit(x, str(gate), out=y)
    running(gate)
    assert future.cancel()
    with pytest.raises(teal.Cancelled):
        future.result()
    with pytest.raises(teal.Busy):
        double.submit(x, out=y)
    places = (x.address, y.address)
    del x, y, future
    gc.collect()
    fresh = [host.empty((2,)) for _ in range(50)]  # nobody gets it while the kernel may write it
    assert not set(places) & {tensor.address for tensor in fresh}
    before = fresh[0].numpy().copy()
    gate.touch()
    assert double(filled(host, [5, 6]))[0].numpy().tolist() == [10, 12]
    assert all(np.array_equal(tensor.numpy(), before) for tensor in fresh)


def test_an_expired_request_keeps_its_memory(host: teal.Host, load: Any, gate: Path) -> None:
    gated = load("toy_kernels:gated_double")
    x, y = filled(host, [1, 2]), host.empty((2,))
    call = gated.prepare(x, str(gate), out=y, deadline=0.05)
    with pytest.raises(teal.DeadlineExceeded):
        call()
    assert not y.released
    address = y.address
    del x, y, call
    gc.collect()
    assert address not in {host.empty((2,)).address for _ in range(50)}
    gate.touch()


# ---- nothing is left -----------------------------------------------------------------------------------------------


def test_everything_goes_back(host: teal.Host, mlp_path: Path) -> None:
    gc.collect()
    core = core_of(host)
    before, loans = (core.bytes_used, core.slots_out), memory.leaks()
    model = host.load("passing", mlp_path, threads=1)
    for _ in range(3):
        tensors = [host.empty((n, 64)) for n in range(1, 6)]
        outs = [host.empty((n, 8)) for n in range(1, 6)]
        futures = [model.submit(x, out=y) for x, y in zip(tensors, outs, strict=True)]
        calls = [model.prepare(x.numpy()[:1]) for x in tensors]
        kept = [call()[0].numpy() for call in calls] + [future.result()[0] for future in futures]
        del tensors, outs, futures, calls, kept
    host.unload("passing")
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None
    assert memory.leaks() == loans
    assert core.bytes_used <= before[0]
    assert core.slots_out <= before[1]


def test_places_that_are_gone_are_forgotten(host: teal.Host, double: teal.Model) -> None:
    """Many different tensors, each called with once: their memory and lines do not pile up."""
    kept = []
    double(host.empty((1,)))
    lines = core_of(host).slots_out
    for n in range(200):
        double(host.empty((n + 1,)))
        if n % 10 == 0:
            kept.append(host.empty((1,)))  # so that places differ
    assert core_of(host).slots_out <= lines + 20
    kept.clear()
    tensors = [host.empty((4,)) for _ in range(300)]
    for tensor in tensors:
        double(tensor)
    assert core_of(host).slots_out <= lines + 80
    assert all(double(tensor)[0].numpy().tolist() == [0] * 4 for tensor in tensors)


def test_regions_go_back_though_slots_knew_them(mlp_path: Path) -> None:
    """A tensor's region is given back; a new one, with another number, is bound anew."""
    with teal.Host(limits=teal.Limits(bytes=3 << 20)) as own:
        model = own.load("double", "toy_kernels:pure_double")
        for n in (300_000, 400_000, 350_000, 450_000):
            x = own.empty((n,))
            y = own.empty((n,)) if n < 350_000 else None
            x.numpy()[...] = n
            assert model(x.numpy()[:1000], out=None if y is None else y.numpy()[:1000])[0].numpy()[0] == 2 * n
            del x, y


def test_a_forked_child(host: teal.Host, double: teal.Model) -> None:
    x, y = filled(host, [1, 2]), host.empty((2,))
    double(x, out=y)
    call = double.prepare(x, out=y)
    ours, theirs = os.pipe()
    pid = os.fork()
    if pid == 0:
        said = []
        for use in (lambda: double(x), lambda: double(x, out=y), lambda: double.submit(x), call):
            try:
                use()
                said.append("nothing")
            except teal.Closed as error:
                said.append("closed" if "reopen after fork" in str(error) else str(error))
            except BaseException as error:
                said.append(repr(error))
        said.append(str(y.numpy().tolist()))
        os.write(theirs, "|".join(said).encode())
        os._exit(0)
    os.close(theirs)
    assert os.waitpid(pid, 0)[1] == 0
    with open(ours, "rb") as file:
        assert file.read().decode() == "closed|closed|closed|closed|[2.0, 4.0]"
    assert call()[0].numpy().tolist() == [2, 4]


# ---- wrong types ---------------------------------------------------------------------------------------------------


def test_wrong_types_are_named(mlp: teal.Model) -> None:
    rows = np.ones((1, 64), np.float32)
    for call, complaint in (
        (lambda: mlp(rows, deadline="a"), r"\$\.deadline: 'a', expected seconds from now"),
        (lambda: mlp(rows, deadline=[1.0]), r"\$\.deadline"),
        (lambda: mlp(rows, deadline=np.ones(2)), r"\$\.deadline"),
        (lambda: mlp.submit(rows, deadline=object()), r"\$\.deadline"),
        (lambda: mlp.prepare(rows, deadline="a"), r"\$\.deadline"),
        (lambda: mlp(rows, deadline=float("nan")), r"\$\.deadline: nan"),
        (lambda: mlp(rows, priority="x"), r"\$\.priority: 'x', expected a whole number"),
        (lambda: mlp.prepare(rows, priority=1.5), r"\$\.priority: 1.5"),
        (lambda: mlp({1, 2}), r"\$\.inputs\[0\]: set is not an array"),
        (lambda: mlp(iter([1])), "is not an array"),
        (lambda: mlp(None), "is missing"),
        (lambda: mlp({1: rows}), "keys are not all names"),
        (lambda: mlp.submit(rows).result("soon"), r"\$\.timeout: 'soon', expected seconds"),
        (lambda: mlp.submit(rows).result(float("nan")), r"\$\.timeout"),
        (lambda: mlp.submit(rows).add_done_callback(3), r"\$\.callback: 3, expected a function"),
    ):
        with pytest.raises(teal.InvalidArgument, match=complaint):
            call()
    assert mlp(rows)[0].shape == (1, 8)
