"""Policies that people write: events, what pick may return, what happens when one raises, and settings."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest

from teal import _core
from teal.agents import Decision, Flag, PerName, Policy, PolicySpec, Request, Time, WaitList, Worker, parse_policy
from teal.errors import InvalidArgument, NotFound

ARRIVE, PICK, DONE, PREEMPTED, REFUSED, ASK = 0 | 4 << 30, 4, 7, 8, 10, 14
RUNNABLE = 1 << (18 + 12)


def arrive(bits: int = 0) -> int:
    """A word of a script: a request that may run and be preempted."""
    return RUNNABLE | 1 << (19 + 12) | bits << 12


class Shortest(Policy):
    """As a person would write it: no thought of requests that end, are blocked, or come back."""

    def __init__(self) -> None:
        self.queue: list[Request] = []

    def runnable(self, request: Request) -> None:
        self.queue.append(request)
        self.queue.sort(key=lambda each: each.expected_ns)

    def pick(self, worker: Worker) -> Request | None:
        return self.queue.pop(0) if self.queue else None


def test_a_simple_policy_is_enough_where_nothing_is_bound() -> None:
    policy = _core.PythonPolicy(Shortest())
    script = [word * 2654435761 % 2**32 for word in range(2000)]
    script = [word for word in script if word & 15 not in (8, 9)]
    decisions, violation = _core.play(policy, script)
    assert (violation, policy.last_error) == ("", "")
    assert sum(1 for each in decisions if each) > 100
    assert policy.name == "Shortest"


def test_a_request_of_another_worker_is_an_error_that_says_so() -> None:
    policy = _core.PythonPolicy(Shortest())
    decisions, _ = _core.play(policy, [arrive(), PICK, PREEMPTED, PICK | 1 << 12], 2)
    assert policy.errors == 1
    assert "only worker 0 can go on with" in policy.last_error
    assert decisions[2:] == [0, 0]  # and there it ends: a worker was given nothing while something waits


class Watching(Shortest):
    """Writes down what it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[Any] = []

    def new(self, request: Request) -> None:
        request.mine = self.now
        self.told.append(("new", request.index, request.model, request.worker, request.staged, request.over))
        super().new(request)

    def preempted(self, request: Request) -> None:
        self.told.append(("preempted", request.ran_ns, request.worker, self.now - request.mine))

    def done(self, request: Request) -> None:
        self.told.append(("done", request.ran_ns))

    def preempt(self, worker: Worker) -> bool:
        assert worker.running is not None
        self.told.append(("preempt?", worker.index, worker.running.index, worker.since_ns <= self.now, worker.idle))
        return True


def test_events_come_with_what_is_known() -> None:
    watching = Watching()
    policy = _core.PythonPolicy(watching)
    wait = 10 << 4
    decisions, violation = _core.play(policy, [arrive(2), PICK, ASK, PREEMPTED | wait, PICK | wait], 1)
    assert watching.told == [
        ("new", 0, 2, None, False, False),
        ("preempt?", 0, 0, True, True),
        ("preempted", 9970, 0, 9970),
    ]
    assert decisions[:4] == [1, 0, 1, 0]
    assert violation  # preempted() dropped the request


def test_a_request_outlives_what_it_stands_for() -> None:
    kept: list[Request] = []

    class Keeping(Shortest):
        def done(self, request: Request) -> None:
            kept.append(request)

    _core.play(_core.PythonPolicy(Keeping()), [arrive(3), PICK, DONE, arrive(1), PICK, DONE], 1)
    gc.collect()
    first, second = kept
    assert first is not second  # of one record
    assert (first.index, first.model, second.index, second.model) == (0, 3, 0, 1)
    assert first.over
    with pytest.raises(AttributeError, match="no attribute 'mine'"):
        _ = first.mine


@pytest.mark.parametrize("event", ["new", "runnable", "pick", "preempt", "done"])
def test_what_a_policy_raises_is_counted_and_kept(event: str) -> None:
    class Failing(Shortest):
        pass

    def fail(*_: Any) -> None:
        raise ZeroDivisionError(f"in {event}")

    setattr(Failing, event, fail)
    policy = _core.PythonPolicy(Failing())
    _core.play(policy, [arrive(), PICK, ASK, DONE], 1)
    assert policy.errors >= 1
    assert f"ZeroDivisionError: in {event}" in policy.last_error
    assert "test_policy.py" in policy.last_error


@pytest.mark.parametrize("given", [5, "request", object()])
def test_pick_that_returns_something_else(given: Any) -> None:
    class Odd(Shortest):
        def pick(self, worker: Worker) -> Any:
            return given

    policy = _core.PythonPolicy(Odd())
    decisions, violation = _core.play(policy, [arrive(), PICK], 1)
    assert decisions == [0]
    assert "was given nothing" in violation
    assert policy.errors == 1
    assert "expected a Request, a Decision or None" in policy.last_error


def test_a_decision_says_how_it_runs() -> None:
    class Sliced(Shortest):
        def pick(self, worker: Worker) -> Decision | None:
            request = super().pick(worker)
            return Decision(None) if request is None else Decision(request, slice_ns=70_000)

    assert _core.play(_core.PythonPolicy(Sliced()), [arrive(), PICK, DONE], 1)[0] == [1, 70_000, 0]


def test_a_policy_that_offers_forever_what_has_ended() -> None:
    class Stuck(Shortest):
        def pick(self, worker: Worker) -> Request | None:
            return self.queue[0] if self.queue else None

    decisions, violation = _core.play(_core.PythonPolicy(Stuck()), [arrive(), arrive(), PICK, DONE, PICK], 1)
    assert decisions == [1, 0, 0]
    assert "waits" in violation


def test_only_policies_are_driven() -> None:
    with pytest.raises(InvalidArgument, match="derive from"):
        _core.PythonPolicy(object())


def test_waiting_lists_keep_order_across_workers() -> None:
    class Listed(Policy):
        def __init__(self) -> None:
            self.waiting = WaitList()

        def runnable(self, request: Request) -> None:
            self.waiting.push(request)

        def pick(self, worker: Worker) -> Request | None:
            return self.waiting.pop(worker.index)

    events = [arrive(), arrive(), PICK | 1 << 12, PREEMPTED, PICK, PICK, PICK | 1 << 12]
    decisions, violation = _core.play(_core.PythonPolicy(Listed()), events, 2)
    assert violation == ""
    assert [each for each in decisions if each] == [1, 2, 1]


# ---- words -----------------------------------------------------------------------------------------------------------


class Set(Policy):
    patience = Time("50us", least="1us")
    slo = PerName(Time("1ms"))
    eager = Flag("1")


def test_settings_of_a_class() -> None:
    policy = _core.PythonPolicy(Set())
    assert policy.settings() == [("patience", "50us"), ("slo", "1ms"), ("eager", "1")]
    policy.set("patience", "2ms")
    policy.set("slo.a.b", "3us")
    policy.set("eager", "off")
    assert policy.python.patience == 2_000_000
    assert policy.settings() == [("patience", "2ms"), ("slo", "1ms"), ("eager", "0"), ("slo.a.b", "3us")]
    with pytest.raises(InvalidArgument, match="has no setting 'size'; it has patience, slo, eager"):
        policy.set("size", "1")
    with pytest.raises(InvalidArgument, match="expected a time of 1us to 24 hours"):
        policy.set("patience", "0")
    assert Set().patience == 50_000  # another one's own


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("fifo", PolicySpec("fifo")),
        ("shinjuku:quantum=50us,slo.bert=1ms", PolicySpec("shinjuku", "", {"quantum": "50us", "slo.bert": "1ms"})),
        ("mine.py:Mine", PolicySpec("mine.py", "Mine")),
        ("./a/mine.py:Mine:size=3", PolicySpec("./a/mine.py", "Mine", {"size": "3"})),
        ("package.module:Class:x=a=b", PolicySpec("package.module", "Class", {"x": "a=b"})),
    ],
)
def test_specs(text: str, spec: PolicySpec) -> None:
    assert PolicySpec.parse(text) == spec
    assert PolicySpec.parse(str(spec)) == spec


@pytest.mark.parametrize(
    "text", ["", "lifo", ":x", "mine.py", "mine.py:", "fifo:x", "fifo:x=1,x=2", "fifo:=1", "a:b c"]
)
def test_specs_that_make_no_sense(text: str) -> None:
    with pytest.raises(InvalidArgument, match=r"expected|twice"):
        PolicySpec.parse(text)


MINE = """
from __future__ import annotations
from dataclasses import dataclass
from teal.agents import Policy, Time

@dataclass
class Note:
    text: str

class Mine(Policy):
    patience = Time("5us")
    def pick(self, worker):
        return None

class Other:
    pass
"""


def test_a_file_and_a_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "mine_policy.py"
    path.write_text(MINE)
    policy = parse_policy(f"{path}:Mine:patience=7us")
    assert isinstance(policy, _core.PythonPolicy)
    assert (policy.name, policy.settings()) == ("Mine", [("patience", "7us")])
    monkeypatch.syspath_prepend(str(tmp_path))
    assert parse_policy("mine_policy:Mine").settings() == [("patience", "5us")]
    assert parse_policy("teal.agents.sched.shinjuku:Shinjuku:quantum=9us").settings()[0] == ("quantum", "9us")
    for missing in ("nowhere.py:Mine", "no_such_package.x:Mine"):
        with pytest.raises(NotFound):
            parse_policy(missing)
    for wrong in ("Other", "Missing"):
        with pytest.raises(InvalidArgument, match="derives from"):
            parse_policy(f"{path}:{wrong}")
    with pytest.raises(InvalidArgument, match="has no setting 'size'"):
        parse_policy(f"{path}:Mine:size=1")
