"""What each trick of the link is worth over emulated PCIe: throughput with none, with each one more, with all but one.

The load is requests that take nothing, so that the path is all there is: on longer ones the same nanoseconds are a
smaller share, as the rows of the other loads show. The agent polls in all of them (polling is a level, shown beside),
so that no row is slow for a wake-up that a card would not need.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from teal.bench.lanes import Estimate, estimate
from teal.bench.report import Promise
from teal.link import TRICKS

from . import loads
from .mode import Mode, offloaded
from .stage import Block, Stage, add_rate, rates

BAR = "wave.ablation.none_over_all.pcie"
PROMISES = {BAR: Promise(3, "higher", "×")}  # noqa: RUF001
POLICY = "fifo"


@dataclass(frozen=True)
class Step:
    """One bar of the picture: a name and the throughput, requests/s."""

    name: str
    rate: float


@dataclass(frozen=True)
class Ablation:
    added: list[Step]  # none, then each trick more, in order; the last one is all
    without: list[Step]  # all but this one


def modes() -> tuple[list[Mode], list[Mode], Mode]:
    """None and each trick added in order; all but each; all in-line."""
    added = [offloaded("none", POLICY, "pcie:tricks=off,polling=poll")]
    for count in range(1, len(TRICKS) + 1):
        settings = ",".join(f"{trick}=on" for trick in TRICKS[:count])
        added.append(offloaded(f"+ {TRICKS[count - 1]}", POLICY, f"pcie:tricks=off,{settings},polling=poll"))
    without = [offloaded(f"all - {trick}", POLICY, f"pcie:{trick}=off,polling=poll") for trick in TRICKS]
    named = [Mode(mode.name.rpartition(" ")[0], mode.policy, mode.link) for mode in (*added, *without)]
    return named[: len(added)], named[len(added) :], Mode("in-line", POLICY, inline=True)


def ratio(over: Sequence[Block], under: Sequence[Block]) -> Estimate:
    return estimate([a / b for a, b in zip(rates(over), rates(under), strict=True)])


def measure(stage: Stage) -> Ablation:
    added, without, base = modes()
    stage.rocks()
    found = stage.saturated([*added, *without, base], loads.instant(), max(4, stage.plan.blocks // 2))
    group = "ablation, pcie, requests that take nothing"
    steps = {mode.name: Step(mode.name, add_rate(stage.report, mode.name, group, found[mode.name], mode.link))
             for mode in (*added, *without)}  # fmt: skip
    add_rate(stage.report, base.name, group, found[base.name], "the same policy on the host's core, no link")
    longer = []
    for load in (loads.gets(), loads.exponential(), loads.rocksdb()):
        longer.append(ends(stage, load, [added[0], added[-1]]))
    none_over_all = ratio(found[added[-1].name], found[added[0].name])
    stage.report.judge(
        BAR, none_over_all.value, se=none_over_all.se, note="requests that take nothing; " + ", ".join(longer)
    )
    return Ablation([steps[mode.name] for mode in added], [steps[mode.name] for mode in without])


def ends(stage: Stage, load: loads.Load, both: Sequence[Mode]) -> str:
    """None and all on another load: rows, and the ratio in words."""
    found = stage.saturated(both, load, max(3, stage.plan.others))
    for mode, name in zip(both, ("none", "all"), strict=True):
        add_rate(stage.report, name, f"ablation, pcie, {load.name}", found[mode.name], load.note)
    value = statistics.median(
        a / b for a, b in zip(rates(found[both[1].name]), rates(found[both[0].name]), strict=True)
    )
    return f"{load.name} {value:.2f}"
