"""The operations that a process of a model yields: one for each access to shared memory, named after what it does
there.

A store is plain; `swap`, `cas` and `add` are locked; `fence`, `sleep` and `wake` wait for the store buffer as well.
`look`, `act` and `when` stand for several accesses at once, where nobody could come between them or where it does
not matter.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable
from dataclasses import dataclass
from functools import partial
from typing import Any

Steps = Generator["Op", Any, Any]
Body = Callable[..., Steps]
ALL = 1 << 30  # wake(name, ALL): INT_MAX


class BrokenError(Exception):
    """Raised inside act() and ghosts: the property named by the message does not hold."""


class Memory:
    """Shared variables by name, for act(), ghosts, `invariant` and `final`."""

    def __init__(self, index: dict[Hashable, int], values: Any) -> None:
        self._index = index
        self._values = values  # a list, or a tuple where nothing may be changed

    def __getitem__(self, name: Hashable) -> Any:
        return self._values[self._index[name]]

    def __setitem__(self, name: Hashable, value: Any) -> None:
        self._values[self._index[name]] = value


Ghost = Callable[[Memory, Any], None]


@dataclass(slots=True)
class Op:
    kind: str
    name: Hashable = None
    value: Any = None
    extra: Any = None
    view: Callable[[Any], Any] | None = None
    ghost: Ghost | None = None
    timed: bool = False
    where: str = ""
    at: int = -1  # index of `name`

    def text(self) -> str:
        what = "" if self.name is None else f" {name_text(self.name)}"
        match self.kind:
            case "store" | "swap":
                return f"{self.kind}{what} = {self.value}"
            case "cas":
                return f"cas{what} {self.value} -> {self.extra}"
            case "add":
                return f"add{what} {self.value:+}"
            case "sleep":
                return "futex wait on " + ", ".join(f"{name_text(name)} == {value}" for name, value in self.value)
            case "act" | "when" | "fail" | "look":
                return str(self.extra)
            case _:
                return f"{self.kind}{what}"


def name_text(name: Hashable) -> str:
    return f"{name[0]}[{','.join(map(str, name[1:]))}]" if isinstance(name, tuple) else str(name)


def load(name: Hashable, view: Callable[..., Any] | None = None, *args: Hashable) -> Op:
    """Result: the value, or view(value, *args): what of it matters here, which keeps the state space small."""
    return Op("load", name, view=partial(_after, view, args) if view is not None and args else view)


def store(name: Hashable, value: Any, *, release: bool = False) -> Op:
    """A plain store (relaxed; `release` matters in the weak model only)."""
    return Op("store", name, value, release)


def swap(name: Hashable, value: Any, view: Callable[[Any], Any] | None = None) -> Op:
    """An exchange, which is what a seq_cst store is on x86-64. Result: view(old value); without a view, None.

    `value` may be a function of the old one.
    """
    return Op("swap", name, value, view=view)


def cas(
    name: Hashable, expected: Any, new: Any, view: Callable[[Any], Any] | None = None, ghost: Ghost | None = None
) -> Op:
    """Result: (won, value seen), or view((won, value seen))."""
    return Op("cas", name, expected, new, view=view, ghost=ghost)


def add(name: Hashable, amount: int) -> Op:
    """A fetch-add whose result nobody looks at."""
    return Op("add", name, amount)


def fence() -> Op:
    return Op("fence")


def sleep(*words: tuple[Hashable, Any], timed: bool = False) -> Op:
    """futex_wait / futex_waitv on (name, expected) pairs. Not `timed`: without a time limit."""
    return Op("sleep", value=words, timed=timed)


def wake(name: Hashable, count: int) -> Op:
    return Op("wake", name, count)


def lock(name: Hashable) -> Op:
    """A robust mutex. Result: "yes", or "after_death" when the last holder died."""
    return Op("lock", name)


def try_lock(name: Hashable) -> Op:
    """Result: "no", "yes" or "after_death"."""
    return Op("try_lock", name)


def unlock(name: Hashable) -> Op:
    return Op("unlock", name)


def choose(*values: Hashable) -> Op:
    """Result: any of the values."""
    return Op("choose", value=values)


def when(condition: Callable[..., bool], text: str, *args: Hashable) -> Op:
    """Goes on only where condition(memory, *args) holds: for what the model leaves out (time, the operating system)."""
    return Op("when", value=partial(_after, condition, args), extra=text)


def look(view: Callable[..., Any], text: str, *args: Hashable) -> Op:
    """Several loads in one step. Result: view(memory, *args); stores still in the buffer do not count."""
    return Op("look", value=partial(_after, view, args), extra=text)


def act(change: Callable[..., Any], text: str, *args: Hashable) -> Op:
    """Any change of memory in one indivisible step. Result: what change(memory, *args) returns."""
    return Op("act", value=partial(_after, change, args), extra=text)


def _after(function: Callable[..., Any], args: tuple[Hashable, ...], first: Any) -> Any:
    return function(first, *args)


def fail(message: str) -> Op:
    return Op("fail", extra=message)


def call(body: Body, *args: Hashable) -> Op:
    """Runs another generator function to its end. Result: what it returns."""
    return Op("call", value=body, extra=args)


def goto(body: Body, *args: Hashable) -> Op:
    """Goes on as body(*args), with nothing remembered."""
    return Op("goto", value=body, extra=args)


def next_dead(memory: Memory) -> int:
    """For act(), where memory["dead"] numbers the workers whose death nobody has heard of: the first one."""
    dead: int = memory["dead"][0]
    memory["dead"] = memory["dead"][1:]
    return dead
