"""A client behind a way that loses, doubles and reorders: everything arrives, runs happen once."""

from __future__ import annotations

import hashlib
import random
import select
import socket
import threading

import pytest
from classic_way import Relay

from teal.duck.classic import Client, Hatch
from teal.duck.classic.exchange import Ask, Exchange
from teal.errors import NotFound, PeerDied


@pytest.mark.parametrize(
    ("loss", "double", "hold"), [(0.0, 0.0, 0.0), (0.2, 0.0, 0.0), (0.0, 0.3, 0.3), (0.1, 0.1, 0.1)]
)
def test_everything_arrives(hatch: Hatch, actor: bytes, loss: float, double: float, hold: float) -> None:
    data = random.Random(1).randbytes(300_000)
    relay = Relay(hatch.address, loss=loss, double=double, hold=hold, seed=2)
    try:
        with Client(relay.address) as client:
            client.write(12_345, data)
            assert client.digest(12_345, len(data)) == hashlib.sha256(data).hexdigest()
            assert client.read(12_345, len(data)) == data
            before = hatch.statistics()["runs"]
            for i in range(3):
                judged = client.judge(actor, b"o%d" % i)
                assert (judged.record["status"], judged.stdout) == ("Run Finished", b"%d" % i)
            assert hatch.statistics()["runs"] - before == 3
            sent = client.statistics()
    finally:
        relay.close()
    assert (relay.lost > 0, relay.doubled > 0, relay.held > 0) == (loss > 0, double > 0, hold > 0)
    assert (sent["sent_again"] > 0) or not loss
    assert sent["sent"] == sent["requests"] + sent["sent_again"]


def test_what_is_there_is_not_sent_again(client: Client, actor: bytes) -> None:
    ib = random.Random(3).randbytes(100_000)
    first = client.judge(actor, b"k", ib=ib, ob=8)
    assert first.uploaded >= len(ib)
    second = client.judge(actor, b"k", ib=ib, ob=8)
    assert (second.hits, second.uploaded) == (3, 0)
    assert first.ob == second.ob == ib[:8]


def test_nobody_there() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind(("127.0.0.1", 0))  # and never reads
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with Client(address, tries=4) as client:
            with pytest.raises(PeerDied, match="no answer to uptime in 4 tries"):
                client.uptime()
            assert client.statistics()["sent"] == 4
    with Client(address, tries=3) as client, pytest.raises(PeerDied, match="3 tries"):
        client.buffer_size()
    with pytest.raises(NotFound):
        Client("no.such.host.invalid:9999")


def pair() -> tuple[Exchange, socket.socket]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    return Exchange(ours, "the other end", window=4), theirs


def test_answers_in_any_order_and_strange_ones() -> None:
    exchange, other = pair()
    asks = [Ask(b"clear-buffer %d 1" % i, (b"ok-clear-buffer %d 1" % i,), str(i)) for i in (1, 11, 111)]
    for answer in (b"ok-clear-buffer 111 1", b"ok-clear-buffer 7 1", b"", b"ok-clear-buffer 11 1", b"nonsense",
                   b"ok-clear-buffer 11 1", b"ok-clear-buffer 1 1"):  # fmt: skip
        other.send(answer)
    assert [ask.what for ask in exchange.run(asks)] == ["111", "11", "1"]
    assert exchange.unwanted == 4


def test_the_window_is_kept() -> None:
    exchange, other = pair()
    most = 0

    def answer() -> None:
        nonlocal most
        answered: set[bytes] = set()
        while len(answered) < 100:
            select.select([other], [], [])
            came = set()
            while select.select([other], [], [], 0)[0]:
                came.add(other.recv(100))
            most = max(most, len(came))
            answered |= came
            for request in came:
                other.send(b"ok-" + request)

    thread = threading.Thread(target=answer)
    thread.start()
    asks = (Ask(b"clear-buffer %d 1" % i, (b"ok-clear-buffer %d 1" % i,), str(i), patience=60) for i in range(100))
    assert {ask.what for ask in exchange.run(asks)} == {str(i) for i in range(100)}
    other.close()
    thread.join()
    assert 1 <= most <= 4


def test_the_timer_follows_the_way() -> None:
    exchange, other = pair()
    assert exchange.timer == 0.003
    for i in range(50):
        other.send(b"ok-uptime %d" % i)
        (answered,) = exchange.run([Ask(b"uptime", (b"ok-uptime",), "uptime")])
        assert answered.answer == b"ok-uptime %d" % i
    assert exchange.timer <= 0.01
    close = exchange.timer
    exchange._learn(Ask(b"x", (b"x",), "x", tries=2, sent=0.0))  # sent twice: says nothing
    assert exchange.timer == close
