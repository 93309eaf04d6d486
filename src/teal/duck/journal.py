"""The log ring of a duck: the newest lines, in bounded memory, for `teal duck log`.

Theory of operation: positions count the bytes ever written, so that a reader who comes back with the position that it
was told misses nothing, or learns how much it has missed. Lines of programs come in with the name of their session in
front, one line at a time, whatever bytes they hold.
"""

from __future__ import annotations

import logging
import threading
import time

CAPACITY = 256 * 1024
_LONGEST_LINE = 2000


class Journal(logging.Handler):
    """A logging handler whose records can be read again."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        super().__init__()
        self._capacity = capacity
        self._guard = threading.Lock()  # guards the two below
        self._held = bytearray()
        self._end = 0  # bytes ever written

    def emit(self, record: logging.LogRecord) -> None:
        self.write(record.levelname.lower(), record.getMessage())

    def write(self, kind: str, text: str) -> None:
        """One line, with the time in front."""
        at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime())
        shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)[:_LONGEST_LINE]
        line = f"{at} {kind:7} {shown}\n".encode("utf-8", "replace")
        with self._guard:
            self._held += line
            self._end += len(line)
            if len(self._held) > self._capacity:
                excess = len(self._held) - self._capacity
                cut = self._held.find(b"\n", excess) + 1  # whole lines
                del self._held[: cut or excess]

    def read(self, start: int, most: int) -> tuple[int, str, int]:
        """(position of the text, text, position after it); a negative ``start`` counts from the end.

        When ``start`` is not held any more the text begins with the oldest line that is.
        """
        with self._guard:
            oldest = self._end - len(self._held)
            at = max(oldest, self._end + start) if start < 0 else min(max(start, oldest), self._end)
            taken = bytes(self._held[at - oldest : at - oldest + most])
        if start < 0 and at > oldest and (cut := taken.find(b"\n")) >= 0:
            taken, at = taken[cut + 1 :], at + cut + 1  # not from the middle of a line
        return at, taken.decode("utf-8", "replace"), at + len(taken)
