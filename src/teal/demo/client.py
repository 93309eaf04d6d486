"""A separate client process: attaches to the host, embeds its share of the passages and the question, ranks them.

Run as `python -m teal.demo.client`. It speaks JSON lines: first reads its job ({"client", "address", "model",
"question", "top", "share": [[number, text], …]}), attaches, answers the question's own embedding as its first call and
writes "ready"; then waits for the line "go", so that all clients begin at once, and writes one "call" per passage, with
times in microseconds and the start on the machine's monotonic clock, and "done" with its best passages. A fault is one
"error" line and exit status 1. There is no warm-up: the first call at each padded length is counted like all others.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

import teal
from teal.demo.embedder import Encoded, Vectors, encode, hidden_of, pool, tokenizer
from teal.demo.footprint import resident_bytes
from teal.demo.resident import ResidentCall
from teal.demo.search import rank
from teal.errors import TealError


def say(event: str, **fields: Any) -> None:
    """Write one JSON line to whoever started this process."""
    sys.stdout.write(json.dumps({"event": event, **fields}) + "\n")
    sys.stdout.flush()


def timed(call: ResidentCall, text: str) -> tuple[Vectors, Encoded, dict[str, float]]:
    """One text's vector, its tokens, and where the time went (start in s, the rest in us)."""
    start = time.perf_counter()
    encoded = encode(text)
    tokenised = time.perf_counter()
    hidden = hidden_of(call(**encoded.arrays))
    answered = time.perf_counter()
    vector = pool(hidden, encoded.arrays["attention_mask"])[0]
    ended = time.perf_counter()
    times = {
        "start": start,  # perf_counter is CLOCK_MONOTONIC on Linux: the same clock in every process
        "tokenise_us": (tokenised - start) * 1e6,
        "fill_us": call.fill_us,
        "call_us": call.call_us,
        "pool_us": (ended - answered) * 1e6,
        "total_us": (ended - start) * 1e6,
    }
    return vector, encoded, times


def work(job: dict[str, Any], lines: Iterator[str]) -> None:
    """Attach, say "ready", wait for "go", embed, rank, say "done"."""
    tokenizer()
    start = time.perf_counter()
    with teal.connect(job["address"]) as host:
        _work_on(ResidentCall(host.model(job["model"])), start, job, lines)


def _work_on(call: ResidentCall, start: float, job: dict[str, Any], lines: Iterator[str]) -> None:
    attached = time.perf_counter()
    question, encoded, times = timed(call, job["question"])
    answered = time.perf_counter()
    say("ready", attach_ms=(attached - start) * 1e3, first_answer_ms=(answered - start) * 1e3, cut=encoded.cut,
        tokens=encoded.tokens, resident_bytes=resident_bytes(), **times)  # fmt: skip
    if next(lines, "").strip() != "go":
        return  # whoever started this process is gone, or changed its mind
    share = job["share"]
    vectors = np.empty((len(share), question.shape[0]), np.float32)
    cut = 0
    for place, (_, text) in enumerate(share):
        vectors[place], encoded, times = timed(call, text)
        cut += encoded.cut
        say("call", tokens=encoded.tokens, length=encoded.length, **times)
    best = [(share[place][0], score) for place, score in rank(question, vectors, job["top"])]
    say("done", best=best, question=question.tolist(), cut=cut, resident_bytes=resident_bytes())


def main() -> int:
    """Run one job read from standard input; returns the exit status."""
    lines = iter(sys.stdin.readline, "")
    first = next(lines, "")
    if not first:
        return 1
    try:
        work(json.loads(first), lines)
    except BrokenPipeError:
        return 1
    except (TealError, OSError, MemoryError) as error:
        say("error", kind=type(error).__name__, message=str(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
