"""Numbers, sizes and durations as people read and type them; intervals between two looks."""

from __future__ import annotations

from typing import Any

import click
import pytest

from teal.cli import draw, options
from teal.cli.interval import added, between
from teal.host.cache import Cache
from teal.host.records import TensorSpec


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0, "0 ns"), (0.12, "120 ns"), (0.9996, "1.00 µs"), (12.34, "12.3 µs"), (99.96, "100 µs"), (999.4, "999 µs"),
        (999.6, "1.00 ms"), (1640, "1.64 ms"), (2.1e6, "2.10 s"), (4e9, "4000 s"),
    ],
)  # fmt: skip
def test_micros(value: float, shown: str) -> None:
    assert draw.micros(value) == shown


def test_lasted_size_and_rate() -> None:
    assert [draw.lasted(s) for s in (0, 0.354, 12.9, 185, 7385, 180_000)] == [
        "0.00 s", "0.35 s", "12 s", "3 min 05 s", "2 h 03 min", "2 d 02 h",
    ]  # fmt: skip
    assert [draw.size(n) for n in (0, 1023, 1024, 22_972_370, 1 << 62)] == [
        "0 B", "1023 B", "1.0 KiB", "21.9 MiB", "4194304.0 TiB",
    ]  # fmt: skip
    assert [draw.rate(r) for r in (0, 0.26, 99.9, 1234.5)] == ["0", "0.3", "99.9", "1,234"]


def test_names_out_of_a_model_file_are_only_text() -> None:
    assert draw.printable("a\x1b[2Jb\nc\u202ed é") == "a\\x1b[2Jb\\nc\\u202ed é"
    spec = TensorSpec("\x1b[31m[red]x", "float32", ("\n", None, 3), optional=True)
    assert draw.tensor(spec) == "\\x1b[31m[red]x float32[\\n, ?, 3] (optional)"
    assert draw.tensor(TensorSpec("y", None, None, like="x")) == "y like x"
    table = draw.table(("a",))
    draw.row(table, "[bold]b[/bold]")
    assert str(next(iter(table.columns[0].cells))) == "[bold]b[/bold]"


def option(callback: Any, value: str | None) -> Any:
    return callback(click.Context(click.Command("x")), click.Option(["--x"]), value)


def test_durations_and_sizes_as_typed() -> None:
    durations = ("5ms", "200us", "1.5s", "2", None)
    assert [option(options.seconds, text) for text in durations] == [0.005, 0.0002, 1.5, 2, None]
    assert [option(options.nbytes, text) for text in ("1", "4k", "1.5M", "4GiB", "2TB", None)] == [
        1, 4096, 3 << 19, 4 << 30, 2 << 40, None,
    ]  # fmt: skip
    for text in ("", "x", "-1", "nan", "1h", "9e9"):
        with pytest.raises(click.BadParameter):
            option(options.seconds, text)
    for text in ("", "0", "-1", "4X", "nan", "0.0001"):
        with pytest.raises(click.BadParameter):
            option(options.nbytes, text)
    assert options.pairs(("a=1", "b=x=y"), "--o") == {"a": "1", "b": "x=y"}


def raw(uptime: float, requests: int, buckets: list[tuple[int, int]], **changes: Any) -> dict[str, Any]:
    stages = {"queue": buckets, "run": buckets, "copy": []}
    counters = ("failed", "cancelled", "expired", "in_flight", "copies_in", "copies_out", "bytes_copied", "bindings")
    counters += ("apk", "pl", "cpu", "chained", "batches", "batched", "held")
    counters += ("preemptions", "yields", "resumed", "cannot_preempt", "dropped")
    return {
        "address": "@x", "pid": 1, "version": "0", "uptime_s": uptime, "queued": 0, "active": 0, "restarts": 0,
        "failed_with_worker": 0, "run_again": 0,
        "workers": [{"pid": 2, "pool": "default", "state": "idle", "requests": requests, "sleeps": requests,
             "lent_by": None}],
        "clients": [],
        "pools": [],
        "cache": Cache(None, 1, "off").numbers(),
        "callers": {},
        "descriptors": 64,
        "models": [
            {"name": "m", "version": 1, "line": 0, "index": 0, "current": True, "pool": "default", "kernel": "onnx",
             "device": None, "path": None, "batches": {}, "fallbacks": 0, "losses": 0, "note": ""}
        ],
        "versions": {"default/0": {"requests": requests, "stages": stages, **dict.fromkeys(counters, 0)}},
        **changes,
    }  # fmt: skip


def test_between_two_looks() -> None:
    first = raw(10, 100, [(1000, 90), (2000, 10)])
    second = raw(12, 104, [(1000, 91), (2000, 10), (64000, 3)])
    found = between(first, second)
    assert (found.interval_s, found.since_start) == (2, False)
    assert found.workers[0].requests_per_s == found.workers[0].sleeps_per_s == 2
    (model,) = found.models
    assert (model.requests, model.requests_per_s) == (104, 2)
    assert model.stages["run"].count == 4
    assert model.stages["run"].p50_us > 60
    assert between(None, second).models[0].stages["run"].count == 104


def test_what_is_new_counts_from_zero() -> None:
    first, second = raw(10, 100, [(1000, 100)]), raw(1, 3, [(1000, 3)], pid=9)
    restarted = between(first, second)
    assert (restarted.since_start, restarted.interval_s, restarted.models[0].stages["run"].count) == (True, 1, 3)
    reloaded = between(first, raw(11, 3, [(1000, 3)]))  # same name and number, fewer requests: another one
    assert (reloaded.since_start, reloaded.models[0].stages["run"].count) == (False, 3)
    assert between(first, raw(11, 3, [], versions={})).models == ()


def test_buckets_wrap() -> None:
    assert added([(16, (1 << 32) - 2), (32, 5)], [(16, 3), (32, 5), (48, 1)]) == [(16, 5), (48, 1)]
