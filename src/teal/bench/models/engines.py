"""Rows: the engines in-process, in the rivals' environment. All answers are compared with onnxruntime's at float32."""

from __future__ import annotations

from contextlib import ExitStack

from .entrant import CLOSE, SAME, Contest, Entrant
from .stage import Stage

IN_PROCESS = {  # row -> engine, variant; the first is the reference
    "in-process onnxruntime fp32": ("onnxruntime", "fp32"),
    "in-process OpenVINO fp32": ("openvino", "fp32"),
    "in-process OpenVINO bf16": ("openvino", "bf16"),
}


def entrants(stage: Stage, contest: Contest, stack: ExitStack) -> list[Entrant]:
    """One lane an engine."""
    lanes = {}
    for engine in dict.fromkeys(engine for engine, _ in IN_PROCESS.values()):
        config = stage.config(contest.entry, [contest.batch], engine=engine)
        config["core"] = config["server_core"]
        lanes[engine] = stage.rival("engines", config, stack, contest.group, f"in-process {engine}")
    return [
        Entrant(row, lane, f"{precision} b{contest.batch}", lane.note, SAME if precision == "fp32" else CLOSE)
        for row, (engine, precision) in IN_PROCESS.items()
        if (lane := lanes[engine]) is not None
    ]
