"""Ways to a hatch for tests: a bare socket, and a relay that loses, doubles and reorders."""

from __future__ import annotations

import random
import select
import socket
import threading
from pathlib import Path

EXAMPLES = Path(__file__).parents[3] / "examples" / "duck"


class Bare:
    """A socket that sends what it is told, and sees all that comes."""

    def __init__(self, address: str) -> None:
        host, port = address.rsplit(":", 1)
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.connect((host, int(port)))
        self._socket.settimeout(30)

    def ask(self, datagram: bytes) -> bytes | None:
        """The answer, or None: the hatch answers in order, so that of the question behind it says there was none."""
        self._socket.send(datagram)
        self._socket.send(b"query-buffer-size")
        first = self._socket.recv(65536)
        if first.startswith(b"ok-query-buffer-size ") and not datagram.startswith(b"query-buffer-size"):
            return None
        while not self._socket.recv(65536).startswith(b"ok-query-buffer-size "):
            pass
        return first

    def judge(self, numbers: list[int]) -> bytes:
        self._socket.send(b"judge " + b" ".join(b"%d" % number for number in numbers))
        return self._socket.recv(65536)

    def close(self) -> None:
        self._socket.close()


class Relay(threading.Thread):
    """Between a client and a hatch: loses, doubles and holds back datagrams of both directions, by a seed."""

    def __init__(self, target: str, *, loss: float, double: float, hold: float, seed: int) -> None:
        super().__init__(daemon=True)
        host, port = target.rsplit(":", 1)
        self._rates = (loss, double, hold)
        self._random = random.Random(seed)
        self._inner = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._inner.connect((host, int(port)))
        self._outer = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._outer.bind(("127.0.0.1", 0))
        self._client: tuple[str, int] | None = None
        self._held: list[tuple[bool, bytes]] = []
        self._over = threading.Event()
        self.lost = self.doubled = self.held = 0
        self.address = f"127.0.0.1:{self._outer.getsockname()[1]}"
        self.start()

    def run(self) -> None:
        while not self._over.is_set():
            ready, _, _ = select.select([self._inner, self._outer], [], [], 0.002)
            if not ready:
                self._release()
            for one in ready:
                try:
                    if one is self._outer:
                        datagram, self._client = one.recvfrom(65536)
                    else:
                        datagram = one.recv(65536)
                except OSError:
                    continue
                self._pass(one is self._outer, datagram)

    def _pass(self, inwards: bool, datagram: bytes) -> None:
        loss, double, hold = self._rates
        if self._random.random() < loss:
            self.lost += 1
            return
        if self._random.random() < hold:
            self.held += 1
            self._held.append((inwards, datagram))
            return
        self._send(inwards, datagram)
        if self._random.random() < double:
            self.doubled += 1
            self._send(inwards, datagram)
        self._release()

    def _release(self) -> None:
        held, self._held = self._held, []
        for inwards, datagram in held:
            self._send(inwards, datagram)

    def _send(self, inwards: bool, datagram: bytes) -> None:
        if inwards:
            self._inner.send(datagram)
        elif self._client is not None:
            self._outer.sendto(datagram, self._client)

    def close(self) -> None:
        self._over.set()
        self.join()
        self._inner.close()
        self._outer.close()
