"""`teal tune MODEL.onnx|.pt2`: what the command line makes of `teal.tune.search`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from teal.cli import draw, options
from teal.errors import NotFound


def run(
    source: str,
    max_error: float | None,
    inputs: str | None,
    calibration: str | None,
    engines: str | None,
    batches: str | None,
    threads: str | None,
    dims: tuple[str, ...],
    seconds: float | None,
    *,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Raises TealError; UsageError for lists that make no sense."""
    from teal.tune.search import Question, Search

    question = Question(Path(source))
    question.max_error = question.max_error if max_error is None else max_error
    question.inputs = None if inputs is None else Path(inputs)
    question.calibration = None if calibration is None else Path(calibration)
    question.engines = [] if engines is None else [word.strip() for word in engines.split(",") if word.strip()]
    question.batches = numbers(batches, "--batches") or [1]
    question.threads = numbers(threads, "--threads")
    question.extents = {name: number(value, "--dim") for name, value in options.pairs(dims, "--dim").items()}
    question.seconds = seconds or question.seconds
    with draw.progress(f"tuning {draw.printable(source)[:80]}", silent=as_json) as say:
        found = Search(question, lambda what: say(f"trying {what}")).run(keep=not dry_run)
    if as_json:
        draw.emit(as_dict(found, question))
    else:
        show(found, question)
    if found.winner is None:
        raise NotFound(f"nothing ran {source} within an error of {question.max_error:g}; what was tried is above")


def numbers(text: str | None, option: str) -> list[int]:
    """Whole numbers from 1, with commas. Raises UsageError."""
    return [] if text is None else [number(word, option) for word in text.split(",") if word.strip()]


def number(word: str, option: str) -> int:
    if not word.strip().isdigit() or not 1 <= int(word) <= 1 << 16:
        raise click.UsageError(f"{option}: {word.strip()!r}, expected a whole number from 1 to 65536")
    return int(word)


def as_dict(found: Any, question: Any) -> dict[str, Any]:
    """Everything as JSON says it."""
    trials = [
        {
            "kernel": trial.candidate.kernel,
            "precision": trial.candidate.precision,
            "way": trial.candidate.way or ("compiled" if trial.candidate.compiled else ""),
            "threads": trial.candidate.threads,
            "us": dict(trial.us),
            "error": trial.error if trial.error is None or trial.error < 1e300 else None,
            "agreement": trial.agreement,
            "within": trial.error is not None and trial.error <= question.max_error,
            "winner": trial is found.winner,
            "failed": trial.failed,
        }
        for trial in found.trials
    ]
    return {
        "model": str(found.model),
        "digest": found.digest,
        "max_error": question.max_error,
        "inputs": found.inputs,
        "kind": found.kind,
        "reference": found.reference,
        "trials": trials,
        "notes": found.notes,
        "file": found.kept and str(found.kept),
    }


def show(found: Any, question: Any) -> None:
    """The table, and below it what else there is to know."""
    times = tuple(f"batch {batch}" for batch in question.batches)
    columns = ("setting", "threads", *times, "error", "top-1", "")
    table = draw.table(columns, right=columns[1:-1])
    for trial in found.trials:
        cells = [draw.micros(trial.us[batch]) if batch in trial.us else "-" for batch in question.batches]
        error = "-" if trial.error is None else f"{trial.error:.1e}"
        top = "-" if trial.agreement is None else f"{trial.agreement:.1%}"
        within = trial.error is not None and trial.error <= question.max_error
        said = trial.failed or ("" if within else "error too large")
        if trial is found.winner:
            said = "fastest"
        draw.row(table, trial.candidate.words, str(trial.candidate.threads), *cells, error, top, draw.printable(said))
    draw.console().print(table)
    kind = "random inputs (give real ones with --inputs)" if found.kind == "random" else "given inputs"
    click.echo(f"error: relative L2 against {found.reference or 'nothing'} on {found.inputs} {kind}")
    for note in found.notes:
        click.echo(draw.printable(note))
    if found.winner is not None:
        click.echo("nothing was kept" if found.kept is None else f"kept in {found.kept}; loads use it from now on")
