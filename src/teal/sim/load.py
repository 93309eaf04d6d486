"""What is asked of a simulated pool: types of requests, or requests that were recorded."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from teal import _core
from teal.errors import InvalidArgument, NotFound
from teal.host import argument
from teal.sim import words
from teal.sim.words import Time

_SPREADS = {"fixed": _core.Spread.fixed, "exponential": _core.Spread.exponential, "lognormal": _core.Spread.lognormal}
_MOST_TYPES = 1024
_MOST_SIGMA = 10.0
_LONGEST_NS = 24 * 3_600_000_000_000
_COLUMNS = ("at", "type", "service")


@dataclass(frozen=True)
class Type:
    """One type of requests. To a policy it is a model of that name.

    Attributes:
        name: 1 to 64 characters.
        share: of all requests, relative to the other types' shares.
        mean: how long such a request runs, on the average.
        spread: "fixed", "exponential", or "lognormal" with ``sigma`` of its logarithm.
        sessions: how many clients send them; each request is one's of these by chance.
        priority: higher is more urgent.
        deadline: after its arrival; None: it has none. One that has not begun by then expires.
        preemptible: it can be taken from its worker.
        yields: … at its own yield points only, four in ``mean``.
    """

    name: str
    share: float = 1.0
    mean: Time = "10us"
    spread: str = "fixed"
    sigma: float = 1.0
    sessions: int = 1
    priority: int = 0
    deadline: Time | None = None
    preemptible: bool = True
    yields: bool = False

    @classmethod
    def parse(cls, text: str) -> Type:
        """Reads "short:share=0.995,mean=10us,deadline=1ms". Raises InvalidArgument."""
        name, _, rest = text.partition(":")
        return cls(name, **{k: v for k, v in words.read(cls, rest, f"$.types[{name[:64]!r}]").items() if k != "name"})

    def to_core(self, path: str) -> _core.SimType:
        """The core's form. Raises InvalidArgument, ``path`` says which type."""
        made = _core.SimType()
        if not isinstance(self.name, str) or not 0 < len(self.name) <= 64 or not self.name.isprintable():
            raise argument.wrong(self.name, f"{path}.name", "a name of 1 to 64 characters")
        made.name = self.name
        made.share = words.number(self.share, 0, 1e9, f"{path}.share")
        made.mean_ns = words.time(self.mean, f"{path}.mean", 1)
        if self.spread not in _SPREADS:
            raise InvalidArgument(f"{self.spread!r}, expected one of {', '.join(_SPREADS)}", path=f"{path}.spread")
        made.spread = _SPREADS[self.spread]
        made.sigma = words.number(self.sigma, 0, _MOST_SIGMA, f"{path}.sigma")
        made.sessions = argument.whole(self.sessions, 1, 1024, f"{path}.sessions")
        made.priority = argument.whole(self.priority, -(2**31), 2**31 - 1, f"{path}.priority")
        made.deadline_ns = 0 if self.deadline is None else words.time(self.deadline, f"{path}.deadline", 1)
        made.preemptible = words.flag(self.preemptible, f"{path}.preemptible")
        made.yields = words.flag(self.yields, f"{path}.yields")
        return made


class Trace:
    """Requests that were recorded, to be asked for again: when each came, of which type it was, how long it ran.

    Attributes:
        at_ns: uint64, from the first moment on, ascending.
        names: types, in the order in which they first come.
        types: uint32, an index of ``names`` for each request.
        service_ns: uint64.
    """

    def __init__(self, rows: Iterable[tuple[Time, str, Time]]) -> None:
        """Rows of (when, type, how long). Raises InvalidArgument for times out of order, or of more than 24 hours."""
        at, types, service = [], [], []
        numbers: dict[str, int] = {}
        last = 0
        for index, row in enumerate(rows):
            path = f"$.trace[{index}]"
            if not isinstance(row, tuple) or len(row) != len(_COLUMNS) or not isinstance(row[1], str):
                raise argument.wrong(row, path, "(when, type, how long)")
            when = _moment(row[0], f"{path}.at")
            if when < last:
                raise InvalidArgument(f"{when} ns comes after {last} ns; expected times in order", path=f"{path}.at")
            last = when
            at.append(when)
            types.append(numbers.setdefault(row[1], len(numbers)))
            service.append(words.time(row[2], f"{path}.service", 1))
        if not at:
            raise InvalidArgument("a trace without requests, expected at least one", path="$.trace")
        self.at_ns: npt.NDArray[np.uint64] = np.array(at, np.uint64)
        self.names = tuple(numbers)
        self.types: npt.NDArray[np.uint32] = np.array(types, np.uint32)
        self.service_ns: npt.NDArray[np.uint64] = np.array(service, np.uint64)

    def __len__(self) -> int:
        return len(self.at_ns)

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Trace:
        """A CSV file with the columns at, type and service: seconds, or durations such as 12ms. Raises NotFound,
        InvalidArgument."""
        try:
            with Path(path).open(newline="", encoding="utf-8") as file:
                rows = csv.DictReader(file)
                if missing := [name for name in _COLUMNS if name not in (rows.fieldnames or ())]:
                    raise InvalidArgument(
                        f"trace {os.fspath(path)!r}: no column {missing[0]!r}, expected at, type and service"
                    )
                return cls((_cell(row["at"]), row["type"] or "", _cell(row["service"])) for row in rows)
        except FileNotFoundError:
            raise NotFound(f"trace {os.fspath(path)!r}: there is no such file; give its path") from None
        except (UnicodeDecodeError, csv.Error, OSError) as error:
            raise InvalidArgument(f"trace {os.fspath(path)!r}: {error}; expected a CSV file in UTF-8") from None


def _cell(text: str | None) -> Time:
    try:
        return float(text or "")
    except ValueError:
        return text or ""


def _moment(value: object, path: str) -> int:
    if isinstance(value, str):
        return words.time(value, path)
    return round(words.number(value, 0, _LONGEST_NS / 1e9, path) * 1e9)
