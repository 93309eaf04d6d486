"""An explicit-state model checker for protocols of a few processes that share memory.

Theory of operation. A process is a generator function that yields one operation per access to shared memory and is
sent its result; it reads like the C++ it stands for. explore() runs all interleavings breadth first, with a set of
the states seen, so the first counterexample found is a shortest one. Four things can happen at any moment: a
process takes its next step, a store leaves a store buffer, a process that is `mortal` dies, or nothing at all any
more. In the last case every process that is not a `daemon` must have ended and `final` must agree: somebody asleep
whom nobody will wake is a lost wake-up.

A generator cannot be copied or compared, but what it does next follows from its function, its arguments and the
results it was sent. These three are the local state; the generator is run again from them when a new local state
turns up, and never otherwise. `call` returns only the callee's result to the caller's history and `goto` forgets
the history, so paths merge there. Code between two operations must depend on nothing else.

Memory models. "sc": stores are seen at once. "tso" (x86-64): a store enters its process's first-in first-out buffer
and leaves it at any later time; loads look into their own buffer first; locked operations, full fences and system
calls wait until it is empty. "weak": as tso, but stores that are not `release` may leave in any order (loads are
never reordered: this is less than ARM allows). What a process had stored when it dies has arrived before anybody
can hear of its death.
"""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from .operation import Body, BrokenError, Memory, Op, name_text

State = tuple[Any, ...]  # (memory, local states, what each sleeps on, store buffers, deaths so far)
Event = tuple[int, Any, Any]  # process; local state, store that arrived, or None for its death; result
ENDED, DEAD = -1, -2
_UNORDERED = frozenset({"load", "store", "choose", "when", "look"})  # do not wait for the store buffer


class CounterexampleError(AssertionError):
    """What explore() raises: a property, and a shortest way to break it."""

    def __init__(self, problem: str, trace: list[str], states: int) -> None:
        self.problem = problem
        self.trace = trace
        lines = "\n".join(f"  {number:3} {line}" for number, line in enumerate(trace, 1))
        super().__init__(f"{problem}\nafter {len(trace)} steps ({states} states seen):\n{lines}")


@dataclass
class Process:
    name: str
    body: Body
    args: tuple[Hashable, ...] = ()
    daemon: bool = False  # may be asleep, or waiting, at the end
    mortal: bool = False  # may die at every step
    patient: bool = False  # takes a step only when nobody else can: a timer that comes too late rather than in time


@dataclass
class Model:
    processes: list[Process]
    memory: dict[Hashable, Any]
    order: str = "tso"
    deaths: int = 0
    # what memory of the model's own says about the process that died
    on_death: Callable[[Memory, int], None] | None = None
    invariant: Callable[[Memory], str | None] | None = None
    final: Callable[[Memory], str | None] | None = None
    limit: int = 1_500_000  # states
    index: dict[Hashable, int] = field(init=False)

    def __post_init__(self) -> None:
        self.index = {name: at for at, name in enumerate(self.memory)}


@dataclass(frozen=True)
class Outcome:
    states: int
    steps: int
    ends: int  # states in which nothing can happen any more


class _Locals:
    """Interns local states and knows the operation each of them is about to do."""

    def __init__(self, index: dict[Hashable, int]) -> None:
        self._index = index
        self._ids: dict[tuple[Any, ...], int] = {}
        self._frames: list[tuple[Any, ...]] = []
        self._after: dict[tuple[int, Any], int] = {}
        self.ops: list[Op] = []

    def start(self, body: Body, args: tuple[Hashable, ...]) -> int:
        return self._settle([(body, args, ())])

    def after(self, local: int, result: Any) -> int:
        key = (local, result)
        found = self._after.get(key)
        if found is None:
            *below, (body, args, history) = self._frames[local]
            found = self._after[key] = self._settle([*below, (body, args, (*history, result))])
        return found

    def _settle(self, frames: list[Any]) -> int:
        while frames:
            body, args, history = frames[-1]
            steps = body(*args)
            try:
                op = next(steps)
                for result in history:
                    op = steps.send(result)
            except StopIteration as end:
                frames.pop()
                if frames:
                    below = frames[-1]
                    frames[-1] = (below[0], below[1], (*below[2], end.value))
                continue
            if op.kind == "call":
                frames.append((op.value, op.extra, ()))
            elif op.kind == "goto":
                frames[-1] = (op.value, op.extra, ())
            else:
                return self._intern(tuple(frames), op, f"{body.__name__}:{steps.gi_frame.f_lineno}")
        return ENDED

    def _intern(self, frames: tuple[Any, ...], op: Op, where: str) -> int:
        found = self._ids.get(frames)
        if found is None:
            op.where = where
            if op.name is not None:
                op.at = self._index[op.name]
            if op.kind == "sleep":
                op.extra = tuple((self._index[name], value) for name, value in op.value)
            found = self._ids[frames] = len(self._frames)
            self._frames.append(frames)
            self.ops.append(op)
        return found


class _Explorer:
    def __init__(self, model: Model) -> None:
        self.model = model
        self.locals = _Locals(model.index)
        self.names = [process.name for process in model.processes]
        self.patient = [process.patient for process in model.processes]
        self.came: dict[State, tuple[State, Event] | None] = {}
        self.steps = self.ends = 0

    def run(self) -> Outcome:
        model = self.model
        count = len(model.processes)
        start = tuple(self.locals.start(process.body, process.args) for process in model.processes)
        first: State = (tuple(model.memory.values()), start, (None,) * count, ((),) * count, 0)
        self.came[first] = None
        self._check_invariant(first)
        queue = deque([first])
        came = self.came
        while queue:
            state = queue.popleft()
            stuck = True
            for patient in (False, True):
                for event, following in self._successors(state, patient):
                    self.steps += 1
                    stuck = stuck and following[4] != state[4]  # nobody has to die
                    if following not in came:
                        came[following] = (state, event)
                        if model.invariant is not None:
                            self._check_invariant(following)
                        queue.append(following)
                if not stuck:
                    break
            else:
                self._check_end(state)
            if len(came) > model.limit:
                raise RuntimeError(f"more than {model.limit} states: choose smaller bounds")
        return Outcome(len(came), self.steps, self.ends)

    # ---- properties --------------------------------------------------------------------------------------------------

    def _memory(self, values: Sequence[Any]) -> Memory:
        return Memory(self.model.index, values)

    def _check_invariant(self, state: State) -> None:
        if self.model.invariant is not None and (problem := self.model.invariant(self._memory(state[0]))) is not None:
            raise self._counterexample(problem, state)

    def _check_end(self, state: State) -> None:
        self.ends += 1
        for at, process in enumerate(self.model.processes):
            local = state[1][at]
            if local >= 0 and not process.daemon:
                op = self.locals.ops[local]
                raise self._counterexample(f"{process.name} is stuck for ever at {op.where} {op.text()}", state)
        if self.model.final is not None and (problem := self.model.final(self._memory(state[0]))) is not None:
            raise self._counterexample(problem, state)

    def _counterexample(self, problem: str, state: State, last: Event | None = None) -> CounterexampleError:
        events = [] if last is None else [last]
        while (link := self.came[state]) is not None:
            state, event = link
            events.append(event)
        return CounterexampleError(problem, [self._text(event) for event in reversed(events)], len(self.came))

    def _text(self, event: Event) -> str:
        at, what, result = event
        if what is None:
            return f"{self.names[at]} dies"
        if isinstance(what, tuple):
            variable, value, _ = what
            return f"{self.names[at]}'s store {name_text(list(self.model.index)[variable])} = {value} arrives"
        op = self.locals.ops[what]
        shown = "" if result is None else f": {result}"
        return f"{self.names[at]:9} {op.where:22} {op.text()}{shown}"

    # ---- steps -------------------------------------------------------------------------------------------------------

    def _successors(self, state: State, patient: bool) -> Iterator[tuple[Event, State]]:
        memory, locals_, asleep, buffers, deaths = state
        may_die = deaths < self.model.deaths
        for at, local in enumerate(locals_):
            if self.patient[at] is not patient:
                continue
            if buffers[at]:
                yield from self._drains(state, at)
            if local < 0:
                continue
            if may_die and self.model.processes[at].mortal:
                yield (at, None, None), self._death(state, at)
            if asleep[at] is None:
                op = self.locals.ops[local]
                if op.kind == "load":  # the most frequent one
                    value = self._seen(state, at, op)
                    if op.ghost is None:
                        moved = _put(locals_, at, self.locals.after(local, value))
                        yield (at, local, value), (memory, moved, asleep, buffers, deaths)
                        continue
                yield from self._step(state, at, local, op)
            elif self.locals.ops[local].timed:
                moved = _put(locals_, at, self.locals.after(local, None))
                yield (at, local, "times out"), (memory, moved, _put(asleep, at, None), buffers, deaths)

    def _death(self, state: State, at: int) -> State:
        memory, locals_, asleep, buffers, deaths = state
        values = list(memory)
        for variable, value, _ in buffers[at]:
            values[variable] = value
        view = self._memory(values)
        if self.model.on_death is not None:
            self.model.on_death(view, at)
        return tuple(values), _put(locals_, at, DEAD), _put(asleep, at, None), _put(buffers, at, ()), deaths + 1

    def _drains(self, state: State, at: int) -> Iterator[tuple[Event, State]]:
        memory, locals_, asleep, buffers, deaths = state
        buffer = buffers[at]
        for place, stored in enumerate(buffer):
            variable, value, release = stored
            if place > 0 and (
                self.model.order == "tso" or release or any(earlier[0] == variable for earlier in buffer[:place])
            ):
                continue
            rest = _put(buffers, at, buffer[:place] + buffer[place + 1 :])
            yield (at, stored, None), (_put(memory, variable, value), locals_, asleep, rest, deaths)

    def _step(self, state: State, at: int, local: int, op: Op) -> Iterator[tuple[Event, State]]:
        memory, locals_, asleep, buffers, deaths = state
        if op.kind == "fail":
            raise self._counterexample(str(op.extra), state, (at, local, None))
        if op.kind not in _UNORDERED and buffers[at]:
            return  # waits for its store buffer
        match op.kind:
            case "store":
                if self.model.order == "sc":
                    memory = _put(memory, op.at, op.value)
                else:
                    buffers = _put(buffers, at, (*buffers[at], (op.at, op.value, op.extra)))
                moved = _put(locals_, at, self.locals.after(local, None))
                yield (at, local, None), (memory, moved, asleep, buffers, deaths)
            case "sleep":
                if all(memory[variable] == value for variable, value in op.extra):
                    yield (at, local, "sleeps"), (memory, locals_, _put(asleep, at, op.extra), buffers, deaths)
                else:
                    moved = _put(locals_, at, self.locals.after(local, None))
                    yield (at, local, "differs"), (memory, moved, asleep, buffers, deaths)
            case "wake":
                for woken, awake, now in self._wakes(state, op):
                    moved = _put(now, at, self.locals.after(local, None))
                    yield (at, local, woken), (memory, moved, awake, buffers, deaths)
            case _:
                for result, after in self._results(state, at, local, op):
                    moved = _put(locals_, at, self.locals.after(local, result))
                    yield (at, local, result), (after, moved, asleep, buffers, deaths)

    def _wakes(self, state: State, op: Op) -> Iterator[tuple[str, tuple[Any, ...], tuple[int, ...]]]:
        """(who, sleepers after, local states after) for each choice of whom to wake."""
        _, locals_, asleep, _, _ = state
        sleepers = [p for p, words in enumerate(asleep) if words is not None and any(v == op.at for v, _ in words)]
        groups = [sleepers] if op.value >= len(sleepers) else [[p] for p in sleepers]
        for group in groups:
            awake, now = asleep, locals_
            for p in group:
                awake = _put(awake, p, None)
                now = _put(now, p, self.locals.after(now[p], None))
            yield "wakes " + (", ".join(self.names[p] for p in group) or "nobody"), awake, now

    def _seen(self, state: State, at: int, op: Op) -> Any:
        value = state[0][op.at]
        for variable, stored, _ in state[3][at]:
            if variable == op.at:
                value = stored  # the youngest of its own stores
        return value if op.view is None else op.view(value)

    def _results(self, state: State, at: int, local: int, op: Op) -> Iterator[tuple[Any, tuple[Any, ...]]]:
        """(result, memory after) of the operations that have one, for each way it can go."""
        for result, after in self._plain_results(state, at, local, op):
            if (ghost := op.ghost) is not None:
                values = list(after)
                self._ask(state, (at, local, result), lambda: ghost(self._memory(values), result))  # noqa: B023 (asked at once)
                after = tuple(values)
            yield result, after

    def _plain_results(self, state: State, at: int, local: int, op: Op) -> Iterator[tuple[Any, tuple[Any, ...]]]:
        memory = state[0]
        match op.kind:
            case "load":
                yield self._seen(state, at, op), memory
            case "swap":
                after = op.value(memory[op.at]) if callable(op.value) else op.value
                yield None if op.view is None else op.view(memory[op.at]), _put(memory, op.at, after)
            case "cas":
                won = memory[op.at] == op.value
                seen = (won, memory[op.at])
                yield seen if op.view is None else op.view(seen), _put(memory, op.at, op.extra) if won else memory
            case "add":
                yield None, _put(memory, op.at, memory[op.at] + op.value)
            case "fence":
                yield None, memory
            case "lock" | "try_lock" | "unlock":
                yield from self._locks(state, at, op)
            case "choose":
                for value in op.value:
                    yield value, memory
            case "when":
                if op.value(self._memory(memory)):
                    yield None, memory
            case "look":
                yield self._ask(state, (at, local, None), lambda: op.value(self._memory(memory))), memory
            case "act":
                values = list(memory)
                answer = self._ask(state, (at, local, None), lambda: op.value(self._memory(values)))
                yield answer, tuple(values)
            case _:
                raise RuntimeError(f"unknown operation {op.kind}")

    def _locks(self, state: State, at: int, op: Op) -> Iterator[tuple[Any, tuple[Any, ...]]]:
        memory, locals_, _, _, _ = state
        holder = memory[op.at]
        if op.kind == "unlock":
            if holder != at + 1:
                raise RuntimeError(f"{self.names[at]} unlocks what it does not hold")
            yield None, _put(memory, op.at, 0)
        elif holder == 0:
            yield "yes", _put(memory, op.at, at + 1)
        elif locals_[holder - 1] == DEAD:
            yield "after_death", _put(memory, op.at, at + 1)
        elif op.kind == "try_lock":
            yield "no", memory

    def _ask(self, state: State, event: Event, question: Callable[[], Any]) -> Any:
        try:
            return question()
        except BrokenError as broken:
            raise self._counterexample(str(broken), state, event) from None


def _put(values: tuple[Any, ...], at: int, value: Any) -> tuple[Any, ...]:
    return (*values[:at], value, *values[at + 1 :])


def explore(model: Model) -> Outcome:
    """Looks at every state. Raises CounterexampleError with a shortest trace."""
    collecting = gc.isenabled()
    gc.disable()  # states are tuples without cycles; looking for some takes a third of the time
    try:
        return _Explorer(model).run()
    finally:
        if collecting:
            gc.enable()
