"""Child processes that speak JSON lines: started together, heard from one queue, never left behind.

Theory of operation. Each child writes events to its standard output; one thread per child moves them into the crew's
queue, and adds "gone" at the end of the stream. A child's standard input stays open until it is to stop: all of them
end by themselves when it closes, also when this process is killed. Leaving the crew's `with` block closes every input,
waits a moment, and ends whatever has not.
"""

from __future__ import annotations

import json
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from types import TracebackType
from typing import IO, Any

from teal.errors import DeadlineExceeded, TealError

SILENCE = 120.0  # seconds with no word from any child before the run is given up: a call takes tens of milliseconds
_GRACE = 5.0  # seconds a child has to end by itself once its input is closed


class Child:
    """One child process, named for messages."""

    def __init__(self, name: str, module: str, events: queue.SimpleQueue[tuple[Child, dict[str, Any]]]) -> None:
        self.name = name
        self.finished = False  # set by Crew.hear: it said "done", so its end is no fault
        self._errors: IO[str] = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115 (closed in `end`)
        # -P: the folder the user happens to stand in must not provide modules.
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", module],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True, encoding="utf-8",
        )  # fmt: skip
        self._thread = threading.Thread(target=self._listen, args=(events,), daemon=True, name=f"listen to {name}")
        self._thread.start()

    def send(self, line: str | dict[str, Any]) -> None:
        """Write one line to the child; a child that has ended is noticed when it is listened to, not here."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write((line if isinstance(line, str) else json.dumps(line)) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass

    def fault(self) -> str:
        """How the child ended, and the last line it wrote to standard error."""
        status = self.process.wait()
        how = f"ended by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
        self._errors.seek(0)
        last = self._errors.read()[-4000:].strip().rsplit("\n", 1)[-1]
        said = f": {last}" if last else ""
        return f"{self.name} (process {self.process.pid}) {how} before its work was done{said}"

    def end(self) -> None:
        """Close the child's input and wait until it is gone, by force after a moment."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.close()
        except BrokenPipeError:
            pass
        try:
            self.process.wait(_GRACE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._thread.join()
        if self.process.stdout is not None:
            self.process.stdout.close()
        self._errors.close()

    def _listen(self, events: queue.SimpleQueue[tuple[Child, dict[str, Any]]]) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            try:
                event = json.loads(line)
            except ValueError:
                continue  # a library's greeting on standard output; a lost event would end in SILENCE, with a name
            if isinstance(event, dict):
                events.put((self, event))
        events.put((self, {"event": "gone"}))


class Crew:
    """The children of one run; a context manager."""

    def __init__(self) -> None:
        self._events: queue.SimpleQueue[tuple[Child, dict[str, Any]]] = queue.SimpleQueue()
        self._children: list[Child] = []

    def start(self, name: str, module: str) -> Child:
        """Start `python -m module`."""
        child = Child(name, module, self._events)
        self._children.append(child)
        return child

    def hear(self, *expected: str) -> tuple[Child, dict[str, Any]]:
        """The next event of any child, one of `expected`.

        Raises TealError with what the child said if it failed or ended early, DeadlineExceeded after SILENCE.
        """
        while True:
            try:
                child, event = self._events.get(timeout=SILENCE)
            except queue.Empty:
                names = ", ".join(child.name for child in self._children if child.process.poll() is None)
                raise DeadlineExceeded(f"no word from {names} for {SILENCE:.0f} s: the run was given up") from None
            kind = event.get("event")
            if kind in expected:
                child.finished = child.finished or kind == "done"
                return child, event
            if kind == "error":
                raise TealError(f"{child.name}: {event.get('kind')}: {event.get('message')}")
            if kind == "gone" and not child.finished:
                raise TealError(child.fault())

    def dismiss(self, child: Child) -> None:
        """End a child whose work is done."""
        child.finished = True
        child.end()
        self._children.remove(child)

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if kind is not None:
            for child in self._children:
                child.process.terminate()  # something failed: their work is of no use now
        for child in self._children:
            child.end()
