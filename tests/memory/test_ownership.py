"""docs/ownership.md: results stay right for as long as somebody looks at them, and not a byte longer."""

from __future__ import annotations

import gc
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import teal
from teal import memory


@pytest.fixture(scope="module")
def mlp(host: teal.Host, mlp_path: Path) -> teal.Model:
    return host.load("mlp", mlp_path, threads=1)


@pytest.fixture(scope="module")
def total(host: teal.Host) -> teal.Model:
    return host.load("sum", "builtin:sum")


def in_use(host: teal.Host) -> tuple[int, int]:
    session = host._connection.session("default").core
    return session.bytes_used, session.slots_out


def test_results_in_a_list_stay_right(total: teal.Model) -> None:
    """The program that docs/ownership.md opens with."""
    kept = [total(np.full(i % 7, i, np.float32))[0].numpy() for i in range(1000)]
    assert [float(result) for result in kept] == [i * (i % 7) for i in range(1000)]


def test_one_result_stays_right_while_others_come(mlp: teal.Model) -> None:
    random = np.random.default_rng(1)
    first = random.random((2, 64), np.float32)
    out = mlp(first)[0].numpy()
    before = out.copy()
    for _ in range(200):
        mlp(random.random((2, 64), np.float32))
    assert np.array_equal(out, before)
    assert np.array_equal(mlp(first)[0].numpy(), before)


def test_slots_are_used_again_once_nobody_looks(host: teal.Host, mlp: teal.Model) -> None:
    x = np.ones((5, 64), np.float32)
    address = mlp(x)[0].address
    assert mlp(x)[0].address == address  # the tensor before is gone
    held = mlp(x)[0]
    assert mlp(x)[0].address != held.address
    view = held.numpy()
    del held
    gc.collect()
    assert mlp(x)[0].address != view.__array_interface__["data"][0]
    used = in_use(host)
    for _ in range(500):
        mlp(x)
    assert in_use(host) == used


def test_outputs_of_one_call_share_a_slot(host: teal.Host, load: Any) -> None:
    model = load("toy_kernels:norms")
    x = np.ones((4, 3), np.float32)
    model(x)
    slots_before = in_use(host)[1]
    norm, mean = model(x)
    del norm
    gc.collect()
    other = model(2 * x)
    assert float(mean.numpy()) == 1
    assert float(other["mean"].numpy()) == 2
    del mean, other
    assert in_use(host)[1] <= slots_before + 1


# ---- new_inputs ----------------------------------------------------------------------------------------------------


def test_new_inputs_copy_nothing_and_keep_earlier_outputs(mlp: teal.Model, host: teal.Host, counted: Any) -> None:
    random = np.random.default_rng(2)
    x = mlp.new_inputs(batch=3)
    assert list(x) == [spec.name for spec in mlp.inputs]
    (name,) = x
    before = counted(mlp)
    kept, expected = [], []
    for _ in range(100):
        given = random.random((3, 64), np.float32)
        x[name].numpy()[...] = given
        kept.append(mlp(**x)[0])
        expected.append(given)
    after = counted(mlp)
    assert (after.copies_in, after.copies_out, after.bytes_copied) == (
        before.copies_in,
        before.copies_out,
        before.bytes_copied,
    )
    assert len({tensor.address for tensor in kept}) == 100
    for tensor, given in zip(kept, expected, strict=True):
        assert np.array_equal(tensor.numpy(), mlp(given)[0].numpy())
    used = in_use(host)
    kept.clear()
    del tensor
    for _ in range(300):  # nobody looks any more: the outputs there are do
        mlp(**x)
    assert in_use(host)[0] <= used[0]


def test_a_submitted_answer_is_kept_until_it_is_taken(total: teal.Model) -> None:
    """An answer that is there, but that nobody has asked for yet, is not overwritten by the next call either."""
    x = total.new_inputs(x=(4,))
    futures = []
    for i in range(20):
        x["x"].numpy()[...] = i
        futures.append(total.submit(**x))
        while not futures[-1].done():
            pass
    assert [float(future.result()[0].numpy()) for future in futures] == [4 * i for i in range(20)]


def test_submitted_answers_that_nobody_wants_are_let_go(host: teal.Host, total: teal.Model) -> None:
    x = total.new_inputs(x=(4,))
    for _ in range(50):
        total.submit(**x).done()
    total(**x)
    gc.collect()
    used = in_use(host)
    for _ in range(200):
        future = total.submit(**x)
        while not future.done():
            pass
    assert in_use(host)[0] <= used[0] + 4096


def test_threads_share_inputs(total: teal.Model) -> None:
    x = total.new_inputs(x=(4,))
    x["x"].numpy()[...] = 2
    failures: list[BaseException] = []

    def work() -> None:
        try:
            for _ in range(300):
                assert float(total(**x)[0].numpy()) == 8
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_an_output_in_place_is_its_input(load: Any) -> None:
    """identity says so in its signature: its output is the memory of its input, so a new input changes it."""
    model = load("builtin:identity")
    (output,) = model.outputs
    assert (output.like, output.in_place) == ("x", True)
    x = model.new_inputs(x=("int64", (3,)))
    x["x"].numpy()[...] = 1
    out = model(**x)[0]
    assert out.address == x["x"].address
    apart = model(np.full(3, 5))[0]
    model(np.full(3, 6))
    assert apart.numpy().tolist() == [5, 5, 5]
    del x
    gc.collect()
    assert out.numpy().tolist() == [1, 1, 1]


def test_inputs_may_be_mixed_with_arrays(load: Any) -> None:
    """Only the arrays are copied."""
    model = load("toy_kernels:add")
    x = model.new_inputs(x=("float64", (2,)), y=("float64", (2,)))
    x["x"].numpy()[...] = 1
    x["y"].numpy()[...] = 2
    before = model.statistics().copies_in
    assert model(**x)[0].numpy().tolist() == [3, 3]
    assert model.statistics().copies_in == before
    assert model(x=x["x"], y=np.full(2, 5.0))[0].numpy().tolist() == [6, 6]
    assert model(x=x["x"])[0].numpy().tolist() == [11, 11]
    assert model(x=x["y"], y=x["x"])[0].numpy().tolist() == [3, 3]
    assert model.statistics().copies_in == before + 1


def test_inputs_of_another_model_or_version(host: teal.Host, load: Any) -> None:
    one, two = load("toy_kernels:double"), load("toy_kernels:echo")
    x = one.new_inputs(x=("int64", (2,)))
    x["x"].numpy()[...] = 4
    before = two.statistics().copies_in
    assert one(**x)[0].numpy().tolist() == [8, 8]
    assert two(**x)[0].numpy().tolist() == [4, 4]
    assert two.statistics().copies_in == before
    host.load("numbered", "toy_kernels:first", version=1)
    host.load("numbered", "toy_kernels:second", version=2)
    pinned, current = host.model("numbered", version=1), host.model("numbered")
    x = pinned.new_inputs(x=("int64", ()))
    assert (int(pinned(**x)[0].numpy()), int(current(**x)[0].numpy())) == (1, 2)


def test_inputs_of_another_host_are_copied(load: Any) -> None:
    one = load("toy_kernels:first")
    with teal.Host() as elsewhere:
        for number in range(one._index + 1):  # so that both have the same index
            two = elsewhere.load(f"n{number}", "toy_kernels:second")
        assert two._index == one._index
        x = one.new_inputs(x=("int64", ()))
        assert (int(one(**x)[0].numpy()), int(two(**x)[0].numpy())) == (1, 2)
        assert two.statistics().copies_in == 1


def test_new_inputs_refuses(host: teal.Host, mlp: teal.Model, load: Any) -> None:
    free = load("toy_kernels:double")
    text = load("toy_kernels:gate")
    norms = load("toy_kernels:norms")
    for make, complaint in (
        (mlp.new_inputs, r"\$\.inputs\[0\]\.shape: .*give batch="),
        (lambda: mlp.new_inputs(batch=1, rows=2), r"\['rows'\]: neither dimensions nor inputs"),
        (lambda: mlp.new_inputs(batch=-1), "extents of 0 to"),
        (lambda: mlp.new_inputs(batch=2.5), "2.5, expected a whole number"),
        (lambda: mlp.new_inputs(batch="3"), "'3', expected a whole number"),
        (lambda: mlp.new_inputs(batch=1 << 70), "extents of 0 to"),
        (lambda: mlp.new_inputs(batch=1 << 60), "2\\^63 bytes"),
        (lambda: norms.new_inputs(x=(2, 4)), r"\$\.inputs\[0\]\.shape\[1\]: 4, input 'x' expects 3"),
        (lambda: norms.new_inputs(x=(2,)), "rank 1"),
        (lambda: norms.new_inputs(x=("float64", (2, 3))), "float64, input 'x' expects float32"),
        (free.new_inputs, "give its shape, as in x="),
        (lambda: free.new_inputs(x=5), "give its shape"),
        (lambda: free.new_inputs(x=3.5), r"\$\.inputs\[0\]: 3.5: give its shape, as in x="),
        (lambda: free.new_inputs(x="ab"), "'ab': give its shape"),
        (lambda: free.new_inputs(x={"a": 1}), "give its shape"),
        (lambda: free.new_inputs(x=("float32", 3)), "give its shape"),
        (lambda: free.new_inputs(x=[2.5]), "2.5, expected a whole number"),
        (lambda: norms.new_inputs(n=2, x=7), "7: give its shape"),
        (lambda: free.new_inputs(x=(1, 2)), "give its dtype too"),
        (lambda: free.new_inputs(x=("float99", (1,))), "float99"),
        (lambda: free.new_inputs(x=("BYTES", (1,))), "strings cannot be filled in place"),
        (lambda: text.new_inputs(path=("BYTES", ()), tag=("int64", ())), "strings cannot be filled in place"),
    ):
        with pytest.raises(teal.InvalidArgument, match=complaint):
            make()
    with pytest.raises(teal.QuotaExceeded, match=r"this client has .* of its"):
        mlp.new_inputs(batch=1 << 36)
    assert norms.new_inputs(n=2)["x"].shape == norms.new_inputs(x=(2, 3))["x"].shape == (2, 3)


# ---- prepare -------------------------------------------------------------------------------------------------------


def test_a_prepared_call_overwrites_its_outputs(total: teal.Model, counted: Any) -> None:
    x = total.new_inputs(x=(3,))
    call = total.prepare(**x)
    x["x"].numpy()[...] = 1
    out = call()
    view = out["sum"].numpy()
    assert float(view) == 3
    x["x"].numpy()[...] = 2
    assert call() is out
    assert float(view) == 6
    before = counted(total)
    for _ in range(50):
        call()
    after = counted(total)
    assert (after.copies_in, after.copies_out) == (before.copies_in, before.copies_out)
    assert after.requests - before.requests == 50
    assert float(total(**x)[0].numpy()) == 6  # has outputs of its own
    x["x"].numpy()[...] = 5
    assert float(total(**x)[0].numpy()) == 15
    assert float(view) == 6


def test_prepared_calls_on_the_same_inputs(total: teal.Model) -> None:
    x = total.new_inputs(x=(2,))
    one, two = total.prepare(**x), total.prepare(**x)
    x["x"].numpy()[...] = 1
    first = one()
    x["x"].numpy()[...] = 4
    second = two()
    assert (float(first[0].numpy()), float(second[0].numpy())) == (2, 8)


def test_prepare_with_arrays_copies_once(total: teal.Model) -> None:
    before = total.statistics().copies_in
    call = total.prepare(np.arange(4, dtype=np.float32))
    assert [float(call()[0].numpy()) for _ in range(10)] == [6] * 10
    assert total.statistics().copies_in == before + 1


def test_a_prepared_call_of_unknown_size(load: Any) -> None:
    model = load("toy_kernels:echo")
    x = model.new_inputs(x=("float64", (4,)))
    call = model.prepare(**x)
    for value in (1, 2):
        x["x"].numpy()[...] = value
        assert call()["output"].numpy().tolist() == [value] * 4


def test_a_prepared_call_that_fails_and_one_that_comes_too_late(load: Any) -> None:
    call = load("builtin:sleep").prepare(-1)
    for _ in range(3):
        with pytest.raises(teal.KernelFailed, match="-1 microseconds, expected 0 to 60000000"):
            call()
    late = load("builtin:sleep").prepare(200, deadline=0.0)
    with pytest.raises(teal.DeadlineExceeded):
        late()


# ---- nothing is left -----------------------------------------------------------------------------------------------


def test_everything_goes_back(host: teal.Host, mlp_path: Path) -> None:
    gc.collect()
    before, loans = in_use(host), memory.leaks()
    model = host.load("passing", mlp_path)
    x = model.new_inputs(batch=2)
    call = model.prepare(**x)
    kept = [model(np.ones((n, 64), np.float32)) for n in range(1, 5)]
    future = model.submit(**x)
    views = [call()[0].numpy(), future.result()[0].numpy(), *(out[0].numpy() for out in kept)]
    assert len(memory.leaks()) > len(loans)
    host.unload("passing")
    del x, call, kept, future, views, model
    gc.collect()
    assert memory.leaks() == loans
    now = in_use(host)
    assert now[0] <= before[0]
    assert now[1] <= before[1]
