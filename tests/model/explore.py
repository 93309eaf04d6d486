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

Values = tuple[Any, ...]  # of the memory
Buffer = tuple[tuple[int, Any, Any], ...]  # (variable, value, release) that were stored and have not arrived
Spot = tuple[int, Any, Buffer]  # of a process: local state, what it sleeps on
Event = tuple[int, Any, Any]  # process; local state, store that arrived, or None for its death; result
ENDED, DEAD = -1, -2
_MEMORY_BITS, _DEATH_BITS, _SPOT_BITS = 24, 4, 20
_MEMORY_MASK, _DEATH_MASK, _SPOT_MASK = (1 << _MEMORY_BITS) - 1, (1 << _DEATH_BITS) - 1, (1 << _SPOT_BITS) - 1
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


class _Interned:
    """Numbers for values, in the order in which they came."""

    def __init__(self, bits: int) -> None:
        self.values: list[Any] = []
        self._ids: dict[Any, int] = {}
        self._most = 1 << bits

    def id(self, value: Any) -> int:
        found = self._ids.setdefault(value, len(self.values))
        if found == len(self.values):
            if found == self._most:
                raise RuntimeError(f"more than {self._most} of one kind: choose smaller bounds")
            self.values.append(value)
        return found


class _Explorer:
    """A state is one integer: its memory, the deaths so far, and the spot that each process is at, which are interned.

    What a process can do depends on the memory and its spot, but for wakes and for locks that are held. So it is worked
    out once for the two, as what to add to the state.
    """

    def __init__(self, model: Model) -> None:
        self.model = model
        self.locals = _Locals(model.index)
        self.names = [process.name for process in model.processes]
        self.came: dict[int, int] = {}  # state: the one it was first reached from
        self.steps = self.ends = 0
        self._memories = _Interned(_MEMORY_BITS)
        self._spots = _Interned(_SPOT_BITS)
        self._checked = 0  # memories that `invariant` has seen
        self._shifts = [_MEMORY_BITS + _DEATH_BITS + _SPOT_BITS * at for at in range(len(model.processes))]
        # By process; by memory, spot and whether somebody may die still: can it do more than die; what to add.
        self._moves: list[dict[int, tuple[bool, tuple[int, ...]]]] = [{} for _ in model.processes]

    def run(self) -> Outcome:
        model, came = self.model, self.came
        orders = [
            [(at, self._shifts[at], self._moves[at]) for at, each in enumerate(model.processes) if each.patient is late]
            for late in (False, True)
        ]
        first = self._memories.id(tuple(model.memory.values()))
        for at, process in enumerate(model.processes):
            first += self._spots.id((self.locals.start(process.body, process.args), None, ())) << self._shifts[at]
        came[first] = first
        self._check_invariant(first, None)
        queue = deque([first])
        while queue:
            state = queue.popleft()
            memory = state & _MEMORY_MASK
            may_die = (state >> _MEMORY_BITS) & _DEATH_MASK < model.deaths
            stuck = True
            for order in orders:
                for at, shift, known in order:
                    spot = (state >> shift) & _SPOT_MASK
                    key = ((memory << _SPOT_BITS) + spot) * 2 + may_die
                    goes_on, moves = known.get(key) or self._worked_out(state, at, key)
                    stuck = stuck and not goes_on
                    self.steps += len(moves)
                    for move in moves:
                        following = state + move
                        if following not in came:
                            came[following] = state
                            queue.append(following)
                if not stuck:
                    break
            else:
                self._check_end(state)
            if len(came) > model.limit:
                raise RuntimeError(f"more than {model.limit} states: choose smaller bounds")
        return Outcome(len(came), self.steps, self.ends)

    def _worked_out(self, state: int, at: int, key: int) -> tuple[bool, tuple[int, ...]]:
        moves, goes_on = [], False
        for event, following in self._successors(state, at):
            self._check_invariant(following, (state, event))
            moves.append(following - state)
            goes_on = goes_on or event[1] is not None  # nobody has to die
        found = goes_on, tuple(moves)
        if not self._others_matter(state, at):
            self._moves[at][key] = found
        return found

    # ---- what a state is ---------------------------------------------------------------------------------------------

    def _memory_of(self, state: int) -> Values:
        return self._memories.values[state & _MEMORY_MASK]

    def _spot(self, state: int, at: int) -> Spot:
        return self._spots.values[(state >> self._shifts[at]) & _SPOT_MASK]

    def _with(self, state: int, at: int, spot: Spot) -> int:
        shift = self._shifts[at]
        return state + ((self._spots.id(spot) - ((state >> shift) & _SPOT_MASK)) << shift)

    def _with_memory(self, state: int, memory: Values) -> int:
        return state - (state & _MEMORY_MASK) + self._memories.id(memory)

    def _others_matter(self, state: int, at: int) -> bool:
        local, words, _ = self._spot(state, at)
        if local < 0 or words is not None:
            return False
        op = self.locals.ops[local]
        return op.kind == "wake" or (op.kind in ("lock", "try_lock") and self._memory_of(state)[op.at] != 0)

    # ---- properties --------------------------------------------------------------------------------------------------

    def _view(self, values: Sequence[Any]) -> Memory:
        return Memory(self.model.index, values)

    def _check_invariant(self, state: int, last: tuple[int, Event] | None) -> None:
        """Of a memory that was not there before; ``last``: how it came from the state before."""
        at = state & _MEMORY_MASK
        if at < self._checked:
            return
        self._checked = at + 1
        if self.model.invariant is not None:
            problem = self.model.invariant(self._view(self._memories.values[at]))
            if problem is not None:
                raise self._counterexample(problem, *(last or (state,)))

    def _check_end(self, state: int) -> None:
        self.ends += 1
        for at, process in enumerate(self.model.processes):
            local = self._spot(state, at)[0]
            if local >= 0 and not process.daemon:
                op = self.locals.ops[local]
                raise self._counterexample(f"{process.name} is stuck for ever at {op.where} {op.text()}", state)
        if (
            self.model.final is not None
            and (problem := self.model.final(self._view(self._memory_of(state)))) is not None
        ):
            raise self._counterexample(problem, state)

    def _counterexample(self, problem: str, state: int, last: Event | None = None) -> CounterexampleError:
        events = [] if last is None else [last]
        while (before := self.came[state]) != state:
            events.append(self._event(before, state))
            state = before
        return CounterexampleError(problem, [self._text(event) for event in reversed(events)], len(self.came))

    def _event(self, state: int, following: int) -> Event:
        every = (step for at in range(len(self.names)) for step in self._successors(state, at))
        return next(event for event, reached in every if reached == following)

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

    def _successors(self, state: int, at: int) -> Iterator[tuple[Event, int]]:
        local, words, buffer = spot = self._spot(state, at)
        if buffer:
            yield from self._drains(state, at, spot)
        if local < 0:
            return
        may_die = (state >> _MEMORY_BITS) & _DEATH_MASK < self.model.deaths
        if may_die and self.model.processes[at].mortal:
            yield (at, None, None), self._death(state, at, buffer)
        if words is None:
            yield from self._step(state, at, spot, self.locals.ops[local])
        elif self.locals.ops[local].timed:
            yield (at, local, "times out"), self._with(state, at, (self.locals.after(local, None), None, buffer))

    def _death(self, state: int, at: int, buffer: Buffer) -> int:
        values = list(self._memory_of(state))
        for variable, value, _ in buffer:
            values[variable] = value
        if self.model.on_death is not None:
            self.model.on_death(self._view(values), at)
        return self._with_memory(self._with(state, at, (DEAD, None, ())), tuple(values)) + (1 << _MEMORY_BITS)

    def _drains(self, state: int, at: int, spot: Spot) -> Iterator[tuple[Event, int]]:
        local, words, buffer = spot
        for place, stored in enumerate(buffer):
            variable, value, release = stored
            if place > 0 and (
                self.model.order == "tso" or release or any(earlier[0] == variable for earlier in buffer[:place])
            ):
                continue
            rest = self._with(state, at, (local, words, buffer[:place] + buffer[place + 1 :]))
            yield (at, stored, None), self._with_memory(rest, _put(self._memory_of(state), variable, value))

    def _step(self, state: int, at: int, spot: Spot, op: Op) -> Iterator[tuple[Event, int]]:
        local, _, buffer = spot
        memory, after = self._memory_of(state), self.locals.after
        if op.kind == "fail":
            raise self._counterexample(str(op.extra), state, (at, local, None))
        if op.kind not in _UNORDERED and buffer:
            return  # waits for its store buffer
        match op.kind:
            case "store":
                if self.model.order == "sc":
                    state = self._with_memory(state, _put(memory, op.at, op.value))
                else:
                    buffer = (*buffer, (op.at, op.value, op.extra))
                yield (at, local, None), self._with(state, at, (after(local, None), None, buffer))
            case "sleep":
                if all(memory[variable] == value for variable, value in op.extra):
                    yield (at, local, "sleeps"), self._with(state, at, (local, op.extra, buffer))
                else:
                    yield (at, local, "differs"), self._with(state, at, (after(local, None), None, buffer))
            case "wake":
                for woken, awake in self._wakes(state, op):
                    yield (at, local, woken), self._with(awake, at, (after(local, None), None, buffer))
            case _:
                for result, values in self._results(state, at, spot, op):
                    moved = self._with(state, at, (after(local, result), None, buffer))
                    yield (at, local, result), self._with_memory(moved, values)

    def _wakes(self, state: int, op: Op) -> Iterator[tuple[str, int]]:
        """(who, state after) for each choice of whom to wake."""
        spots = [self._spot(state, p) for p in range(len(self.names))]
        sleepers = [
            p for p, (_, words, _) in enumerate(spots) if words is not None and any(v == op.at for v, _ in words)
        ]
        groups = [sleepers] if op.value >= len(sleepers) else [[p] for p in sleepers]
        for group in groups:
            awake = state
            for p in group:
                local, _, buffer = spots[p]
                awake = self._with(awake, p, (self.locals.after(local, None), None, buffer))
            yield "wakes " + (", ".join(self.names[p] for p in group) or "nobody"), awake

    def _seen(self, memory: Values, buffer: Buffer, op: Op) -> Any:
        value = memory[op.at]
        for variable, stored, _ in buffer:
            if variable == op.at:
                value = stored  # the youngest of its own stores
        return value if op.view is None else op.view(value)

    def _results(self, state: int, at: int, spot: Spot, op: Op) -> Iterator[tuple[Any, Values]]:
        """(result, memory after) of the operations that have one, for each way it can go."""
        for result, after in self._plain_results(state, at, spot, op):
            if (ghost := op.ghost) is not None:
                values = list(after)
                self._ask(state, (at, spot[0], result), lambda: ghost(self._view(values), result))  # noqa: B023 (asked at once)
                after = tuple(values)
            yield result, after

    def _plain_results(self, state: int, at: int, spot: Spot, op: Op) -> Iterator[tuple[Any, Values]]:
        local, _, buffer = spot
        memory = self._memory_of(state)
        match op.kind:
            case "load":
                yield self._seen(memory, buffer, op), memory
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
                if op.value(self._view(memory)):
                    yield None, memory
            case "look":
                yield self._ask(state, (at, local, None), lambda: op.value(self._view(memory))), memory
            case "act":
                values = list(memory)
                answer = self._ask(state, (at, local, None), lambda: op.value(self._view(values)))
                yield answer, tuple(values)
            case _:
                raise RuntimeError(f"unknown operation {op.kind}")

    def _locks(self, state: int, at: int, op: Op) -> Iterator[tuple[Any, Values]]:
        memory = self._memory_of(state)
        holder = memory[op.at]
        if op.kind == "unlock":
            if holder != at + 1:
                raise RuntimeError(f"{self.names[at]} unlocks what it does not hold")
            yield None, _put(memory, op.at, 0)
        elif holder == 0:
            yield "yes", _put(memory, op.at, at + 1)
        elif self._spot(state, holder - 1)[0] == DEAD:
            yield "after_death", _put(memory, op.at, at + 1)
        elif op.kind == "try_lock":
            yield "no", memory

    def _ask(self, state: int, event: Event, question: Callable[[], Any]) -> Any:
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
