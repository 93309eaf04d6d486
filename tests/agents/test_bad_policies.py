"""Policies that fail in ways of their own: what is said of it names what is wrong, and whoever can serve on does."""

from __future__ import annotations

import contextlib
import re
import threading
from pathlib import Path
from typing import Any

import pytest
from agents_fixtures import odd, right, until
from odd_policies import Plain

import teal
from teal import _core
from teal.agents import Policy
from teal.errors import InvalidArgument, KernelFailed

ARRIVE, PICK = 0 | 3 << 30, 4  # words of a script: a request that may run and be preempted; a worker looks


def error_of(policy: Any, script: list[int] | None = None) -> str:
    """The last line of what its first failure said."""
    driven = _core.PythonPolicy(policy)
    _core.play(driven, script or [ARRIVE, PICK], 2)
    return (driven.last_error.splitlines() or [""])[-1]


class Says(Plain):
    """Raises what it is given."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error

    def pick(self, worker: Any) -> Any:
        raise self.error


class Mute(Exception):
    def __str__(self) -> str:
        raise ValueError("nor does this say it")


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ValueError("no\ud800t \x00 utf-8\nin two lines"), "ValueError: no\\ud800t \x00 utf-8 in two lines"),
        (Mute(), "Mute: (its text cannot be made)"),
        (ValueError("z" * 1_000_000), "ValueError: " + "z" * 4000),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
        (NotImplementedError(), "NotImplementedError"),
    ],
)  # fmt: skip
def test_whatever_is_raised_is_said(error: BaseException, said: str) -> None:
    assert error_of(Says(error)) == said


def test_the_calls_that_led_there_come_first() -> None:
    driven = _core.PythonPolicy(Says(ValueError("here")))
    _core.play(driven, [ARRIVE, PICK], 2)
    calls = driven.last_error.splitlines()[:-1]
    assert calls[-1].startswith(f'File "{__file__}", line ')
    assert calls[-1].endswith("in pick")


@pytest.mark.parametrize("when", [-5, "soon", None, float("nan")])
def test_a_timer_that_is_no_time(when: Any) -> None:
    policy = Plain()
    policy.wake_at = when
    driven = _core.PythonPolicy(policy)
    with pytest.raises(InvalidArgument, match=r"wake_at is .*, expected a number, 0 or more"):
        _simulated(lambda: driven)


def _simulated(make: Any) -> None:
    """Runs it; raises what it failed with."""
    from teal import sim

    result = sim.simulate(make, requests=50)
    if result.policy_error:
        raise InvalidArgument(result.policy_error)


def test_a_timer_may_be_computed_with_floats() -> None:
    class Late(Plain):
        def runnable(self, request: Any) -> None:
            super().runnable(request)
            self.wake_at = self.now + 1e6  # type: ignore[assignment]

    _simulated(Late)


class Same(Plain):
    """Looks at its queue, and takes nothing out of it."""

    def pick(self, worker: Any) -> Any:
        return self.waiting[0] if self.waiting else None


def test_one_that_never_takes_what_it_picks_out_of_its_queue() -> None:
    assert "again and again, which has ended or may not run now" in error_of(Same(), [ARRIVE, PICK, PICK | 1 << 12])


class Waits(Plain):
    async def runnable(self, request: Any) -> None:  # type: ignore[override]
        super().runnable(request)


class Yields(Plain):
    def preempt(self, worker: Any) -> Any:
        yield True


@pytest.mark.parametrize(("policy", "method"), [(Waits, "Waits: runnable"), (Yields, "Yields: preempt")])
def test_a_method_that_is_no_plain_one_is_refused(policy: type[Policy], method: str) -> None:
    with pytest.raises(InvalidArgument, match=rf"{method}\(\) is async or has a yield"):
        _core.PythonPolicy(policy())


def test_a_gang_may_be_given_one_by_one() -> None:
    class Gangs(Policy):
        def pick_group(self, workers: Any) -> Any:
            yield from ()

    assert error_of(Gangs()) == ""


def test_gangs_alone_are_enough() -> None:
    class Gangs(Policy):
        def pick_group(self, workers: Any) -> None:
            return None

    assert error_of(Gangs()) == ""


def test_a_set_that_answers_nothing() -> None:
    class Forgets(Plain):
        def set(self, name: str, value: str) -> bool:
            return None  # type: ignore[return-value]

    with pytest.raises(InvalidArgument, match="returned None, expected True or False"):
        _core.PythonPolicy(Forgets()).set("pause", "3")


def test_a_dump_that_raises_is_what_is_shown(agent_host: teal.Host, echo: teal.Model) -> None:
    agent = agent_host.agents.start("default", odd("DumpsBadly"))
    right(echo, 5)
    assert "dump() raised" in agent_host.agents.dump("default")
    right(echo, 5)
    assert agent_host.agents["default"].pid == agent.pid


@pytest.mark.parametrize(
    ("name", "match"),
    [
        ("NeverDecides", "never decides; give the class a method pick"),
        ("CannotBeSaid", r"cannot be made: ValueError: no\\ud800t utf-8"),
        ("SaysTooMuch", "cannot be made: ValueError: zzzz"),
        ("BadSettings", "cannot be made: TypeError"),
        ("ManySettings", "has 100002 settings, .* characters in all: expected at most"),
    ],
)
def test_what_cannot_serve_is_refused_in_words(agent_host: teal.Host, echo: teal.Model, name: str, match: str) -> None:
    with pytest.raises(InvalidArgument, match=match):
        agent_host.agents.start("default", odd(name))
    right(echo, 5)


def test_settings_by_name_end_somewhere(agent_host: teal.Host, echo: teal.Model) -> None:
    agent = agent_host.agents.start("default", "fair")
    many = [{f"weight.model-{batch}-{i}": "2" for i in range(200)} for batch in range(20)]
    with pytest.raises(InvalidArgument, match="expected at most"):
        _set_all(agent_host, many)
    right(echo, 5)
    now = agent_host.agents["default"]
    assert (now.pid, now.state) == (agent.pid, "online")


def _set_all(host: teal.Host, many: list[dict[str, str]]) -> None:
    for settings in many:
        host.agents.set("default", **settings)


def test_one_that_is_long_in_the_making_says_where(agent_host: teal.Host, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="teal.host")
    starting = threading.Thread(target=_refused, args=(agent_host,))
    starting.start()
    until(lambda: re.search(r"odd_policies\.py.*, line \d+ in __init__", caplog.text))
    agent_host.close()
    starting.join()


def _refused(host: teal.Host) -> None:
    with contextlib.suppress(teal.TealError):
        host.agents.start("default", odd("MadeSlowly"))


def test_what_is_wrong_once_it_serves_is_why_it_fell(agent_host: teal.Host, echo: teal.Model) -> None:
    agent_host.agents.start("default", odd("BadDepth"))
    right(echo, 20)
    until(lambda: any(line.what == "fallback" for line in agent_host.agents.audit()))
    fell = next(line for line in agent_host.agents.audit() if line.what == "fallback")
    assert "depth is 'many', expected a number, 0 or more" in fell.why
    right(echo, 5)


def test_a_pool_has_a_name(agent_host: teal.Host) -> None:
    for wrong in (agent_host.agents.dump, agent_host.agents.of, agent_host.agents.stop, agent_host.agents.__getitem__):
        with pytest.raises(InvalidArgument, match="the name of a pool"):
            wrong(0)  # type: ignore[operator]


def test_a_kernel_that_raises_what_is_no_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "no_text.py").write_text(
        "class Kernel:\n    def __init__(self):\n        raise ValueError('no\\ud800t utf-8')\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    with teal.Host() as host, pytest.raises(KernelFailed, match=r"ValueError: no\\ud800t utf-8"):
        host.load("no_text", "no_text:Kernel")
