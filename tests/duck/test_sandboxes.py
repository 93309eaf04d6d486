"""The back ends: the same program in a process and in a guest, side by side in one duck."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from duck_numbers import number

import teal
from teal.duck import Server
from teal.duck.selftest import selftest
from teal.duck.vitals import vitals
from teal.duck.yards import SANDBOXES, kvm_missing


@pytest.fixture(params=list(SANDBOXES))
def sandbox(request: pytest.FixtureRequest) -> str:
    kind = str(request.param)
    if kind == "kvm" and (why := kvm_missing()):
        pytest.skip(why)
    return kind


def test_a_session_in_each(duck: teal.Duck, program: Path, sandbox: str) -> None:
    with duck.open(program, sandbox=sandbox, cores=2, timeout="2s") as session:
        assert session.sandbox == sandbox
        assert [number(session.call(b"c")) for _ in range(3)] == [1, 2, 3]
        assert number(session.call(b"m")) == 2
        shared = duck.empty(1 << 16)
        shared.numpy()[:] = 1
        session.map(shared)
        assert number(session.call(b"s")) == 1 << 16
        with pytest.raises(teal.PeerDied, match="SIGSEGV"):
            session.call(b"x")
        assert number(session.call(b"c")) == 1
        assert number(session.call(b"s")) == 1 << 16


def test_side_by_side(duck: teal.Duck, program: Path) -> None:
    if why := kvm_missing():
        with pytest.raises(teal.NotFound, match="needs none"):
            duck.open(program, sandbox="kvm")
        pytest.skip(why)
    with duck.open(program, sandbox="kvm") as guest, duck.open(program) as process:
        assert number(guest.call(b"c")) == number(process.call(b"c")) == 1
        assert {guard["sandbox"] for guard in duck.info()["guards"]} == {"kvm", "process"}


def test_the_selftest_runs_in_each(server: Server) -> None:
    results = selftest(server)
    failed = [result for result in results if result.outcome == "FAIL"]
    assert not failed
    passed = {result.name.partition(":")[0] for result in results if result.outcome == "PASS"}
    assert "process" in passed
    assert ("kvm" in passed) == (not kvm_missing())
    assert all(result.fix for result in results if result.outcome == "CAUTION" and "guard" not in result.name)


def test_vitals_of_machines_that_say_little(tmp_path: Path) -> None:
    found = vitals(tmp_path)
    assert (found.cpu_model, found.microcode, found.temperature, found.memory) == (None, None, None, None)
    assert found.cores == len(os.sched_getaffinity(0))
    zone = tmp_path / "sys/class/thermal/thermal_zone0"
    zone.mkdir(parents=True)
    (zone / "type").write_text("x86_pkg_temp\n")
    (zone / "temp").write_text("48250\n")
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cpuinfo").write_text("model name\t: A CPU\nmicrocode\t: 0x12\ncpu MHz\t\t: 2100.5\n")
    found = vitals(tmp_path)
    assert (found.cpu_model, found.microcode, found.cpu_mhz) == ("A CPU", "0x12", 2100.5)
    assert (found.temperature, found.temperature_of) == (48.25, "x86_pkg_temp")
    (zone / "temp").write_text("garbage")
    assert vitals(tmp_path).temperature is None
