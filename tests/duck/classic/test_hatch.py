"""The hatch: every command, and silence for what is malformed, out of range or hostile."""

from __future__ import annotations

import gc
import hashlib
import logging
import os
from typing import Any

import pytest
from classic_way import Bare
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from teal.duck import Server
from teal.duck.classic import Client, Hatch
from teal.duck.classic.request import SHAPES
from teal.errors import Busy, Closed, InvalidArgument, PeerDied, QuotaExceeded

SIZE = 8 << 20
DIGEST = hashlib.sha256(b"quack").hexdigest()


def counted(hatch: Hatch) -> dict[str, Any]:
    return hatch.statistics()


# ---- control ---------------------------------------------------------------------------------------------------------


def test_control(client: Client, bare: Bare) -> None:
    first = client.uptime()
    assert 0 < first < client.uptime()
    assert client.buffer_size() == SIZE
    assert client.cpu_model_name()
    temperature = client.temperature()
    assert temperature is None or -50 < temperature < 200
    runs, total = client.runs()
    assert runs >= 0
    assert total >= 0
    assert client.sysinfo()["abi-version"] == "40"
    said = client.query_all()
    assert said["buffer-size"] == str(SIZE)
    assert {"uptime", "cpu-temp", "elf-cache", "data-cache", "program-memory-kb", "judging"} <= set(said)
    assert client.extensions() == {"digest-buffer"}
    assert (bare.ask(b"uptime") or b"").startswith(b"ok-uptime ")


def test_log(client: Client) -> None:
    logging.getLogger("teal.duck").info("a line for the test: %s", "quack")
    at, text = client.log(-300, 300)
    assert "a line for the test: quack" in text
    again, rest = client.log(at, 20)
    assert (again, rest) == (at, text[:20])
    assert client.log(2**63, 10)[1] == ""


# ---- data ------------------------------------------------------------------------------------------------------------


def test_answers_echo_what_they_answer(bare: Bare) -> None:
    offset = (1000).to_bytes(8, "little")
    assert bare.ask(b"write-buffer " + offset + b"quack") == b"ok-write-buffer 1000 5"
    assert bare.ask(b"read-buffer 1000 5") == b"ok-read-buffer " + offset + b"quack"
    assert bare.ask(b"copy-buffer 2000 1000 5") == b"ok-copy-buffer 2000 1000 5"
    assert bare.ask(b"compare-buffer 2000 1000 5") == b"ok-compare-buffer 2000 1000 5 1"
    assert bare.ask(b"compare-buffer 2001 1000 5") == b"ok-compare-buffer 2001 1000 5 0"
    assert bare.ask(b"digest-buffer 1000 5") == b"ok-digest-buffer 1000 5 " + DIGEST.encode()
    assert bare.ask(b"clear-buffer 1001 3") == b"ok-clear-buffer 1001 3"
    assert bare.ask(b"read-buffer 1000 5") == b"ok-read-buffer " + offset + b"q\0\0\0k"
    assert bare.ask(b"query-buffer-size") == b"ok-query-buffer-size %d" % SIZE


@pytest.mark.parametrize(
    "datagram",
    [
        b"read-buffer 0 1401",
        b"read-buffer %d 1" % SIZE,
        b"read-buffer %d 2" % (SIZE - 1),
        b"read-buffer %d %d" % (2**64 - 1, 2),
        b"clear-buffer 1 %d" % SIZE,
        b"clear-buffer 1 %d" % (2**64 - 1),
        b"write-buffer " + (SIZE - 1).to_bytes(8, "little") + b"xy",
        b"write-buffer " + (2**64 - 1).to_bytes(8, "little") + b"xy",
        b"copy-buffer 0 4 5",
        b"copy-buffer 4 0 5",
        b"copy-buffer 0 0 1",
        b"copy-buffer 0 %d 2" % (SIZE - 1),
        b"compare-buffer %d 0 2" % (SIZE - 1),
        b"digest-buffer 1 %d" % SIZE,
        b"load-cache elf %d 5 %s" % (SIZE - 4, DIGEST.encode()),
        b"store-cache elf %d 5 %s" % (SIZE - 4, DIGEST.encode()),
        b"judge 1 1 1 0 10 10 1 20 1 30 1 40 1 %d 1 0" % SIZE,
        b"judge 1 1 1 0 10 9 1 20 1 30 1 40 1 50 1 0",  # stdin in the ELF file
        b"judge 1 1 1 0 10 10 1 20 1 30 1 40 1 50 1 2",
    ],
    ids=lambda datagram: datagram[:40].decode("ascii", "replace"),
)
def test_out_of_range(bare: Bare, hatch: Hatch, datagram: bytes) -> None:
    before = counted(hatch)
    assert bare.ask(datagram) is None
    after = counted(hatch)
    assert after["out_of_range"] - before["out_of_range"] == 1
    assert after["malformed"] == before["malformed"]


@pytest.mark.parametrize(
    "datagram",
    [b"", b"quack", b"uptime 1", b"read-buffer", b"read-buffer a b", b"write-buffer 1", b"judge 1 2 3",
     b"info-cache stack", b"load-cache elf 0 5 " + b"x" * 64, b"\xff" * 1400, b"uptime\nuptime", b"UPTIME"],
)  # fmt: skip
def test_malformed(bare: Bare, hatch: Hatch, datagram: bytes) -> None:
    before = counted(hatch)["malformed"]
    assert bare.ask(datagram) is None
    assert counted(hatch)["malformed"] - before == 1


hostile = st.one_of(
    st.binary(max_size=1500),
    st.builds(
        lambda name, numbers: b" ".join([name.encode(), *(b"%d" % number for number in numbers)]),
        st.sampled_from(sorted(set(SHAPES) - {"reboot"})),
        st.lists(st.one_of(st.integers(0, 2 * SIZE), st.integers(2**63 - 2, 2**64)), max_size=17),
    ),
    st.builds(lambda offset, data: b"write-buffer " + offset + data, st.binary(max_size=8), st.binary(max_size=99)),
    st.builds(
        lambda verb, kind, a, b: f"{verb}-cache {kind} {a} {b} {DIGEST}".encode(),
        st.sampled_from(["load", "store", "info"]),
        st.sampled_from(["elf", "data", "sand"]),
        st.integers(0, 2 * SIZE),
        st.integers(0, 5000),
    ),
    st.builds(  # ranges that do not overlap, of whatever lies there: most are no program
        lambda head, cuts, clear: b"judge " + b" ".join(b"%d" % number for number in [
            *head, *(x for a, b in zip(cuts[::2], cuts[1::2], strict=True) for x in (a, b - a)), clear]),
        st.lists(st.one_of(st.integers(0, 10**6), st.integers(2**63 - 2, 2**64 - 1)), min_size=3, max_size=3),
        st.lists(st.integers(0, SIZE), min_size=12, max_size=12).map(sorted),
        st.integers(0, 2),
    ),
)  # fmt: skip


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(hostile)
def test_hostile(client: Client, hatch: Hatch, datagram: bytes) -> None:
    client._socket.send(datagram)
    before = counted(hatch)["datagrams"]
    assert client.buffer_size() == SIZE  # it lives, and answers
    assert counted(hatch)["datagrams"] > before


operations = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.integers(0, 9000), st.binary(max_size=99)),
        st.tuples(st.just("clear"), st.integers(0, 9000), st.integers(0, 9000)),
        st.tuples(st.just("copy"), st.integers(0, 4000), st.integers(4000, 9000)),
    ),
    max_size=12,
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(operations)
def test_the_buffer_is_what_was_written(client: Client, done: list[tuple[str, int, Any]]) -> None:
    client.clear(0, 20_000)
    expected = bytearray(20_000)
    for what, at, detail in done:
        if what == "write":
            client.write(at, detail)
            expected[at : at + len(detail)] = detail
        elif what == "clear":
            client.clear(at, detail)
            expected[at : at + detail] = bytes(detail)
        else:
            length = detail - at
            client.copy(at, detail, length)
            expected[at : at + length] = expected[detail : detail + length]
    assert client.read(0, 20_000) == expected


# ---- caches ----------------------------------------------------------------------------------------------------------


def test_caches(client: Client, bare: Bare) -> None:
    client.write(0, b"quack")
    for kind in ("elf", "data"):
        other = hashlib.sha256(kind.encode()).hexdigest()
        words = f"load-cache {kind} 100 5 {other}".encode()
        assert bare.ask(words) == b"fail-" + words
        assert client.store(kind, 0, 5, other)
        client.clear(100, 5)
        assert bare.ask(words) == b"ok-" + words
        assert client.read(100, 5) == b"quack"
        assert not client.load(kind, 100, 4, other)  # the exact length
        assert client.load(kind, 100, 5, other.upper())
        client.write(200, b"quick")
        assert not client.store(kind, 200, 5, other)
        info = client.info(kind)
        assert info["most_objects"] == {"elf": 1000, "data": 100_000}[kind]
        assert info["hits"] >= 2
        assert info["misses"] >= 2
        assert info["stored"] >= 1


# ---- life ------------------------------------------------------------------------------------------------------------


def test_reboot_ends_sessions_and_empties_the_buffer() -> None:
    from teal.duck.selftest import selftest_program

    with (
        Server(None, cache=False, memory=1 << 30, classic="127.0.0.1:0", classic_buffer=1 << 20) as server,
        server.connect() as duck,
        Client(server.hatch.address if server.hatch else "") as client,
    ):
        session = duck.open(selftest_program(), restart=False)
        session.call(b"e")
        client.write(0, b"quack")
        assert client.store("data", 0, 5, "a" * 64)
        client.reboot()
        assert client.read(0, 5) == bytes(5)  # not answered before it is over
        assert not client.load("data", 0, 5, "a" * 64)
        assert client.query_all()["runs"] == "0"
        with pytest.raises((PeerDied, Closed)):
            session.call(b"e")
        assert duck.statistics()["classic"]["reboots"] == 1
        assert duck.statistics()["sessions"]["open"] == 0


@pytest.mark.parametrize("end", ["reboot", "close"])
def test_a_run_ends_with_the_machine(actor: bytes, end: str) -> None:
    with Server(None, cache=False, memory=1 << 30, classic="127.0.0.1:0", classic_buffer=1 << 20) as server:
        assert server.hatch is not None
        with Client(server.hatch.address) as client:
            client.write(0, actor)
            client.write(1 << 19, b"l")
            seq_time_memory = b"judge 1 499000000000 65536"
            ranges = b" 0 %d %d 1 600000 9 700000 9 800000 0 800000 0 0" % (len(actor), 1 << 19)
            client._socket.send(seq_time_memory + ranges)  # it takes minutes
            assert client.query_all()["judging"] == "1"
            if end == "reboot":
                client.reboot()
                assert client.read(0, 4) == bytes(4)
                assert client.query_all()["judging"] == "0"
                assert client.judge(actor, b"oquack", stdout=99, stderr=99, memory=1 << 24).stdout == b"quack"
            else:
                server.hatch.close()


def test_only_loopback_unless_it_is_trusted() -> None:
    with pytest.raises(InvalidArgument, match="no authentication"):
        Server(None, cache=False, memory=1 << 30, classic="0.0.0.0:0")
    with Server(None, cache=False, memory=1 << 30, classic="0.0.0.0:0", classic_trusted=True) as server:
        assert server.hatch is not None
        port = server.hatch.address.rpartition(":")[2]
        with Client(f"127.0.0.1:{port}") as client:
            assert client.buffer_size() == 192 << 20  # of 512 MiB, a run of 256 MiB has room beside it
        with pytest.raises(Busy, match="classic protocol at"):
            Server(None, cache=False, memory=1 << 30, classic=f"0.0.0.0:{port}", classic_trusted=True)


def test_what_it_holds_counts_and_is_given_back() -> None:
    def descriptors() -> int:
        gc.collect()  # of a yard that is closed, two are freed with it
        return len(os.listdir("/proc/self/fd"))

    before = descriptors()
    with Server(None, cache=False, memory=1 << 30, classic="127.0.0.1:0", classic_buffer=100 << 20) as server:
        assert server.statistics()["sessions"]["bytes"] == 100 << 20
        assert server.hatch is not None
        server.hatch.close()
        assert server.statistics()["sessions"]["bytes"] == 0
    del server
    assert descriptors() <= before
    with pytest.raises(QuotaExceeded, match="a buffer of"):
        Server(None, cache=False, memory=1 << 30, classic="127.0.0.1:0", classic_buffer=1 << 40)
    with pytest.raises(InvalidArgument, match="at least a page"):
        Server(None, cache=False, memory=1 << 30, classic="127.0.0.1:0", classic_buffer=100)
