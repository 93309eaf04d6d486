"""An outcome as a person reads it (passages first, then the tables) and as one JSON object."""

from __future__ import annotations

import math
import os
import platform
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from teal.demo.embedder import THREADS
from teal.demo.measure import Added, Spread
from teal.demo.outcome import Outcome, Way

_WAY_NAMES = {"teal": "Teal", "in_process": "in-process", "http": "HTTP"}
_STAGE_NOTES = {
    "tokenise": "client: text to ids",
    "fill": "client: writing inputs",
    "queue": "until the worker is free",
    "run": "the maths",
    "copy": "moving bytes",
    "wake": "until the client runs",
    "call": "queue to wake, together",
    "pool": "client: mean of tokens",
    "all": "client: text to vector",
}
_LONGEST_SHOWN = 600  # characters of a passage
_MOST_NOTES = 5


def draw(outcome: Outcome, console: Console) -> None:
    """Print the outcome."""
    _print_answers(outcome, console)
    for part in (_stages(outcome), _ways(outcome), _memory(outcome), _verdict(outcome)):
        console.print(part)
        console.print()


def as_json(outcome: Outcome) -> dict[str, Any]:
    """The outcome as JSON types, with the machine and versions it was measured on."""
    record = asdict(outcome)
    record["same"] = outcome.same
    record["machine"] = {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "python": platform.python_version(),
    }
    record["versions"] = {name: _version(name) for name in ("teal-runtime", "onnxruntime", "tokenizers", "numpy")}
    return {name: _finite(value) for name, value in record.items()}


def _finite(value: Any) -> Any:
    """`value` with null for what JSON cannot say (a NaN out of a broken model)."""
    if isinstance(value, dict):
        return {name: _finite(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _print_answers(outcome: Outcome, console: Console) -> None:
    text = outcome.text
    notes = [Text(f"  {note}", style="yellow") for note in text.notes[:_MOST_NOTES]]
    if len(text.notes) > _MOST_NOTES:
        notes.append(Text(f"  and {len(text.notes) - _MOST_NOTES} more such notes (--json has all)", style="yellow"))
    head = Text.assemble(
        (outcome.question.ask, "bold"), "\n",
        (f"{_count(text.passages, 'passage')}, {size(text.bytes_searched)} from {_count(text.files, 'file')}", "dim"),
        ("" if text.complete else f" of {size(text.bytes_known)}: not all of the text is searched", "yellow"),
    )  # fmt: skip
    console.print(Group(head, *notes))
    for place, answer in enumerate(outcome.answers, 1):
        title = Text.assemble(
            f"\n{place}. ", (f"{answer.score:.3f}  ", "green"), (f"{answer.source}:{answer.line}", "cyan"),
            (f"  {answer.heading}" if answer.heading else "", "dim"),
        )  # fmt: skip
        body = answer.text if len(answer.text) <= _LONGEST_SHOWN else answer.text[: _LONGEST_SHOWN - 1] + "…"
        console.print(title, soft_wrap=True)  # a path broken over two lines can be neither clicked nor copied
        console.print(Padding(Text(body), (0, 0, 0, 3)))
    console.print()


def _stages(outcome: Outcome) -> Group:
    both = " and ".join(f"{client.name} (process {client.pid})" for client in outcome.clients)
    overlapped = sum(client.overlapped for client in outcome.clients)
    calls = sum(client.passages for client in outcome.clients)
    seconds = max(client.seconds for client in outcome.clients)
    rate = f", {calls / seconds:.0f} passages/s" if seconds else ""
    table = _table("Where the time went: two clients at once, one resident model", "stage", "what")
    for name, times in outcome.stages.items():
        table.add_row(name, _STAGE_NOTES[name], *_cells(times), style="bold" if name == "all" else "")
    return Group(
        table,
        Text(
            f"{both} worked at the same time: {overlapped} of their {calls} calls were in flight together{rate}.\n"
            "No warm-up: the first call at each length is counted. Copies on the way to the model "
            f"{outcome.model.copies_in}, on the way back {outcome.model.copies_out} "
            f"({size(outcome.model.bytes_copied)}).",
            style="dim",
        ),
    )


def _ways(outcome: Outcome) -> Group:
    table = _table("The same calls three ways: one caller, one call at a time", "way", "added")
    for way in outcome.ways:
        table.add_row(_WAY_NAMES[way.name], _added(way.added), *_cells(way.times))
    return Group(
        table,
        Text(
            f"The question and a sample of the passages, batch 1, {_count(THREADS, 'engine thread')} each, 2 uncounted "
            "calls per length first, turns of 10 in changing order.\n"
            "Added: median difference call by call from in-process, ± its standard error on this machine now. "
            "HTTP: another process, raw bytes, kept alive, Python's own server.",
            style="dim",
        ),
    )


def _memory(outcome: Outcome) -> Group:
    table = _framed("What it takes to be ready")
    table.add_column("process")
    table.add_column("ready in", justify="right", no_wrap=True)
    table.add_column("memory", justify="right", no_wrap=True)
    model = outcome.model
    table.add_row("Teal's host and worker, model loaded once", duration((model.start_ms + model.load_ms) * 1e3),
                  size(model.resident_bytes))  # fmt: skip
    for client in outcome.clients:
        table.add_row(f"{client.name}, attached", duration(client.first_answer_ms * 1e3), size(client.resident_bytes))
    for way in outcome.ways:
        if way.name == "in_process":
            table.add_row("in-process, again in every process", _ready(way), "+" + size(way.resident_bytes))
        elif way.name == "http":
            table.add_row("HTTP server", _ready(way), size(way.resident_bytes))
    attach = " and ".join(duration(client.attach_ms * 1e3) for client in outcome.clients)
    note = (
        f"The model file has {size(model.file_bytes)}. Clients took {attach} to attach; their time is to the first "
        "answer. Memory is resident, after the work, with shared pages counted in each."
    )
    return Group(table, Text(note, style="dim"))


def _ready(way: Way) -> str:
    return duration(way.load_ms * 1e3) if way.load_ms is not None else "?"


def _verdict(outcome: Outcome) -> Text:
    far = {way.name: way.max_abs_difference for way in outcome.ways if way.name != "in_process"}
    far["between clients"] = outcome.client_difference
    figures = ", ".join(f"{name} {value:g}" for name, value in far.items())
    took = f" {outcome.seconds:.1f} s in all."
    if outcome.same:
        return Text(f"Same answers every way (max abs difference from in-process: {figures}).{took}", style="green")
    return Text(
        f"THE ANSWERS DIFFER (max abs difference from in-process: {figures}): a fault, please report it "
        f"with the output of `teal doctor` and `teal demo --json`.{took}",
        style="bold red",
    )


def _table(title: str, *left: str) -> Table:
    table = _framed(title)
    for name in left:
        table.add_column(name, no_wrap=True)
    for name in ("p50", "p99", "p99.9", "max", "n"):
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _framed(title: str) -> Table:
    return Table(
        title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0)
    )


def _cells(times: Spread) -> tuple[str, ...]:
    figures = (times.p50_us, times.p99_us, times.p999_us, times.max_us)
    return (*(duration(figure) for figure in figures), str(times.n))


def _added(cost: Added | None) -> str:
    if cost is None:
        return "0"
    return f"{cost.p50_us:+,.0f} ± {cost.error_us:,.0f} µs"


def duration(us: float) -> str:
    """Microseconds as a person reads them: three figures and a unit."""
    for unit, factor in (("s", 1e6), ("ms", 1e3)):
        if us >= factor:
            return f"{us / factor:.{max(0, 3 - len(str(int(us / factor))))}f} {unit}"
    return f"{us:.0f} µs" if us >= 10 or us == 0 else f"{us:.1f} µs"


def size(count: int | None) -> str:
    """Bytes as a person reads them; "?" where the figure is not known."""
    if count is None:
        return "?"
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("KB", 1e3)):
        if count >= factor:
            return f"{count / factor:.{1 if count < 10 * factor else 0}f} {unit}"
    return f"{count} bytes"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            named = [line.partition(":")[2].strip() for line in file if line.startswith("model name")]
    except OSError:
        named = []
    return named[0] if named else platform.machine()


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
