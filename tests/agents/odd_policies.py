"""Policies of the tests: good ones, and each way of being a bad one. Agents import this file by its path."""

from __future__ import annotations

import fcntl
import mmap
import os
import random
import socket
import sys
import threading
import time
from typing import Any

from teal.agents import Choice, Policy, Whole

ALL: dict[str, int] = {}  # what the policies of one process have in common


class Plain(Policy):
    """First come, first served."""

    name = "plain"

    def __init__(self) -> None:
        self.waiting: list[Any] = []

    def runnable(self, request: Any) -> None:
        self.waiting.append(request)

    def pick(self, worker: Any) -> Any:
        return self.waiting.pop(0) if self.waiting else None


class Newest(Plain):
    """Last come, first served."""

    def pick(self, worker: Any) -> Any:
        return self.waiting.pop() if self.waiting else None


class Tuned(Plain):
    """With settings."""

    name = "tuned"
    pause = Whole("3", 0, 100)
    taste = Choice("sweet", "sour")

    def dump(self) -> str:
        return f"pause {self.pause}, {self.taste}"


class Raises(Plain):
    """After a hundred requests."""

    seen = 0

    def runnable(self, request: Any) -> None:
        self.seen += 1
        if self.seen > 100:
            raise RuntimeError("seen enough")
        super().runnable(request)


class RaisesInPick(Plain):
    def pick(self, worker: Any) -> Any:
        raise KeyError("no such thing")


class Nonsense(Plain):
    """Answers what is no decision."""

    def pick(self, worker: Any) -> Any:
        return "the next one, please" if self.waiting else None


class NeverPicks(Plain):
    def pick(self, worker: Any) -> Any:
        return None


class Slow(Plain):
    """Takes its time for each request, far less than a heart may stand still."""

    def pick(self, worker: Any) -> Any:
        if self.waiting:
            time.sleep(0.005)
        return super().pick(worker)


class Freezes(Plain):
    """Thinks for ever about the fiftieth request."""

    seen = 0

    def runnable(self, request: Any) -> None:
        self.seen += 1
        while self.seen >= 50:
            pass
        super().runnable(request)


class Talks(Plain):
    """Prints without end."""

    def pick(self, worker: Any) -> Any:
        print("look at me \x1b[31m" + "x" * 200)
        sys.stdout.flush()
        return super().pick(worker)


class Eats(Plain):
    """Takes all the memory it can get."""

    kept: list[bytearray]

    def runnable(self, request: Any) -> None:
        self.kept = getattr(self, "kept", [])
        self.kept.append(bytearray(64 << 20))
        super().runnable(request)


class ImportsLate(Plain):
    def runnable(self, request: Any) -> None:
        import xml.dom.pulldom  # noqa: F401

        super().runnable(request)


class OpensLate(Plain):
    def runnable(self, request: Any) -> None:
        with open(__file__, encoding="utf-8") as file:
            file.read()
        super().runnable(request)


class StartsAThread(Plain):
    def runnable(self, request: Any) -> None:
        threading.Thread(target=print).start()
        super().runnable(request)


class ManySettings(Plain):
    def settings(self) -> list[tuple[str, str]]:
        return [(f"setting{i}", "1") for i in range(100_000)]


class Ends(Plain):
    """Ends its process at the tenth request."""

    seen = 0

    def runnable(self, request: Any) -> None:
        self.seen += 1
        if self.seen == 10:
            os._exit(7)
        super().runnable(request)


class Counts(Plain):
    """Adds to what all policies of its process count together."""

    def runnable(self, request: Any) -> None:
        ALL["requests"] = ALL.get("requests", 0) + 1
        super().runnable(request)

    def dump(self) -> str:
        return f"together {ALL.get('requests', 0)}"


class Escapes(Plain):
    """Tries what it must not, at its first request, and says what came of it."""

    said = ""

    def runnable(self, request: Any) -> None:
        if not self.said:
            self.said = "\n".join(self.tries())
        super().runnable(request)

    def tries(self) -> Any:
        attempts = {
            "read a file": lambda: os.open("/etc/passwd", os.O_RDONLY),
            "write a file": lambda: os.open("/tmp/teal-escaped", os.O_WRONLY | os.O_CREAT),
            "make a socket": socket.socket,
            "fork": os.fork,
            "signal its parent": lambda: os.kill(os.getppid(), 0),
            "open the view anew": self.view_anew,
            "write through the view": self.write_view,
        }
        for name, attempt in attempts.items():
            try:
                attempt()
            except (OSError, ValueError) as error:
                yield f"{name}: {type(error).__name__}"
            else:
                yield f"{name}: done"

    def view_anew(self) -> None:
        for fd in _regions():
            os.close(os.open(f"/proc/self/fd/{fd}", os.O_RDWR))

    def write_view(self) -> None:
        """Every descriptor of a region that cannot be written is tried; at least one has to be there."""
        refused = 0
        for fd in _regions():
            if fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
                try:
                    os.write(fd, b"forged")
                except OSError:
                    refused += 1
        if refused:
            raise OSError("read-only")

    def dump(self) -> str:
        return self.said


class Names(Plain):
    """Knows models by name."""

    def __init__(self) -> None:
        super().__init__()
        self.names: dict[int, str] = {}
        self.seen: set[str] = set()
        self.clients: set[str] = set()

    def named(self, kind: Any, index: int, name: str) -> None:
        if kind == 0:
            self.names[index] = name

    def runnable(self, request: Any) -> None:
        self.seen.add(self.names.get(request.model, "?"))
        assert request.model_name == self.names.get(request.model)
        self.clients.add(request.client)
        super().runnable(request)

    def dump(self) -> str:
        return "seen " + " ".join(sorted(self.seen)) + "; clients " + " ".join(sorted(self.clients))


class Scribbles(Plain):
    """Writes random bytes all over its desk."""

    def pick(self, worker: Any) -> Any:
        for fd in _regions():
            if fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDWR:
                size = os.lseek(fd, 0, os.SEEK_END)
                with mmap.mmap(fd, size) as desk:
                    for _ in range(200):
                        at = CHANCE.randrange(4096, size - 64)
                        desk[at : at + 16] = CHANCE.randbytes(16)
        return super().pick(worker)


class Forges(Plain):
    """Decides for requests and workers that there are none of, with flags that make no sense."""

    def pick(self, worker: Any) -> Any:
        for fd in _regions():
            if fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDWR:
                with mmap.mmap(fd, os.lseek(fd, 0, os.SEEK_END)) as desk:
                    self.forge(desk)
        return super().pick(worker)

    def forge(self, desk: mmap.mmap) -> None:
        """Sets every slot of the first workers ready with the serial that comes next there, or may."""
        first = 4096 + 384
        for worker in range(2):
            for slot in range(4):
                at = first + worker * 320 + 64 + slot * 64
                serial = int.from_bytes(desk[at : at + 4], "little")
                for later in (4, 8):
                    word = (serial + later) | 1 << 32
                    desk[at + 8 : at + 64] = CHANCE.randbytes(56)
                    desk[at : at + 8] = word.to_bytes(8, "little")


CHANCE = random.Random(3)


def _regions() -> list[int]:
    """Descriptors that can be mapped: the seat's."""
    found = []
    for fd in range(3, 64):
        try:
            mmap.mmap(fd, 4096, prot=mmap.PROT_READ).close()
        except (OSError, ValueError):
            continue
        found.append(fd)
    return found


class Whimsical(Plain):
    """Any of those that wait, for anybody; sometimes none; and may want any of them to leave."""

    name = "whimsical"
    seed = Whole("0", 0, 1 << 30)

    def __init__(self) -> None:
        super().__init__()
        self.chance = random.Random(7)

    def pick(self, worker: Any) -> Any:
        mine = [r for r in self.waiting if r.worker in (None, worker.index)]
        if not mine:
            return None
        request = self.chance.choice(mine)
        self.waiting.remove(request)
        return request

    def preempt(self, worker: Any) -> bool:
        return self.chance.random() < 0.1

    def departed(self, request: Any) -> None:
        if request in self.waiting:
            self.waiting.remove(request)

    def blocked(self, request: Any) -> None:
        self.departed(request)


class MadeSlowly(Plain):
    """Is not made before its host has gone."""

    def __init__(self) -> None:
        super().__init__()
        time.sleep(3600)


class MadeInAWhile(Plain):
    """Takes a second to be made."""

    def __init__(self) -> None:
        super().__init__()
        time.sleep(1)


class Pairs(Plain):
    """Two at a time, together or not at all; one that was refused alone is not paired again."""

    def __init__(self) -> None:
        super().__init__()
        self.refused: dict[str, int] = {}

    def latch_failed(self, request: Any, why: Any) -> None:
        self.refused[why.name] = self.refused.get(why.name, 0) + 1
        super().latch_failed(request, why)

    def pick_group(self, workers: Any) -> Any:
        gang = [request for request in self.waiting if request.worker is None][:2]
        if len(gang) < 2:
            return None
        for request in gang:
            self.waiting.remove(request)
        return list(zip(workers, gang, strict=False))

    def pick(self, worker: Any) -> Any:
        return None

    def dump(self) -> str:
        return f"refused {self.refused}"


class Naps(Plain):
    """Takes a second over the tenth request: longer than a heart may stand still, seen by however late a watchdog."""

    seen = 0

    def runnable(self, request: Any) -> None:
        self.seen += 1
        if self.seen == 10:
            time.sleep(1)
        super().runnable(request)


class Thinks(Plain):
    """Is busy for a while about each request."""

    def runnable(self, request: Any) -> None:
        until = time.perf_counter_ns() + 200_000
        while time.perf_counter_ns() < until:
            pass
        super().runnable(request)


class DumpsBadly(Plain):
    def dump(self) -> str:
        raise RuntimeError("no state")


class NeverDecides(Policy):
    def runnable(self, request: Any) -> None:
        pass


class CannotBeSaid(Plain):
    def __init__(self) -> None:
        raise ValueError("no\ud800t utf-8")


class SaysTooMuch(Plain):
    def __init__(self) -> None:
        raise ValueError("z" * 3_000_000)


class BadDepth(Plain):
    """Asks for a depth that is no number, from its tenth request on."""

    seen = 0

    def runnable(self, request: Any) -> None:
        self.seen += 1
        if self.seen == 10:
            self.depth = "many"  # type: ignore[assignment]
        super().runnable(request)


class BadSettings(Plain):
    def settings(self) -> list[tuple[str, str]]:
        return 5  # type: ignore[return-value]
