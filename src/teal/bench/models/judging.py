"""The bars that come from all models together."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from teal.bench.lanes import Estimate, Times, estimate, paired_ratio
from teal.bench.report import Report

from . import resident, standard
from .entrant import Contest
from .promises import AGREEMENT, ALLOWANCE_US, MAX_ERROR

SMALL = "mlp"
IN_PROCESS_OF = {  # row of an engine in-process -> the resident name of the same engine and precision
    "in-process onnxruntime fp32": "onnx",
    "in-process OpenVINO fp32": "openvino",
    "in-process OpenVINO bf16": "bf16",
}
FP32, BF16 = ("onnx", "openvino"), ("bf16",)


def judge(report: Report, contests: Sequence[Contest]) -> None:
    """Bars of the contests at batch 1; what was not measured stays for judge_rest()."""
    ones = [contest for contest in contests if contest.batch == 1]
    against_standard(report, ones)
    same_precision(report, ones)
    against_engines(report, ones)
    small(report, ones)


def median(times: Times) -> float:
    return statistics.median(times.all())


def good(contest: Contest) -> bool:
    """Is the tuned model as right as its bar asks?"""
    tuned = contest.tuned
    if tuned is None or tuned.error is None or tuned.error > MAX_ERROR:
        return False
    return tuned.agreement is None or tuned.agreement >= AGREEMENT


def geomean(ratios: dict[str, Estimate]) -> tuple[float, float]:
    """The geometric mean and its standard error."""
    value = math.exp(statistics.fmean(math.log(each.value) for each in ratios.values()))
    relative = math.sqrt(sum((each.se / each.value) ** 2 for each in ratios.values())) / len(ratios)
    return value, value * relative


def words(ratios: dict[str, Estimate]) -> str:
    return ", ".join(f"{name} {each.value:.1f}" for name, each in ratios.items())


def wire_means(contests: Sequence[Contest], row: dict[str, str]) -> str:
    """The geometric means against the other wires of the same server, and against PyTorch in-process."""
    said = []
    for other in (*standard.WIRES, standard.EAGER):
        if other == standard.STANDARD:
            continue
        ratios = {
            contest.entry.name: paired_ratio(contest.times[other], contest.times[row[contest.entry.name]])
            for contest in contests
            if other in contest.times and contest.entry.name in row
        }
        if ratios:
            said.append(f"{other} {geomean(ratios)[0]:.2f}")
    return "; ".join(said)


def against_standard(report: Report, contests: Sequence[Contest]) -> None:
    bar = "models.b1.geomean_vs_standard"
    ratios, rows, left = {}, {}, []
    for contest in contests:
        name = contest.entry.name
        if standard.STANDARD not in contest.times or resident.TUNED not in contest.times:
            left.append(f"{name} not measured")
        elif not good(contest):
            left.append(f"{name}: {contest.tuned.words if contest.tuned else 'not tuned'}")
        else:
            rows[name] = resident.TUNED
            ratios[name] = paired_ratio(contest.times[standard.STANDARD], contest.times[resident.TUNED])
    if not ratios:
        report.judge(bar, None, note="no model was measured both ways: " + "; ".join(left))
        return
    value, se = geomean(ratios)
    note = f"{standard.STANDARD} / {resident.TUNED}: {words(ratios)}. Against others: {wire_means(contests, rows)}"
    report.judge(bar, value, se=se, note=note + (f". Left out: {'; '.join(left)}" if left else ""))


def fastest(contest: Contest, rows: Sequence[str]) -> str | None:
    here = [row for row in rows if row in contest.times]
    return min(here, key=lambda row: median(contest.times[row])) if here else None


def same_precision(report: Report, contests: Sequence[Contest]) -> None:
    ratios, rows = {}, {}
    for contest in contests:
        row = fastest(contest, [resident.written(name) for name in FP32])
        if row is not None and standard.STANDARD in contest.times:
            rows[contest.entry.name] = row
            ratios[contest.entry.name] = paired_ratio(contest.times[standard.STANDARD], contest.times[row])
    if not ratios:
        return
    value, se = geomean(ratios)
    note = f"float32 both; {words(ratios)}. Against others: {wire_means(contests, rows)}"
    report.judge("models.b1.same_precision.geomean_vs_standard", value, se=se, note=note)


def over_engine(engine: Times, teal: Times) -> Estimate:
    """Block by block, Teal's median less the allowance over the engine's."""
    pairs = zip(teal.medians_us(), engine.medians_us(), strict=True)
    return estimate([(mine - ALLOWANCE_US) / theirs for mine, theirs in pairs])


def against_engines(report: Report, contests: Sequence[Contest]) -> None:
    """For each model and precision the best engine in-process, and the same engine in Teal from another process."""
    found: dict[str, Estimate] = {}
    for contest in contests:
        for names in (FP32, BF16):
            rows = [row for row, name in IN_PROCESS_OF.items() if name in names]
            best = fastest(contest, rows)
            mine = resident.in_place(IN_PROCESS_OF[best]) if best is not None else ""
            if best is not None and mine in contest.times:
                key = f"{contest.entry.name} {best.removeprefix('in-process ')}"
                found[key] = over_engine(contest.times[best], contest.times[mine])
    if not found:
        return
    worst = max(found, key=lambda key: found[key].value)
    listed = ", ".join(f"{key} {each.value:.3f} ± {each.se:.3f}" for key, each in found.items())
    note = f"{worst} is worst; less {ALLOWANCE_US:.0f} µs: {listed}"
    report.judge("models.b1.worst_vs_best_inprocess", found[worst].value, se=found[worst].se, note=note)


def small(report: Report, contests: Sequence[Contest]) -> None:
    bar = "models.small.vs_standard"
    contest = next((each for each in contests if each.entry.name == SMALL), None)
    row = None if contest is None else fastest(contest, [resident.TUNED, *map(resident.written, FP32)])
    if contest is None or row is None or standard.STANDARD not in contest.times:
        return
    ratio = paired_ratio(contest.times[standard.STANDARD], contest.times[row])
    others = wire_means([contest], {SMALL: row})
    report.judge(bar, ratio.value, se=ratio.se, note=f"{standard.STANDARD} / {row}. Against others: {others}")
