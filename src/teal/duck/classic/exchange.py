"""Requests and answers over a socket that loses them: a window, retransmission, and an end to patience.

Theory of operation: every answer echoes the beginning of what it answers, so that a request waits for an answer that
begins with its own ``echo``; what does not fit any that waits (a late duplicate, somebody else's) is counted and
dropped. Up to ``window`` requests are on their way at once. Each is sent again when its timer runs out: 3 ms at first,
then what the round trips say (RFC 6298: smoothed time and deviation, nothing learnt from what was sent twice), doubled
with each try. A timer that runs out halves the window, answers widen it again. After ``tries`` (20) there is nobody.
"""

from __future__ import annotations

import heapq
import select
import socket
import time
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from teal.errors import PeerDied

FIRST_S = 0.003
LEAST_S = 0.001
LONGEST_S = 0.2
TRIES = 20
_MOST_DATAGRAM = 65_536


@dataclass(slots=True, eq=False)
class Ask:
    """``echoes``: beginnings of an answer, the longest that is sure. ``patience``: seconds that it is asked for at
    least, however many tries that is."""

    datagram: bytes
    echoes: tuple[bytes, ...]
    what: str
    patience: float = 0.0
    tries: int = 0
    first: float = 0.0
    sent: float = 0.0
    due: float = 0.0
    answer: bytes = field(default=b"", repr=False)


class Exchange:
    """Over a connected UDP socket. Not thread-safe."""

    def __init__(self, peer: socket.socket, name: str, *, window: int = 64, tries: int = TRIES) -> None:
        self._socket = peer
        self._socket.setblocking(False)
        self._poll = select.poll()
        self._poll.register(peer, select.POLLIN)
        self._name = name
        self._most = max(1, window)
        self._window = float(min(16, self._most))
        self._tries = tries
        self._smooth: float | None = None
        self._spread = 0.0
        self.timer = FIRST_S
        self.asked = self.sent = self.sent_again = self.unwanted = 0

    def run(self, asks: Iterable[Ask]) -> Iterator[Ask]:
        """Yields each when its answer is there, in the order of the answers. Raises PeerDied."""
        source = iter(asks)
        waiting: OrderedDict[bytes, Ask] = OrderedDict()  # by echo
        timers: list[tuple[float, int, Ask]] = []
        more = True
        while True:
            while more and len({id(ask) for ask in waiting.values()}) < int(self._window):
                ask = next(source, None)
                if ask is None:
                    more = False
                    break
                self.asked += 1
                ask.first = time.monotonic()
                for echo in ask.echoes:
                    waiting[echo] = ask
                self._post(ask, timers)
            if not waiting:
                return
            wait = max(0.0, timers[0][0] - time.monotonic()) if timers else LONGEST_S
            self._poll.poll(wait * 1000)
            for answer in self._answers():
                ask = _whose(answer, waiting)
                if ask is None:
                    self.unwanted += 1
                    continue
                for echo in ask.echoes:
                    del waiting[echo]
                self._learn(ask)
                ask.answer = answer
                yield ask
            self._again(waiting, timers)

    def _post(self, ask: Ask, timers: list[tuple[float, int, Ask]]) -> None:
        now = time.monotonic()
        ask.tries += 1
        ask.sent = now
        ask.due = now + min(LONGEST_S, self.timer * 2 ** min(ask.tries - 1, 16))
        try:
            self._socket.send(ask.datagram)
            self.sent += 1
        except (BlockingIOError, ConnectionRefusedError):
            pass  # as if it were lost; nobody there yet, or no more
        heapq.heappush(timers, (ask.due, id(ask), ask))

    def _answers(self) -> Iterator[bytes]:
        while True:
            try:
                yield self._socket.recv(_MOST_DATAGRAM)
            except BlockingIOError:
                return
            except ConnectionRefusedError:
                continue  # said once for each that was sent to a port that is closed

    def _learn(self, ask: Ask) -> None:
        self._window = min(self._most, self._window + 1 / self._window)
        if ask.tries > 1:
            return  # which of them was answered?
        took = time.monotonic() - ask.sent
        if self._smooth is None:
            self._smooth, self._spread = took, took / 2
        else:
            self._spread += (abs(took - self._smooth) - self._spread) / 4
            self._smooth += (took - self._smooth) / 8
        self.timer = min(LONGEST_S, max(LEAST_S, self._smooth + 4 * self._spread))

    def _again(self, waiting: OrderedDict[bytes, Ask], timers: list[tuple[float, int, Ask]]) -> None:
        now = time.monotonic()
        late = False
        while timers and timers[0][0] <= now:
            due, _, ask = heapq.heappop(timers)
            if ask.answer or due != ask.due or waiting.get(ask.echoes[0]) is not ask:
                continue
            if ask.tries >= self._tries and now - ask.first >= ask.patience:
                raise PeerDied(
                    f"duck {self._name}",
                    f"no answer to {ask.what} in {ask.tries} tries of {now - ask.first:.2f} s: it is not there, it is "
                    "busy with a run, or the request is none that it takes",
                )
            self.sent_again += 1
            late = late or ask.patience == 0
            self._post(ask, timers)
        if late:
            self._window = max(2.0, self._window / 2)


def _whose(answer: bytes, waiting: OrderedDict[bytes, Ask]) -> Ask | None:
    """The one whose echo it begins with. One echo may be the beginning of another: the longest counts."""
    end = answer.find(b"\n") if answer.startswith((b"ok-judge ", b"ok-syslog ")) else -1
    head = answer[: end if end >= 0 else 256]
    if head.startswith(b"ok-read-buffer "):
        return waiting.get(head[:23])
    while head:
        if (found := waiting.get(head)) is not None:
            return found
        cut = max(head.rfind(b" "), head.rfind(b"\n"))
        head = head[:cut] if cut > 0 else b""
    return None
