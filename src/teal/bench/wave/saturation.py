"""What off-loading a policy costs in throughput: the same requests, the same policy, in-line and off-loaded.

At saturation the worker is never idle, so whatever the host's core does besides the requests' own work is lost
throughput: in-line that is the policy, off-loaded the messages and the decisions it takes up. Both are compared block
by block on the same drawn requests: short blocks, as the machine drifts, and as many pairs as it takes to know the
loss well. Time in which others had the worker's core is taken off, and pairs in which they had much of one are left
out. The floor beside them is the loss between two hosts that are the same.
"""

from __future__ import annotations

from teal.bench.lanes import LaneError
from teal.bench.report import Promise

from . import loads
from .mode import Mode, inline, offloaded
from .stage import Stage, add_rate, add_seat, loss

POLICIES = {"fifo": "fifo", "shinjuku": "shinjuku:quantum=50us"}
LINKS = ("shm", "pcie")
PROMISES = {
    f"wave.loss_percent.{policy}.{link}": Promise(1.1 if policy == "fifo" else 3, "lower", "%")
    for policy in POLICIES
    for link in LINKS
}


def measure(stage: Stage) -> None:
    stage.rocks()
    for name, policy in POLICIES.items():
        compare(stage, name, policy, loads.rocksdb(), judged=True)
    others = [loads.exponential(), loads.bimodal()]
    try:
        others.append(loads.onnx(*map(str, stage.nets())))
    except LaneError as error:
        stage.report.absent("onnx", "saturation, onnx", str(error))
    for load in others:
        for name, policy in POLICIES.items():
            compare(stage, name, policy, load, judged=False)


def compare(stage: Stage, name: str, policy: str, load: loads.Load, *, judged: bool) -> None:
    """Rows of one policy and load, and its bars if they are judged on this load."""
    base, group = inline(name, policy), f"saturation, {load.name}"
    twin = Mode(f"{base.name}, again", policy, inline=True)
    there = [offloaded(name, policy, link) for link in LINKS]
    modes = [base, twin, *there]
    found = stage.compared(base, modes[1:], load) if judged else stage.saturated(modes, load, stage.plan.others)
    floor = loss(found[twin.name], found[base.name])
    add_rate(stage.report, base.name, group, found[base.name], load.note)
    for mode in modes[1:]:
        lost = loss(found[mode.name], found[base.name])
        note = f"{lost.value:.2f} ± {lost.se:.2f} % below in-line"
        add_rate(stage.report, mode.name, group, found[mode.name], note)
        bar = f"wave.loss_percent.{name}.{mode.link}"
        if judged and mode is not twin and bar in PROMISES:
            pairs = len(found[mode.name])
            quiet = sum(a.quiet and b.quiet for a, b in zip(found[mode.name], found[base.name], strict=True))
            words = f"RocksDB at saturation, {quiet} of {pairs} pairs undisturbed; two in-line hosts differ by"
            words += f" {floor.value:.2f} ± {floor.se:.2f} %"
            stage.report.judge(bar, lost.value, se=lost.se, note=words)
    for mode in there if judged else ():
        add_seat(stage.report, mode, f"stages, {load.name} at saturation", found[mode.name])
