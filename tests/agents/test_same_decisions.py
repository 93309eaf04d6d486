"""The core's policies and their Python forms decide alike, whatever happens, and never lose or misplace a request."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from teal import _core
from teal.agents import policy_names
from teal.agents.spec import shipped

Settings = list[tuple[str, str]]
CASES: list[tuple[str, Settings]] = [
    *((name, []) for name in policy_names()),
    ("fifo-per-worker", [("steal", "0")]),
    ("edf", [("deadline", "300us"), ("deadline.#1", "20us"), ("preempt", "1"), ("quantum", "5us")]),
    ("fair", [("by", "model"), ("weight.#1", "3"), ("weight.#2", "0.5"), ("quantum", "20us")]),
    ("shinjuku", [("by", "session"), ("quantum", "10us"), ("slo.#0", "10us"), ("slo", "2ms")]),
    (
        "composite",
        [
            *(("by", "priority"), ("part.a", "shinjuku"), ("part.b", "fair"), ("part.c", "fifo-per-worker")),
            *(
                ("to.2", "b"),
                ("to.4", "c"),
                ("rank.c", "1"),
                ("share.a", "3"),
                ("a.quantum", "20us"),
                ("quantum", "15us"),
            ),
        ],
    ),
    (
        "composite",
        [
            *(("part.x", "edf"), ("part.y", "composite"), ("y.part.z", "fifo"), ("y.part.w", "fair"), ("y.to.#2", "w")),
            *(("to.#2", "y"), ("to.#3", "y"), ("else", "x"), ("quantum", "0")),
        ],
    ),
]


def both(name: str, values: Settings) -> tuple[_core.Policy, _core.PythonPolicy]:
    core, made = _core.make_policy(name), shipped(name)
    assert core is not None
    assert made is not None
    python = _core.PythonPolicy(made())
    for setting, value in values:
        core.set(setting, value)
        python.set(setting, value)
    return core, python


@pytest.mark.parametrize(
    ("name", "values"), CASES, ids=lambda value: value if isinstance(value, str) else str(len(value))
)
@settings(max_examples=60, deadline=None)
@given(script=st.lists(st.integers(0, 2**32 - 1), max_size=400), workers=st.integers(1, 5))
def test_core_and_python(name: str, values: Settings, script: list[int], workers: int) -> None:
    core, python = both(name, values)
    decisions, violation = _core.play(core, script, workers)
    again, also = _core.play(python, script, workers)
    assert violation == ""
    assert (python.errors, python.last_error) == (0, "")
    assert also == ""
    assert again == decisions


@pytest.mark.parametrize(
    ("name", "values"), CASES, ids=lambda value: value if isinstance(value, str) else str(len(value))
)
def test_settings_are_the_same_words(name: str, values: Settings) -> None:
    core, python = both(name, values)
    assert python.settings() == core.settings()
    assert (python.name, python.work_conserving, python.depth) == (core.name, core.work_conserving, core.depth)
    again, _ = both(name, core.settings())
    assert again.settings() == core.settings()


@pytest.mark.parametrize("name", policy_names())
def test_names_that_come_late(name: str) -> None:
    """What was set by name counts as soon as the index is known."""
    setting = {"edf": "deadline", "fair": "weight", "shinjuku": "slo", "composite": "to"}.get(name)
    if setting is None:
        return
    value = {"edf": "1us", "fair": "50", "shinjuku": "1us", "composite": "b"}[name]
    before: Settings = [("by", "model")] if name == "fair" else []
    before += [("part.a", "fifo"), ("part.b", "fifo"), ("rank.b", "5")] if name == "composite" else []
    core, python = both(name, [*before, (f"{setting}.bert", value)])
    unnamed, _ = both(name, [*before, (f"{setting}.bert", value)])
    numbered, _ = both(name, [*before, (f"{setting}.#3", value)])
    for policy in (core, python):
        policy.named(0, 3, "bert")
        policy.named(0, 2, "other")
    script = [word * 2654435761 % 2**32 for word in range(1, 400)]
    played: list[Any] = [_core.play(policy, script, 2) for policy in (core, python, numbered, unnamed)]
    assert played[0] == played[1] == played[2]
    assert played[0] != played[3]


@pytest.mark.parametrize("name", policy_names())
@pytest.mark.parametrize(("setting", "value"), [("quantums", "1"), ("slo.", "1us"), ("quantum", "fast"), ("by", "colour"), ("weight", "0"), ("steal", "2"), ("else", "x"), ("part.to", "fifo"), ("part.a", "x")])  # fmt: skip
def test_bad_settings_are_refused_alike(name: str, setting: str, value: str) -> None:
    from teal.errors import InvalidArgument

    core, python = both(name, [])
    with pytest.raises(InvalidArgument) as refused:
        core.set(setting, value)
    with pytest.raises(InvalidArgument) as also:
        python.set(setting, value)
    assert str(also.value) == str(refused.value)
