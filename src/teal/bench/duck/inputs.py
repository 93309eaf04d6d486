"""Input buffers: mapped on this machine, sent once to another."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from statistics import median

from teal import _core
from teal.bench.lanes import Estimate, decode, estimate
from teal.bench.report import Promise

from . import cable
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
            report.add(
                f"send 64 MiB over {name}",
                "input buffers",
                taken,
                f"{rate:.2f} GB/s, copied and hashed by the client first",
            )
            again_bytes[name] = sent["again"]
        _raw(stage)
        _cable(stage)
        report.judge("duck.ib.bytes_sent_again", max(again_bytes.values()), note=", ".join(again_bytes))


def _raw(stage: Stage) -> None:
    """Blobs beside bytes that a bare program sends over the same link, in turns."""
    stage.say("bare transfers")
    group, cores, times = "input buffers, no Python", stage.cores, max(5, stage.plan.large // 2)
    rates = _core.measure_duck_blob(bytes=SIZE, times=times, client_core=cores.client, duck_core=cores.worker)
    fresh, small = "received into memory that is new, as a blob's is", "received into one 256 KiB buffer, over and over"
    _row(stage, group, "bare UDP", rates.bare_udp, fresh)
    _row(stage, group, "bare TCP", rates.bare_tcp, fresh)
    huge = "received into new memory with huge pages"
    _row(stage, group, "bare UDP, huge pages", rates.bare_udp_huge, huge)
    _row(stage, group, "bare TCP, huge pages", rates.bare_tcp_huge, huge)
    _row(stage, group, "bare UDP, nothing kept", rates.bare_udp_small, small)
    _row(stage, group, "bare TCP, nothing kept", rates.bare_tcp_small, small)
    for name, blob in (
        ("blob over UDP", rates.udp),
        ("blob over TCP", rates.tcp),
        ("blob over UDP, sealed", rates.udp_sealed),
        ("blob over TCP, sealed", rates.tcp_sealed),
    ):
        _row(stage, group, name, blob.there, "until its sender may use it")
        _row(
            stage, group, f"{name}, checked", blob.checked, "until its SHA-256 is compared too, which is done behind it"
        )
    ours, sealed = (
        max((udp.there, tcp.there), key=median)
        for udp, tcp in ((rates.udp, rates.tcp), (rates.udp_sealed, rates.tcp_sealed))
    )
    bare = max((rates.bare_udp, rates.bare_tcp), key=median)
    beside = {
        "huge pages": max((rates.bare_udp_huge, rates.bare_tcp_huge), key=median),
        "nothing kept": max((rates.bare_udp_small, rates.bare_tcp_small), key=median),
    }
    ratio, others = _ratio(ours, bare), [f"{_ratio(ours, rate).value:.2f} of {name}" for name, rate in beside.items()]
    note = "until its sender may use it, over the fastest bare one into new memory"
    stage.report.judge(
        "duck.ib.send.vs_raw",
        ratio.value,
        se=ratio.se,
        note=f"{note}; {', '.join(others)}; sealed {_ratio(sealed, bare).value:.2f}",
    )


def _cable(stage: Stage) -> None:
    """The same between two network namespaces; there all is sealed."""
    stage.say("bare transfers over a cable")
    group, cores, times = "input buffers over veth, no Python", stage.cores, max(5, stage.plan.large // 3)
    try:
        rates = cable.measured("blob", bytes=SIZE, times=times, client_core=cores.client, duck_core=cores.worker)
    except cable.NoCable as error:
        stage.report.absent("veth", group, str(error))
        return
    bare = max((rates["bare UDP"][0], rates["bare TCP"][0]), key=median)
    for name, (found, *_) in rates.items():
        note = "received into new memory" if name.startswith("bare") else "until its sender may use it"
        _row(stage, group, name, found, f"{note}, {_ratio(found, bare).value:.2f} of the fastest bare one")


def _row(stage: Stage, group: str, name: str, rates: Sequence[float], note: str) -> None:
    samples = [int(SIZE / rate * 1e9) for rate in rates]
    stage.report.add(f"64 MiB, {name}", group, samples, f"{median(rates) / 1e9:.2f} GB/s, {note}")


def _ratio(ours: Sequence[float], theirs: Sequence[float]) -> Estimate:
    return estimate([a / b for a, b in zip(ours, theirs, strict=True)])
