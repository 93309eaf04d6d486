"""Ducks on a Ray cluster of two nodes of this machine: placed, called, killed, started again, joined, taken away."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import teal
from teal import cluster
from teal.duck import cc
from teal.duck.key import make_key

ray = pytest.importorskip("ray", reason="no ray: pip install 'teal-runtime[cluster]'")

PROGRAM = """
#include <duck.h>
int64_t duck_call(const duck_t *duck, const void *args, uint64_t bytes, uint32_t core) {
    (void)core;
    for (uint64_t i = 0; i < bytes; ++i) ((uint8_t *)duck->ob)[i] = ((const uint8_t *)args)[i] + 1;
    return (int64_t)bytes;
}
"""
NODE: dict[str, Any] = {"num_cpus": 1, "object_store_memory": 80 << 20}


@pytest.fixture
def nodes() -> Iterator[Any]:
    from ray.cluster_utils import Cluster

    found = Cluster(initialize_head=True, head_node_args=NODE | {"include_dashboard": False})
    found.add_node(**NODE)
    try:
        yield found
    finally:
        found.shutdown()


def until(truth: Callable[[], Any], what: str) -> Any:
    end = time.monotonic() + 60
    while not (found := truth()):
        assert time.monotonic() < end, f"waited 60 s in vain: {what}"
        time.sleep(0.2)
    return found


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


@pytest.mark.slow
def test_a_duck_on_every_node(nodes: Any, tmp_path: Path) -> None:
    source, program = tmp_path / "add.c", tmp_path / "add.elf"
    source.write_text(PROGRAM)
    cc.compile_program(source, program)
    key, name = make_key(), f"t{os.getpid()}"
    nests = cluster.up(nodes.address, name=name, key=key)
    assert [nest.error for nest in nests] == ["", ""]
    assert len({nest.node for nest in nests}) == 2
    for nest in nests:
        with teal.Duck(nest.address, key=key) as duck, duck.open(program) as session:
            assert bytes(session.call(b"abc")) == b"bcd"
    again = cluster.up(nodes.address, name=name, key=key)  # there is nothing to do
    assert [(nest.address, nest.pid) for nest in again] == [(nest.address, nest.pid) for nest in nests]

    os.kill(nests[0].pid, signal.SIGKILL)
    with cluster.Cluster(nodes.address, name) as ducks:

        def replaced() -> cluster.Nest | None:
            nest = ducks.nests(timeout=5)[0]
            return nest if nest.address and nest.pid != nests[0].pid else None

        nest = until(replaced, "Ray to start the duck again")
        assert nest.restarted
        with teal.Duck(nest.address, key=key) as duck, duck.open(program) as session:
            assert bytes(session.call(b"abc")) == b"bcd"

    nodes.add_node(**NODE)
    nests = cluster.up(nodes.address, name=name, key=key)
    assert len({nest.node for nest in nests if nest.address}) == 3
    with pytest.raises(teal.QuotaExceeded, match="at most one a node"):
        cluster.up(nodes.address, name=name, key=key, count=9)
    assert cluster.down(nodes.address, name=name) == 3
    until(lambda: all(gone(nest.pid) for nest in nests), "the ducks to end")
    with cluster.Cluster(nodes.address, name) as ducks, pytest.raises(teal.NotFound, match="has no ducks"):
        ducks.nests()


def test_names_are_checked() -> None:
    with pytest.raises(teal.InvalidArgument, match="cluster name"):
        cluster.up("127.0.0.1:1", name="no spaces")
