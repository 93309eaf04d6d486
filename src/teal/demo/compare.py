"""The same calls three ways, from one process, one at a time: resident in Teal, in-process, over HTTP.

Run as `python -m teal.demo.compare`. It reads a job ({"address", "model", "port", "texts"}), makes every way ready (two
calls at each padded length, not counted), then goes through the texts in short rounds; in each round every way runs the
same texts, and the order of the ways changes from round to round, so that a machine that slows down slows all of them.
It writes JSON lines: "progress" per round, then "done" with each way's times in microseconds, in the order of the
texts (so that they can be compared call by call), and how far each answer was from the in-process one.
What is timed is the call alone, from arrays filled to an answer that can be read; tokenising and pooling are not.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import teal
from teal.demo.client import say
from teal.demo.embedder import Encoded, encode, hidden_of, model_path
from teal.demo.footprint import resident_bytes
from teal.demo.http import HttpCall
from teal.demo.outcome import WAYS
from teal.demo.resident import ResidentCall
from teal.errors import TealError

WARM_UP = 2  # calls at each padded length and way before anything is timed
ROUND = 10  # texts a way runs before the next way has its turn


def _times(call: Callable[..., Any], texts: list[Encoded]) -> tuple[list[float], list[Any]]:
    """Microseconds of each call, and a copy of each answer."""
    times, answers = [], []
    for text in texts:
        start = time.perf_counter()
        hidden = hidden_of(call(**text.arrays))
        times.append((time.perf_counter() - start) * 1e6)
        answers.append(hidden.copy())
    return times, answers


def _compare(calls: dict[str, Callable[..., Any]], texts: list[Encoded]) -> dict[str, Any]:
    """Times of each way in the order of `texts`, and the largest difference of each from the in-process answers."""
    times: dict[str, list[float]] = {way: [] for way in WAYS}
    difference = dict.fromkeys(WAYS, 0.0)
    for number, first in enumerate(range(0, len(texts), ROUND)):
        some = texts[first : first + ROUND]
        answers: dict[str, list[Any]] = {}
        for way in WAYS[number % len(WAYS) :] + WAYS[: number % len(WAYS)]:
            taken, answers[way] = _times(calls[way], some)
            times[way] += taken
        for way in WAYS:
            far = [float(np.max(np.abs(a - b))) for a, b in zip(answers[way], answers["in_process"], strict=True)]
            difference[way] = float(np.max([difference[way], *far]))  # np.max, not max: a NaN must not get lost
        say("progress", done=first + len(some))
    return {"times_us": times, "max_abs_difference": difference}


def main() -> int:
    """Run one job read from standard input; returns the exit status."""
    first = sys.stdin.readline()
    if not first:
        return 1
    try:
        _work(json.loads(first))
    except BrokenPipeError:
        return 1
    except (TealError, OSError, MemoryError) as error:
        say("error", kind=type(error).__name__, message=str(error))
        return 1
    return 0


def _work(job: dict[str, Any]) -> None:
    texts = [encode(text) for text in job["texts"]]
    with teal.connect(job["address"]) as host:
        _work_on(ResidentCall(host.model(job["model"])), job["port"], texts)


def _work_on(resident: ResidentCall, port: int, texts: list[Encoded]) -> None:
    before = resident_bytes()
    from teal.demo.local import LocalCall, session  # here, so that the engine counts as what in-process costs in memory

    start = time.perf_counter()
    local = LocalCall(session(model_path()))
    load_ms = (time.perf_counter() - start) * 1e3
    over_http = HttpCall(port)
    calls: dict[str, Callable[..., Any]] = {"teal": resident, "in_process": local, "http": over_http}
    for text in {text.length: text for text in texts}.values():
        for call in calls.values():
            for _ in range(WARM_UP):
                call(**text.arrays)
    result = _compare(calls, texts)
    after = resident_bytes()
    grown = after - before if before is not None and after is not None else None
    say("done", load_ms=load_ms, in_process_bytes=grown, lengths=[text.length for text in texts], **result)
    over_http.close()


if __name__ == "__main__":
    sys.exit(main())
