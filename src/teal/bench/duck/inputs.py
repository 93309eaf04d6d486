"""Input buffers: mapped on this machine, sent once to another."""

from __future__ import annotations

from contextlib import ExitStack
from statistics import median

from teal import _core
from teal.bench.lanes import decode, estimate
from teal.bench.report import Promise

from .stage import Stage

PROMISES = {
    "duck.ib.map.64MB.us": Promise(15, "lower", "µs"),
    "duck.ib.copies": Promise(0, "lower", "copies"),
    "duck.ib.bytes_sent_again": Promise(0, "lower", "bytes"),
    "duck.ib.send.vs_raw": Promise(0.85, "higher", "×"),  # noqa: RUF001
}
SIZE = 64 << 20


def measure(stage: Stage) -> None:
    """Maps of 64 MiB, first and again; blobs of the same size over the wire."""
    report, plan = stage.report, stage.plan
    with ExitStack() as stack:
        lane = stage.client(stage.ducks(stage.cores.worker), stack)
        stage.say("mapping")
        found = lane.ask("maps", nbytes=SIZE, rounds=max(20, plan.large))
        first, again = decode(found["first"]), decode(found["again"])
        report.add("map 64 MiB, first time", "input buffers", first, "session.map(tensor of duck.empty)")
        row = report.add("map 64 MiB, again", "input buffers", again, "two in turn: each is mapped already")
        report.judge("duck.ib.map.64MB.us", row.p50_us, se=estimate([ns / 1e3 for ns in again]).se)
        report.judge("duck.ib.copies", found["copies"], note="counted by the session")
        again_bytes = {}
        for route, name in (("udp", "UDP"), ("keyed", "UDP, sealed"), ("tcp", "TCP, sealed")):
            stage.say(f"sending over {name}")
            sent = lane.ask("sends", route=route, nbytes=SIZE, rounds=max(4, plan.large // 4))
            taken = decode(sent["ns"])
            rate = SIZE / sorted(taken)[len(taken) // 2]
            report.add(f"send 64 MiB over {name}", "input buffers", taken, f"{rate:.2f} GB/s with its SHA-256")
            again_bytes[name] = sent["again"]
        _raw(stage)
        report.judge("duck.ib.bytes_sent_again", max(again_bytes.values()), note=", ".join(again_bytes))


def _raw(stage: Stage) -> None:
    """A blob received, checked and sealed, beside bytes that are received and nothing else, over the same loopback."""
    stage.say("bare transfers")
    rates = _core.measure_duck_blob(
        bytes=SIZE, times=max(5, stage.plan.large // 3), client_core=stage.cores.client, duck_core=stage.cores.worker
    )
    rows = {
        "bare UDP": (rates.bare_udp, "received into one buffer"),
        "bare TCP": (rates.bare_tcp, "received into one buffer"),
        "blob over UDP": (rates.udp, "checked with SHA-256, sealed"),
        "blob over UDP, sealed": (rates.udp_sealed, "checked with SHA-256, sealed"),
        "blob over TCP": (rates.tcp, "checked with SHA-256, sealed"),
    }
    for name, (found, note) in rows.items():
        samples = [int(SIZE / rate * 1e9) for rate in found]
        stage.report.add(
            f"64 MiB, {name}", "input buffers, no Python", samples, f"{median(found) / 1e9:.2f} GB/s, {note}"
        )
    ours, theirs = max((rates.udp, rates.tcp), key=median), max((rates.bare_udp, rates.bare_tcp), key=median)
    ratio = estimate([a / b for a, b in zip(ours, theirs, strict=True)])
    stage.report.judge("duck.ib.send.vs_raw", ratio.value, se=ratio.se, note="our fastest over the fastest bare one")
