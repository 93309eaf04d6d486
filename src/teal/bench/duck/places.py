"""Programs into places: the first time, again, and one that has changed a little. Of the core alone, in this process.

Theory of operation: "first" is all that a duck does between having a file's bytes and having its pages where boxes map
them: headers read and checked, the image made, its pages put into a place that has memory already. The file's SHA-256
is not in it: it was made when the file arrived, and is what the file is asked for by. Each round has a place of its
own, so that no page of it is what it should be already.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from time import perf_counter_ns
from typing import TYPE_CHECKING

from teal import _core
from teal.bench.lanes import estimate
from teal.bench.report import Promise
from teal.duck import cc

if TYPE_CHECKING:
    from .stage import Stage

PROMISES = {
    "duck.load.first_us": Promise(300, "lower", "µs"),
    "duck.load.again_us": Promise(10, "lower", "µs"),
    "duck.load.delta_pages": Promise(2, "lower", "pages"),
}
_ROOM = 2 << 20


@dataclass(frozen=True)
class Loads:
    """Nanoseconds of each round, and what was written in the last."""

    file_bytes: int
    first: list[int]  # read and loaded into an empty place
    again: list[int]  # the same program, once more
    changed: list[int]  # one that differs in 4 KiB
    pages: int  # of the program
    delta_pages: int  # written for the 4 KiB


def programs(folder: Path) -> tuple[bytes, bytes]:
    """A program of a megabyte, and the same with 4 KiB changed. Raises NotFound without a C compiler."""
    source = Path(__file__).parent / "large.c"
    made = []
    for i in (1, 2):
        path = folder / f"large{i}.elf"
        cc.compile_program(source, path, flags=[f"-DTEAL_CHANGED={i}"])
        made.append(path.read_bytes())
    return made[0], made[1]


def load(folder: Path, rounds: int) -> Loads:
    """Loads them ``rounds`` times. Raises NotFound without a C compiler."""
    large, other = programs(folder)
    known = _core.read_elf(large, "large").facts["sha256"]
    changed = _core.read_elf(other, "changed")
    first, again, delta = [], [], []
    for _ in range(rounds):
        place = _core.ElfPlace(_ROOM)
        start = perf_counter_ns()
        program = _core.read_elf(large, "large", sha256=known)
        written = place.load(program)
        first.append(perf_counter_ns() - start)
        start = perf_counter_ns()
        place.load(program)
        again.append(perf_counter_ns() - start)
        start = perf_counter_ns()
        report = place.load(changed)
        delta.append(perf_counter_ns() - start)
    return Loads(
        len(large), first, again, delta,
        written["pages_written"] + written["pages_zeroed"] + written["pages_same"],
        report["pages_written"] + report["pages_zeroed"],
    )  # fmt: skip


def measure(stage: Stage) -> None:
    """Rows and bars ``duck.load.*``."""
    report = stage.report
    found = load(stage.folder, max(50, stage.plan.fast))
    for bar, name, samples, note in (
        ("first", "1 MiB, first time", found.first, f"read, checked, {found.pages} pages written"),
        ("again", "the same once more", found.again, "known by its SHA-256"),
        ("", "4 KiB of it changed", found.changed, f"{found.pages} pages compared, {found.delta_pages} written"),
    ):
        row = report.add(f"load {name}", "loading", samples, note)
        if bar:
            report.judge(f"duck.load.{bar}_us", row.p50_us, se=estimate([ns / 1e3 for ns in samples]).se)
    report.judge(
        "duck.load.delta_pages", found.delta_pages, note="of a file with 4 KiB changed, which lie across a page"
    )
