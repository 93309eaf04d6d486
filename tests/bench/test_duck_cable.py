"""Two network namespaces and a cable between them: made, measured over, and gone again; or it is said why not."""

from __future__ import annotations

import os
import subprocess
from array import array
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

import teal
from teal import _core
from teal.bench.duck import cable, inputs, remote
from teal.bench.duck.stage import Stage
from teal.bench.report import Report
from teal.duck import cc


@pytest.fixture
def made() -> cable.Cable:
    if os.geteuid() != 0:
        pytest.skip("needs root, to make network namespaces in this very process")
    return cable.Cable()


def test_it_is_made_and_removed(made: cable.Cable) -> None:
    try:
        with made:
            for name in (made.near, made.far):
                assert Path(name).exists()
            ping = ["ip", "-n", Path(made.near).name, "route", "get", cable.DUCK]
            assert "cable1" in subprocess.run(ping, capture_output=True, text=True, check=True, timeout=20).stdout
    except cable.NoCable as error:
        pytest.skip(str(error))
    assert not Path(made.near).exists()
    assert not Path(made.far).exists()


def test_what_fails_half_way_leaves_nothing(made: cable.Cable, monkeypatch: pytest.MonkeyPatch) -> None:
    run = cable.run

    def failing(*words: str) -> None:
        if "link" in words:
            raise cable.NoCable("no veth here")
        run(*words)

    monkeypatch.setattr(cable, "run", failing)
    with pytest.raises(cable.NoCable), made:
        pass
    assert not Path(made.near).exists()
    assert not Path(made.far).exists()


def test_a_command_that_fails_says_so() -> None:
    with pytest.raises(cable.NoCable, match="netns"):
        cable.run("ip", "netns", "del", f"nobody-{os.getpid()}")
    with pytest.raises(cable.NoCable, match="no-such-program"):
        cable.run("no-such-program")


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_calls_and_blobs_cross_it(tmp_path: Path) -> None:
    first, second, *_ = sorted(os.sched_getaffinity(0))
    program = str(tmp_path / "echo.elf")
    try:
        cc.compile_program([Path(cable.__file__).with_name("echo.c")], Path(program), abi="teal", level="3")
    except teal.NotFound as error:
        pytest.skip(str(error))
    try:
        echo = cable.measured("echo", program=program, blocks=2, calls=20, nbytes=64, cores=[first, second])
        blob = cable.measured("blob", bytes=1 << 20, times=2, client_core=first, duck_core=second)
    except cable.NoCable as error:
        pytest.skip(str(error))
    assert set(echo) == {"bare", "call, sealed", "bare, loop", "call by the loop, sealed"}
    assert [len(block) for block in echo["bare"]] == [20, 20]
    assert [len(block) for block in echo["call by the loop, sealed"]] == [20, 20]
    assert set(blob) == {"bare UDP", "bare TCP", "UDP, sealed", "TCP, sealed"}
    assert all(rate > 0 for (rates,) in blob.values() for rate in rates)


def test_a_namespace_that_is_none() -> None:
    with pytest.raises(ValueError, match="network namespace /nowhere"):
        _core.measure_duck_blob(bytes=1 << 20, times=1, far="/nowhere")


def made_stage(promises: dict[str, Any]) -> Any:
    cores, plan = SimpleNamespace(client=0, worker=1), SimpleNamespace(blocks=2, fast=2, large=2)
    programs = {"echo": "echo.elf"}
    return SimpleNamespace(
        report=Report("duck", promises), cores=cores, plan=plan, programs=programs, say=lambda _: None
    )


def test_rows_and_the_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = {"bare": 10_000, "call, sealed": 12_000, "bare, loop": 10_000, "call by the loop, sealed": 13_000}
    found = {name: [array("q", [each] * 3)] * 2 for name, each in rows.items()}
    monkeypatch.setattr(cable, "measured", lambda *_, **__: found)
    stage = made_stage(remote.PROMISES)
    remote._cable(cast(Stage, stage))
    (bar,) = stage.report.bars
    assert (bar.id, bar.value, bar.ok) == ("duck.call.udp.veth.vs_bare_echo", 1.2, True)
    assert len(stage.report.rows) == 4
    found["call, sealed"] = [array("q")] * 2  # boxes without libcrypto
    stage = made_stage(remote.PROMISES)
    remote._cable(cast(Stage, stage))
    assert stage.report.bars[0].value == 1.3


def test_without_a_cable_it_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def no(*_: object, **__: object) -> None:
        raise cable.NoCable("the system does not let us")

    monkeypatch.setattr(cable, "measured", no)
    stage = made_stage(remote.PROMISES)
    remote._cable(cast(Stage, stage))
    inputs._cable(cast(Stage, stage))
    assert [bar.note for bar in stage.report.bars] == ["the system does not let us"]
    assert [row.note for row in stage.report.rows] == ["the system does not let us"] * 2
