"""What a pipeline gains: pages read by three models and the functions between them, on two workers.

The bar compares the pipeline with the same engines called stage by stage (one thread each, so a worker is a core). A
row beside it has the stages one after the other with two threads in each engine, which also use both cores. Another one
has two readers that work apart: what the cores, which share caches and memory, can gain in this very run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from teal.bench.lanes import Entry, LaneError, paired_ratio, take_turns

if TYPE_CHECKING:
    from .stage import Stage

BAR = "models.pipeline.gain"
NOTES = {
    "steps": "stage by stage, engines with 1 thread",
    "pipeline": "futures as inputs, all pages submitted at once, engines with 1 thread",
    "apart": "two readers with half of the pages each, stage by stage",
    "steps, 2 threads": "stage by stage, engines with 2 threads",
}
BLOCKS = 6


def measure(stage: Stage) -> None:
    """Raises LaneError where the models or the page are not here, or the pipeline reads something else."""
    with stage.own.lane("teal.bench.models.reading", {"subject": stage.subject}) as lane:
        answers = {row: lane.answer(row) for row in NOTES}
        if len(set(answers.values())) != 1 or not answers["steps"]:
            raise LaneError(f"the pipeline reads {answers['pipeline']!r}, the stages one by one {answers['steps']!r}")
        blocks = min(BLOCKS, stage.plan.blocks)
        times = take_turns([Entry(row, lane, row, 1, 0) for row in NOTES], blocks, stage.say)
        for row, note in NOTES.items():
            stage.report.add_times(row, "OCR of a page", times[row], f"{note}; {lane.note}")
    gain = paired_ratio(times["steps"], times["pipeline"])
    other = paired_ratio(times["steps, 2 threads"], times["pipeline"])
    limit = paired_ratio(times["steps"], times["apart"])
    note = (
        f"over stage by stage; over that with 2 threads in each engine {other.value:.2f}; "
        f"two readers apart gain {limit.value:.2f}"
    )
    stage.report.judge(BAR, gain.value, se=gain.se, note=note)
