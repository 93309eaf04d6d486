"""A part of a composite policy: a policy of its own, and what is kept of it to share the workers.

A part's tag is the virtual time that it has used, as a flow's in fair.py.
"""

from __future__ import annotations

from dataclasses import dataclass

from teal._core import Request
from teal.agents.policy import NameKind, Policy
from teal.agents.setting import tell_name
from teal.agents.spec import set_or_raise, shipped
from teal.errors import InvalidArgument


@dataclass(slots=True)
class Book:
    """Of a request: does it wait, for any worker or bound to one; what its part was charged when it was picked."""

    waits: str = ""  # "free", "bound"
    guess: int = 0
    ran: int | None = None  # ran_ns when it was picked


class Part:
    def __init__(self, setting: str, policy: str) -> None:
        made = shipped(policy)
        if made is None:
            raise InvalidArgument(f"{setting}={policy[:80]!r}: expected a shipped policy")
        self.policy: Policy = made()
        self.rank = 0
        self.share = 1000  # thousandths
        self.tag = 0
        self.present = 0  # tag that was last picked in its rank
        self.usual = 0  # ns that its last run took
        self.waiting = 0
        self.free = 0  # of those: any worker may run them

    def at(self, now: int) -> Policy:
        self.policy.now = now
        return self.policy

    def order(self) -> tuple[int, int]:
        return -self.rank, self.tag

    def named(self, kind: NameKind, index: int, name: str) -> None:
        tell_name(self.policy, kind, index, name)
        self.policy.named(kind, index, name)

    def set(self, name: str, value: str) -> None:
        set_or_raise(self.policy, name, value)

    def admit(self, request: Request) -> Book:
        book = Book()
        self.mark(request, book)
        return book

    def mark(self, request: Request, book: Book) -> None:
        """It waits here, unless it does not."""
        self.unmark(book)
        if not request.runnable or request.staged:
            return
        if not self.waiting:
            self.tag = max(self.tag, self.present)
        book.waits = "free" if request.worker is None else "bound"
        self.waiting += 1
        self.free += book.waits == "free"

    def unmark(self, book: Book) -> None:
        self.waiting -= book.waits != ""
        self.free -= book.waits == "free"
        book.waits = ""

    def charge(self, request: Request, book: Book, quantum: int, peers: list[Part]) -> None:
        self.unmark(book)
        left = request.expected_ns - request.ran_ns
        guess = (left if left > 0 else self.usual) or 1000
        if quantum:
            guess = min(guess, quantum)
        book.guess, book.ran = guess * 1000 // self.share, request.ran_ns
        for peer in peers:
            peer.present = max(peer.present, self.tag)
        self.tag += book.guess

    def settle(self, request: Request, book: Book) -> None:
        """What it was charged becomes what it took."""
        if book.ran is None:
            return
        took = max(request.ran_ns - book.ran, 0)
        self.usual = took or self.usual
        self.tag = max(self.tag + took * 1000 // self.share - book.guess, 0)
        book.ran = None
