"""`teal serve --pool`, and the pool in what the other commands say."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import teal
from teal.cli.pools import pools

Serve = Callable[..., Any]
Typed = Callable[[Any], Any]


def test_a_host_with_two_pools(serve: Serve, typed: Typed) -> None:
    host = serve(
        *("--pool", "fast:workers=2,idle=1ms,bytes=4M,in-flight=3"),
        *("--load", "fast:echo=builtin:identity", "--load", "sum=builtin:sum"),
    )
    at = ["--host", host.name]
    assert [len(host.ready["pools"][name]) for name in ("default", "fast")] == [1, 2]
    listed = typed(["ls", "--json", *at]).json["models"]
    assert {m["name"]: m["pool"] for m in listed} == {"echo": "fast", "sum": "default"}
    loaded = typed(["load", "more", "builtin:sum", "--pool", "fast", *at])
    assert loaded.out.startswith("more version 1: builtin sum, pool fast, loaded in ")
    assert typed(["load", "more", "builtin:identity", "--json", *at]).json["pool"] == "fast"
    assert "is in pool 'fast'" in typed(["load", "more", "builtin:sum", "--pool", "default", *at]).err
    nowhere = typed(["load", "x", "builtin:sum", "--pool", "no", *at]).err
    assert nowhere == "NotFound: pool 'no'; this host has ['default', 'fast']"
    for name in ("echo", "sum"):
        assert typed(["infer", name, "x=[1, 2]", "--json", *at]).json["outputs"][0]["values"] in ([1, 2], [3])
    seen = typed(["stat", "--json", *at]).json
    assert [(pool["name"], pool["workers"], pool["idle_us"]) for pool in seen["pools"]] == [
        ("default", 1, 200),
        ("fast", 2, 1000),
    ]
    assert sorted(worker["pool"] for worker in seen["workers"]) == ["default", "fast", "fast"]
    while any(m["in_flight"] for m in seen["models"]):  # a worker counts just after it has answered
        seen = typed(["stat", "--json", *at]).json
    assert {m["name"]: (m["pool"], m["requests"]) for m in seen["models"]} == {
        "echo": ("fast", 1), "more": ("fast", 0), "sum": ("default", 1),
    }  # fmt: skip
    assert "fast/echo" in typed(["stat", *at]).out


def test_a_pool_that_helps(serve: Serve, typed: Typed) -> None:
    host = serve("--pool", "bulk:helps=default", "--load", "wait=builtin:sleep")
    with teal.connect(host.ready["address"]) as attached:
        model = attached.model("wait")
        for future in [model.submit(5_000) for _ in range(20)]:
            future.result()
    seen = typed(["stat", "--json", "--host", host.name]).json
    assert [(pool["name"], pool["helps"]) for pool in seen["pools"]] == [("default", []), ("bulk", ["default"])]
    default, bulk = seen["pools"]
    assert default["stolen"] == bulk["helped"] > 0
    assert sorted((w["pool"], w["lent_by"] or "") for w in seen["workers"]) == [
        ("bulk", ""),
        ("default", ""),
        ("default", "bulk"),
    ]
    out = typed(["stat", "--host", host.name]).out
    assert "default (lent by bulk)" in out
    assert f"pool default: {default['stolen']} requests were run by other pools that help it" in out
    assert pools(("bulk:helps=default+other",)) == {"bulk": {"helps": ["default", "other"]}}


def test_what_is_typed() -> None:
    assert pools(("a", "b:workers=2,cores=0,2-3,5,idle=1ms", "c:in-flight=4,bytes=1G,slots=5,threads=1")) == {
        "a": {},
        "b": {"workers": 2, "cores": [0, 2, 3, 5], "idle": "1ms"},
        "c": {"in_flight": 4, "bytes": 1 << 30, "slots": 5, "threads": 1},
    }


@pytest.mark.parametrize(
    ("pool", "said"),
    [
        ("", "expected NAME or NAME:workers=2"),
        ("a:workers", "'workers', expected SETTING=VALUE; there are workers, idle"),
        ("a:workers=two", "workers='two', expected a whole number"),
        ("a:workers=0", "$.pools['a'].workers: 0, expected 1 to"),
        ("a:workers=1,workers=2", "'workers' is given twice"),
        ("a:cores=3-1", "expected cores such as"),
        ("a:bytes=many", "expected a size such as"),
        ("a:idle=soon", "$.pools['a'].idle: 'soon', expected a duration"),
        ("a:speed=9", "['speed']: not settings of a pool; there are"),
        ("../a", "pool name: expected 1 to 128 letters"),
    ],
)
def test_bad_pools(typed: Typed, name: str, pool: str, said: str) -> None:
    result = typed(["serve", "--json", "--name", name, "--pool", pool])
    assert result.status in (1, 2)
    assert result.out == ""
    assert said in result.err


def test_a_pool_given_twice(typed: Typed, name: str) -> None:
    assert "'a' is given twice" in typed(["serve", "--name", name, "--pool", "a", "--pool", "a:workers=2"]).err
