"""Contests that were finished, kept in the cache folder so that an interrupted bench can go on from there.

A file holds the rows as they were reported and the samples they were made from. It is taken only if the model's file,
the versions, the processor and the plan are the same and it is at most `HOURS` old; its rows then say when they were
measured.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import time
from array import array
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from teal.bench import machine
from teal.bench.lanes import Times
from teal.bench.report import Row
from teal.bench.rivals import zoo

from .entrant import Contest, Tuned
from .stage import Stage

HOURS = 12.0
LAYOUT = 1


def key(stage: Stage, entry: zoo.Entry, batch: int, *, compiled: bool) -> dict[str, Any]:
    """What a contest depends on."""
    return {
        "layout": LAYOUT,
        "model": entry.name,
        "batch": batch,
        "compiled": compiled,
        "cpu": machine.cpu_model(),
        "cores": stage.cores,
        "versions": machine.own_versions(),
        "rivals": None if stage.rivals is None else stage.rivals.python,
        "plan": vars(stage.plan),
    }


def path_of(stage: Stage, key: dict[str, Any]) -> Path:
    name = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:16]
    return stage.cache / "contests" / f"{key['model']}-b{key['batch']}-{name}.json"


def write(stage: Stage, key: dict[str, Any], contest: Contest, rows: Sequence[Row]) -> None:
    """Keeps a contest; a cache that cannot be written costs the next run its time and nothing else."""
    path = path_of(stage, key)
    record = {
        "key": key,
        "at": time.time(),
        "rows": [asdict(row) for row in rows],
        "tuned": None if contest.tuned is None else asdict(contest.tuned),
        "times": {row: [encode(block) for block in times.blocks] for row, times in contest.times.items()},
    }
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.with_suffix(".partial").write_text(json.dumps(record), encoding="utf-8")
        os.replace(path.with_suffix(".partial"), path)
    except OSError:
        stage.say("could not keep this contest")


def read(stage: Stage, key: dict[str, Any]) -> Contest | None:
    """A kept contest, its rows added to the report; None where there is none that suits."""
    try:
        record = json.loads(path_of(stage, key).read_text(encoding="utf-8"))
        if record["key"] != key or not 0 <= time.time() - record["at"] <= HOURS * 3600:
            return None
        contest = Contest(zoo.ZOO[key["model"]], key["batch"])
        contest.times = {row: Times([decode(block) for block in blocks]) for row, blocks in record["times"].items()}
        contest.tuned = None if record["tuned"] is None else Tuned(**record["tuned"])
        rows = [Row(**row) for row in record["rows"]]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    ago = f"measured {(time.time() - record['at']) / 60:.0f} min before"
    stage.report.rows.extend(replace(row, note=f"{row.note}; {ago}" if row.note else ago) for row in rows)
    return contest


def encode(samples: array[int]) -> str:
    return base64.b64encode(samples.tobytes()).decode()


def decode(text: str) -> array[int]:
    samples = array("q")
    samples.frombytes(base64.b64decode(text))
    return samples
