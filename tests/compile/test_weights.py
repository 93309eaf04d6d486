"""Weights lie in sealed memory once, are shared, and are never stale."""

from __future__ import annotations

import copy
import gc
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import teal
import teal.compile

Compile = Callable[..., Any]
same = torch.testing.assert_close


def pss(pid: int | str = "self") -> int:
    """Bytes that a process takes, shared pages counted by their share."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return int(re.search(r"^Pss:\s+(\d+) kB", text, re.M)[1]) * 1024  # type: ignore[index]


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 4)).eval()


def by_optimizer(net: nn.Sequential) -> None:
    net.train()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
    with torch.enable_grad():
        net(torch.randn(8, 16)).square().sum().backward()
    optimizer.step()
    net.eval()


def by_numpy(net: nn.Sequential) -> None:
    net[0].weight.detach().numpy()[0, 0] = 5


def by_state(net: nn.Sequential) -> None:
    net.load_state_dict({name: value + 1 for name, value in net.state_dict().items()})


@pytest.mark.parametrize(
    "change",
    [
        by_optimizer,
        by_state,
        by_numpy,
        pytest.param(lambda net: setattr(net[3].weight, "data", torch.ones(4, 32)), id="data"),
        pytest.param(lambda net: net[3].bias.data.add_(1), id="data in place"),
        pytest.param(lambda net: net[1].running_mean.add_(1), id="buffer"),
        pytest.param(lambda net: setattr(net[0], "weight", nn.Parameter(torch.ones(32, 16))), id="another parameter"),
    ],
)
def test_changed_weights_are_seen(compiled: Compile, change: Callable[[nn.Module], Any]) -> None:
    net, x = model(), torch.randn(8, 16)
    fast = compiled(net)
    with torch.no_grad():
        same(fast(x), net(x))
        for _ in range(2):
            change(net)
            same(fast(x), net(x))
            same(fast(x), net(x))


def test_one_copy_for_any_number(compiled: Compile) -> None:
    """Whoever comes later reads where the weights lie in the same file, which others have read before."""
    net, x = model(), torch.randn(8, 16)
    before = teal.compile.statistics()
    nets = [copy.deepcopy(net) for _ in range(4)]
    fast = [compiled(each, name="shared") for each in nets]
    with torch.no_grad():
        for each in fast:
            same(each(x), net(x))
    after = teal.compile.statistics()
    assert (after.loaded - before.loaded, after.shared - before.shared) == (1, 3)


def test_old_weights_are_unloaded(compiled: Compile, host: teal.Host) -> None:
    net, x = model(), torch.randn(8, 16)
    fast = compiled(net, name="old")
    with torch.no_grad():
        for _ in range(3):
            fast(x)
            by_state(net)
        fast(x)
    waited(lambda: [info.name for info in host.models() if info.name.startswith("old-")], 1)
    del fast, net
    torch._dynamo.reset()
    gc.collect()
    waited(lambda: [info.name for info in host.models() if info.name.startswith("old-")], 0)


def waited(found: Callable[[], list[Any]], count: int) -> None:
    """Until so many are there: they go in the background."""
    until = time.monotonic() + 20
    while len(found()) != count:
        assert time.monotonic() < until, found()
        time.sleep(0.01)


def test_the_module_stays_what_it_was(compiled: Compile, tmp_path: Path) -> None:
    net, x = model(), torch.randn(8, 16)
    parameters = list(net.parameters())
    before = {name: value.clone() for name, value in net.state_dict().items()}
    fast = compiled(net)
    with torch.no_grad():
        fast(x)
    assert all(a is b for a, b in zip(parameters, net.parameters(), strict=True))
    assert all(parameter.requires_grad and parameter.is_leaf for parameter in parameters)
    same(net.state_dict(), before)
    torch.save(net.state_dict(), tmp_path / "state.pt")
    same(torch.load(tmp_path / "state.pt"), before)
    same(copy.deepcopy(net).state_dict(), before)
    by_optimizer(net)  # it can still be trained
    assert not torch.equal(net[0].weight, before["0.weight"])


def test_tied_weights_and_shared_memory(compiled: Compile) -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(10, 6)
            self.head = nn.Linear(6, 10, bias=False)
            self.head.weight = self.table.weight
            self.flat = nn.Parameter(torch.randn(12))
            self.register_buffer("square", self.flat.detach()[2:].view(2, 5)[:, :4], persistent=False)
            self.register_buffer("wide", torch.randn(1, 6).expand(3, 6), persistent=False)

        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            return self.head(self.table(rows) + self.wide.sum(0)) + self.flat.sum() + self.square.sum()

    net, rows = Tied().eval(), torch.tensor([1, 2])
    fast = compiled(net)
    with torch.no_grad():
        same(fast(rows), net(rows))
        net.flat.add_(1)  # shows in `square` too
        same(fast(rows), net(rows))
        net.table.weight.mul_(2)
        same(fast(rows), net(rows))


def test_what_others_show_stays(compiled: Compile) -> None:
    before = teal.compile.statistics()
    net, x = model(), torch.randn(8, 16)
    view = net[0].weight.detach()
    fast = compiled(net)
    with torch.no_grad():
        fast(x)
        assert teal.compile.statistics().left_bytes - before.left_bytes == view.nbytes
        view.fill_(1)
        assert bool((net[0].weight == 1).all())
        same(fast(x), net(x))


def test_left_where_they_are(compiled: Compile) -> None:
    before = teal.compile.statistics()
    net, x = model(), torch.randn(8, 16)
    addresses = [parameter.data_ptr() for parameter in net.parameters()]
    fast = compiled(net, move=False)
    with torch.no_grad():
        same(fast(x), net(x))
        assert [parameter.data_ptr() for parameter in net.parameters()] == addresses
        by_state(net)
        same(fast(x), net(x))
    assert teal.compile.statistics().moved_bytes == before.moved_bytes


def test_layers_that_share_their_code(compiled: Compile) -> None:
    """One graph, several sets of weights."""
    before = teal.compile.statistics()
    layers = [nn.Linear(4, 4) for _ in range(3)]
    fast = [compiled(layer) for layer in layers]
    x = torch.randn(2, 4)
    with torch.no_grad():
        for _ in range(3):
            for layer, one in zip(layers, fast, strict=True):
                same(one(x), layer(x))
    assert teal.compile.statistics().loaded - before.loaded == 3


MEMORY = """
import sys, torch, teal, teal.compile
sys.path.insert(0, sys.argv[2])
from test_weights import pss
net = torch.nn.Sequential(*[torch.nn.Linear(2048, 2048, bias=False) for _ in range(12)]).eval()
torch.manual_seed(0)
with torch.no_grad():
    for parameter in net.parameters():
        parameter.normal_(0, 0.02)
    fast = torch.compile(net, backend="teal", options={"host": sys.argv[1], "compile": False, "fallback": "error"})
    x = torch.ones(1, 2048)
    before = pss()
    fast(x)
    assert torch.allclose(fast(x), net(x), atol=1e-5)
    after = pss()
numbers = teal.compile.statistics()
print(before, after, numbers.moved_bytes, numbers.loaded, flush=True)
input()
"""
SIZE = 12 * 2048 * 2048 * 4


def test_never_twice_the_memory(host: teal.Host) -> None:
    """Two processes and the worker hold one copy of 200 MB."""
    worker = host.statistics().workers[0].pid
    idle = pss(worker)
    command = [sys.executable, "-c", MEMORY, host.address, str(Path(__file__).parent)]
    kept = []
    try:
        for count in (1, 2):
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            kept.append(process)
            assert process.stdout is not None
            before, after, moved, loaded = map(int, process.stdout.readline().split())
            assert moved == SIZE
            assert loaded == (1 if count == 1 else 0)  # the second finds it resident
            assert after < before + SIZE // 4
        total = sum(pss(process.pid) for process in kept) + pss(worker) - idle
        assert total < 2 * SIZE + 500e6  # one copy, and two interpreters with torch in them, and torch in the worker
        assert total > SIZE
    finally:
        for process in kept:
            process.communicate("\n")
    waited(lambda: [info.name for info in host.models()], 0)
