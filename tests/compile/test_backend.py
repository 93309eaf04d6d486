"""torch.compile(model, backend="teal") gives what eager gives, whatever goes in and out."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import teal
import teal.compile
from teal.compile import hosts

Compile = Callable[..., Any]
same = torch.testing.assert_close


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.one, self.two = nn.Linear(64, 64), nn.Linear(64, 8)
        self.register_buffer("shift", torch.randn(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.two(torch.relu(self.one(x))) + self.shift


def grown(name: str, since: teal.compile.CompileStatistics) -> Any:
    return getattr(teal.compile.statistics(), name) - getattr(since, name)


def test_torch_finds_it_without_teal() -> None:
    program = "import sys, torch; print('teal' in torch._dynamo.list_backends(), 'teal' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "True False\n"


def test_the_changed_line(compiled: Compile) -> None:
    """Compiled by inductor in the worker."""
    before = teal.compile.statistics()
    model, x = Mlp().eval(), torch.randn(4, 64)
    fast = compiled(model, fullgraph=True, compile=True)
    with torch.no_grad():
        model.two.bias.zero_()
        same(fast(x), model(x))
        x += 1
        same(fast(x), model(x))
        model.two.bias.fill_(1)  # the same code, with other weights, of which those at first were uniform
        same(fast(x), model(x))
        for parameter in model.parameters():
            parameter.add_(0.1)
        same(fast(x), model(x))
    assert (grown("graphs", before), grown("loaded", before), grown("resident", before)) == (1, 3, 1)
    assert teal.compile.statistics().fallbacks == before.fallbacks


def test_results_last_as_long_as_they_are_held(compiled: Compile) -> None:
    before = teal.compile.statistics()
    model = Mlp().eval()
    fast = compiled(model)
    with torch.inference_mode():
        inputs = [torch.randn(2, 64) for _ in range(20)]
        held = [fast(x) for x in inputs]
        for x, y in zip(inputs, held, strict=True):
            same(y, model(x))
        assert grown("copies_out", before) == 12  # eight are shown in place
        del held, y
        fast(inputs[0])
        assert grown("copies_out", before) == 12


def test_a_part_of_a_result_keeps_it(compiled: Compile) -> None:
    fast = compiled(lambda x: x * 2)
    part = fast(torch.arange(8.0))[2:4]
    for _ in range(20):
        fast(torch.zeros(8))
    assert part.tolist() == [4, 6]


def test_threads(compiled: Compile) -> None:
    model = Mlp().eval()
    fast = compiled(model)
    with torch.no_grad():
        fast(torch.zeros(3, 64))
    wrong: list[Any] = []

    def work(seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for _ in range(50):
                x = torch.randn(3, 64, generator=generator)
                if not torch.allclose(fast(x), model(x), atol=1e-6):
                    wrong.append(x)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize(
    "function",
    [
        pytest.param(lambda x: x.view(2, -1) + 0, id="plain"),
        pytest.param(lambda x: (x.t(), x * 2), id="view of an input"),
        pytest.param(lambda x: (x, x + 1), id="an input"),
        pytest.param(lambda x: (x * 2).t(), id="transposed"),
        pytest.param(lambda x: (x * 2)[:, ::2], id="with gaps"),
        pytest.param(lambda x: (x + 1).expand(3, 4, 6), id="expanded"),
        pytest.param(lambda x: {"a": x.sum(), "b": [x.shape[0], None, 1.5, True, x.mean(0)]}, id="nested"),
        pytest.param(lambda x: (lambda y: (y, y, y[0]))(x.exp()), id="the same twice"),
        pytest.param(lambda x: x.add_(1).mul(2), id="written to"),
        pytest.param(lambda x: x.to(torch.bfloat16) @ x.to(torch.bfloat16).t(), id="bfloat16"),
        pytest.param(lambda x: (x > 0, x.argmax(1), x.double(), x.half(), x[:0]), id="dtypes"),
        pytest.param(lambda x: torch.complex(x, -x).conj() * 2, id="complex"),
        pytest.param(lambda x: x / 0 + torch.tensor(float("nan")), id="nan"),
        pytest.param(lambda x: torch.arange(5) + 1, id="no inputs"),
        pytest.param(lambda x: x.var(1) + torch.tensor([1.0, 2.0, 3.0, 4.0]), id="constants"),
    ],
)
def test_whatever_comes_out(compiled: Compile, function: Callable[[torch.Tensor], Any]) -> None:
    given, expected = torch.randn(4, 6), None
    mine, theirs = given.clone(), given.clone()
    expected = function(theirs)
    fast = compiled(function, fullgraph=True)
    for _ in range(2):
        mine.copy_(given)
        result = fast(mine)
        same(result, expected, equal_nan=True)
        same(mine, theirs)
    flat = [torch.utils._pytree.tree_leaves(each) for each in (result, expected)]
    assert [type(a) for a in flat[0]] == [type(b) for b in flat[1]]


@pytest.mark.parametrize(
    "made",
    [
        pytest.param(lambda: torch.randn(4, 6).t(), id="transposed"),
        pytest.param(lambda: torch.randn(6, 8)[:, 1:5], id="a part"),
        pytest.param(lambda: torch.randn(1, 4).expand(6, 4), id="expanded"),
        pytest.param(lambda: torch.randn(6, 8)[::2, ::2].t().t(), id="with steps"),
        pytest.param(lambda: torch.zeros(0, 4), id="empty"),
    ],
)
def test_whatever_goes_in(compiled: Compile, made: Callable[[], torch.Tensor]) -> None:
    x = made()
    fast = compiled(lambda x: (x * 2 + 1, x.sum(0)), fullgraph=True)
    same(fast(x), (x * 2 + 1, x.sum(0)))


def test_channels_last_stays_so(compiled: Compile) -> None:
    model = nn.Conv2d(3, 8, 3).eval().to(memory_format=torch.channels_last)
    x = torch.randn(2, 3, 10, 10).to(memory_format=torch.channels_last)
    with torch.no_grad():
        result = compiled(model)(x)
        same(result, model(x))
        assert result.stride() == model(x).stride()


def test_shapes_and_dtypes_change(compiled: Compile, caplog: pytest.LogCaptureFixture) -> None:
    before = teal.compile.statistics()
    model = Mlp().eval()
    fast = compiled(model)
    with torch.no_grad(), caplog.at_level(logging.INFO, "teal.compile"):
        for batch in (2, 3, 5, 9, 2):
            x = torch.randn(batch, 64)
            same(fast(x), model(x))
        same(compiled(lambda x: x + 1)(torch.arange(3)), torch.arange(3) + 1)
    assert grown("dynamic", before) == 1  # the second size made the extent symbolic
    assert grown("graphs", before) == 3
    assert "symbolic extents" in caplog.text
    assert grown("recompiled", before) == 1
    assert "another one for code" in caplog.text
    assert grown("sealed_bytes", before) < 2 * sum(p.numel() * 4 for p in model.parameters())  # once for both graphs


def test_marked_dynamic(compiled: Compile) -> None:
    before = teal.compile.statistics()
    fast = compiled(lambda x: (x.flatten() * 2, x.shape[0] * 3))
    x = torch.randn(4, 3)
    torch._dynamo.mark_dynamic(x, 0)
    for rows in (4, 7, 3):
        x = x if rows == 4 else torch.randn(rows, 3)
        same(fast(x), (x.flatten() * 2, rows * 3))
    assert grown("graphs", before) == 1


def test_buckets(compiled: Compile) -> None:
    model = Mlp().eval()
    fast = compiled(model, dynamic=True, buckets=[4, 16])
    with torch.no_grad():
        for batch in (3, 4, 2, 16, 20, 5):
            x = torch.randn(batch, 64)
            result = fast(x)
            assert result.shape == (batch, 8)
            same(result, model(x))


def test_autocast(compiled: Compile) -> None:
    model, x = Mlp().eval(), torch.randn(4, 64)
    fast = compiled(model)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        result = fast(x)
        same(result, model(x))
        assert result.dtype == model(x).dtype
    with torch.no_grad():
        same(fast(x), model(x))


@pytest.mark.parametrize(
    ("function", "named"),
    [
        pytest.param(lambda x: x + torch.rand(3), "aten.rand", id="random numbers"),
        pytest.param(lambda x: nn.functional.dropout(x, 0.5), "dropout", id="dropout"),
    ],
)
def test_what_no_worker_can_run(
    compiled: Compile, caplog: pytest.LogCaptureFixture, function: Callable[[torch.Tensor], Any], named: str
) -> None:
    before = sum(teal.compile.statistics().fallbacks.values())
    torch.manual_seed(1)
    expected = function(torch.ones(3))
    torch.manual_seed(1)
    fast = compiled(function, fallback="eager")
    same(fast(torch.ones(3)), expected)
    fast(torch.ones(3))
    lines = [record for record in caplog.records if record.name == "teal.compile"]
    assert len(lines) == 1
    assert named in lines[0].message
    assert sum(teal.compile.statistics().fallbacks.values()) == before + 1
    with pytest.raises(Exception, match=named):
        compiled(function, fallback="error")(torch.ones(3))


def test_training_runs_here_and_says_so(compiled: Compile, caplog: pytest.LogCaptureFixture) -> None:
    model, x = Mlp(), torch.randn(4, 64)
    fast = compiled(model, fallback="eager")
    fast(x).sum().backward()
    assert model.one.weight.grad is not None
    assert "self.one.weight: requires a gradient" in caplog.text
    with torch.no_grad():  # and without gradients it is a kernel
        same(fast(x), model(x))


def test_dropout_says_how_to_turn_it_off(compiled: Compile, caplog: pytest.LogCaptureFixture) -> None:
    with torch.no_grad():
        compiled(torch.nn.Dropout(0.5), fallback="eager")(torch.ones(3))
    assert "model.eval() turns dropout off" in caplog.text


def test_extents_of_everything(compiled: Compile, caplog: pytest.LogCaptureFixture) -> None:
    """dynamic=True makes symbols of floats in the module too; sums of extents have an operator of their own."""
    net = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8), torch.nn.Dropout(0.5)).eval()
    fast = compiled(net, dynamic=True, fullgraph=True)

    def summed(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x.new_ones(torch.sym_sum([x.shape[0], y.shape[1], -1])) + x.sum() + y.sum()

    sums = compiled(summed, dynamic=True, fullgraph=True)
    with torch.no_grad():
        for rows in (2, 5):
            x, y = torch.randn(rows, 8), torch.randn(rows, rows + 1)
            same(fast(x), net(x))
            same(sums(x, y), summed(x, y))
    assert "cannot be non-integer" not in caplog.text


def test_an_operator_of_ones_own(compiled: Compile) -> None:
    @torch.library.custom_op("teal_tests::twice", mutates_args=())
    def twice(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    twice.register_fake(torch.empty_like)
    assert compiled(lambda x: twice(x) + 1, fallback="eager")(torch.ones(2)).tolist() == [3, 3]
    assert any("teal_tests.twice" in reason for reason in teal.compile.statistics().fallbacks)


def test_operators_that_compiled_code_does_not_reach(compiled: Compile) -> None:
    """Most of complex arithmetic: the compiler leaves it to the dispatcher, which a library does not reach."""
    x = torch.tensor([1 + 2j, 3 - 1j])
    assert compiled(lambda x: x * 7 + 1, compile=True, fallback="eager")(x).tolist() == (x * 7 + 1).tolist()
    assert any("compiled code has no way to call aten" in reason for reason in teal.compile.statistics().fallbacks)


def test_lazy_bits(compiled: Compile) -> None:
    x = torch.tensor([1 + 2j, 3 - 1j])
    fast = compiled(lambda x: x * 7 + 1, fallback="eager")
    for lazy in (x, x.conj(), torch._neg_view(x.real.contiguous()), x.conj().imag):
        assert fast(lazy).tolist() == (lazy * 7 + 1).tolist()
    assert any("is conjugated or negated by a bit" in reason for reason in teal.compile.statistics().fallbacks)
    assert compiled(lambda x: (x * 2).conj())(x).tolist() == (x * 2).conj().tolist()


def test_graph_breaks_are_named(compiled: Compile, caplog: pytest.LogCaptureFixture) -> None:
    def broken(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        torch._dynamo.graph_break()
        return y + 1

    same(compiled(broken)(torch.ones(3)), torch.full((3,), 3.0))
    assert any("graph break at" in record.message and "test_backend.py" in record.message for record in caplog.records)
    assert teal.compile.statistics().graph_breaks
    torch._dynamo.reset()
    with pytest.raises(torch._dynamo.exc.Unsupported):
        compiled(broken, fullgraph=True)(torch.ones(3))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"nonsense": 1}, "not options of backend"),
        ({"fallback": "maybe"}, "inductor, eager, error"),
        ({"threads": 0}, "1 to 1024"),
        ({"host": 3}, "the address of a host"),
        ({"precision": "int3"}, "fp32 or bf16"),
        ({"name": "a b"}, "expected 1 to 128 letters"),
        ({"buckets": 8}, "a list of sizes"),
        ({"timeout": 0}, "more than 0 and at most 86400"),
    ],
)
def test_options_are_checked(compiled: Compile, options: dict[str, Any], said: str) -> None:
    with pytest.raises(Exception, match=said):
        compiled(lambda x: x + 1, **options)(torch.ones(2))


def test_large_inputs_that_are_teals_stay_where_they_are(compiled: Compile, host: teal.Host) -> None:
    """Memory of the host and results of other graphs, whole, in part and transposed."""
    before = teal.compile.statistics()
    fast, other = compiled(lambda x: x * 2), compiled(lambda x, y: (x.t() + y, x.sum()))
    x = torch.from_dlpack(host.empty((256, 64)))
    x.fill_(3)
    found = hosts.find(host.address)
    mine = torch.from_dlpack(found.empty((256, 64)))
    mine.fill_(3)
    assert grown("in_place", before) == 0
    result = fast(x)  # of another client
    assert grown("in_place", before) == 0
    for _ in range(4):
        result = fast(mine)
        same(fast(fast(result)), torch.full((256, 64), 24.0))
    assert grown("in_place", before) == 12
    same(other(result[64:192], mine[64:192].t()), (torch.full((64, 128), 9.0), torch.tensor(6.0 * 64 * 128)))
    assert grown("in_place", before) == 14
    same(result, torch.full((256, 64), 6.0))


def test_a_failure_in_the_kernel_names_it(compiled: Compile) -> None:
    fast = compiled(lambda table, rows: table[rows])
    table = torch.randn(4, 2)
    same(fast(table, torch.tensor([1])), table[[1]])
    with pytest.raises(teal.KernelFailed, match="out of"):
        fast(table, torch.tensor([9]))
    same(fast(table, torch.tensor([3])), table[[3]])


def test_a_model_in_bfloat16(compiled: Compile) -> None:
    """Its numbers stay bfloat16 on the way and in the sealed memory."""
    before = teal.compile.statistics()
    model = Mlp().eval().bfloat16()
    fast = compiled(model, fullgraph=True)
    x = torch.randn(3, 64).bfloat16()
    with torch.inference_mode():
        for _ in range(2):
            result = fast(x)
            assert result.dtype == torch.bfloat16
            same(result, model(x), atol=2e-2, rtol=2e-2)
    assert grown("loaded", before) == 1
    assert grown("left_bytes", before) == 0


def test_bf16_on_request(compiled: Compile, caplog: pytest.LogCaptureFixture) -> None:
    """float32 in, float32 out, bfloat16 in between; where the CPU has no AMX it runs here, and that is said."""
    model = Mlp().eval()
    x = torch.randn(64, 64)
    before = sum(teal.compile.statistics().fallbacks.values())
    fast = compiled(model, precision="bf16", fallback="eager")
    with torch.inference_mode():
        result, wanted = fast(x), model(x)
    assert result.dtype == torch.float32
    same(result, wanted, atol=0.05 * float(wanted.abs().max()), rtol=0)
    fell = sum(teal.compile.statistics().fallbacks.values()) - before
    if torch.cpu._is_amx_tile_supported():
        assert fell == 0
        assert not torch.equal(result, wanted)
    else:
        assert fell == 1
        assert torch.equal(result, wanted)
        assert "bf16: torch computes float32 so on CPUs with AMX only" in caplog.text
