"""What a run of the demo found and measured: plain records, drawn by `report` and written as JSON by the command."""

from __future__ import annotations

from dataclasses import dataclass

from teal.demo.measure import Added, Spread

WAYS = ("teal", "in_process", "http")
SAME = 1e-5  # answers further apart than this are not the same answer: one engine on one input gives 0


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked, of what text, and how many passages to show."""

    ask: str
    text: tuple[str, ...]  # files, folders, "-"
    top: int = 5
    passages: int = 1000  # at most so many are searched


@dataclass(frozen=True, slots=True)
class TextRecord:
    """What was read. Sizes are of the passages and of the files; not `complete`: the limit left text unread."""

    files: int
    passages: int
    bytes_searched: int
    bytes_known: int
    complete: bool
    cut: int  # passages longer than the model reads
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Answer:
    """One passage found."""

    score: float
    source: str
    line: int
    heading: str
    text: str


@dataclass(frozen=True, slots=True)
class ClientRecord:
    """What one client process did."""

    name: str
    pid: int
    passages: int
    overlapped: int  # of its calls, those in flight at the same moment as one of the other client's
    attach_ms: float  # connect and find the model
    first_answer_ms: float  # the same, and the first call answered
    seconds: float  # first passage begun to last passage done
    resident_bytes: int | None


@dataclass(frozen=True, slots=True)
class ModelRecord:
    """The resident model: loaded once."""

    name: str
    file_bytes: int
    start_ms: float  # the host
    load_ms: float
    resident_bytes: int | None  # the host's processes, all together, after the work
    copies_in: int
    copies_out: int
    bytes_copied: int


@dataclass(frozen=True, slots=True)
class Way:
    """One way to make the same calls."""

    name: str
    times: Spread
    added: Added | None  # over in-process; None for in-process itself
    max_abs_difference: float  # from the in-process answers
    load_ms: float | None
    resident_bytes: int | None


@dataclass(frozen=True, slots=True)
class Outcome:
    """All of it."""

    question: Question
    text: TextRecord
    answers: tuple[Answer, ...]
    clients: tuple[ClientRecord, ...]
    model: ModelRecord
    stages: dict[str, Spread]  # of the clients' calls, in the order in which they happen
    ways: tuple[Way, ...]
    client_difference: float  # between the two clients' vectors of the question
    seconds: float

    @property
    def same(self) -> bool:
        """Whether every way and both clients gave the same answers (a NaN anywhere is a difference)."""
        return all(far <= SAME for far in [self.client_difference, *(way.max_abs_difference for way in self.ways)])
