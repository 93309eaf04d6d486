"""Judged runs over the classic protocol: the sixteen numbers, the same ones again, buffers kept and cleared."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from classic_way import EXAMPLES, Bare

from teal.duck import Server, cc
from teal.duck.classic import Client, Hatch
from teal.duck.classic.run import KEYS
from teal.errors import QuotaExceeded

PAGE = 4096


def numbers_for(actor: bytes, stdin: bytes, *, seq: int = 1, at: int = 0, ib: int = 8, ob: int = 8, clear: int = 0,
                time: int = 1_000_000_000, memory: int = 65536) -> list[int]:  # fmt: skip
    """``at`` pushes every part off its page."""
    places = [(0, len(actor)), (1 << 20, len(stdin)), (2 << 20, 4096), (3 << 20, 4096), (4 << 20, ib), (5 << 20, ob)]
    ranges = [number for offset, length in places for number in (offset + at, length)]
    return [seq, time, memory, *ranges, clear]


def laid_out(client: Client, actor: bytes, stdin: bytes, **options: Any) -> list[int]:
    numbers = numbers_for(actor, stdin, **options)
    client.write(numbers[3], actor)
    client.write(numbers[5], stdin)
    return numbers


def test_a_run(client: Client, actor: bytes) -> None:
    judged = client.judge(actor, b"oquack", stdout=100, stderr=3)
    record = judged.record
    assert tuple(record) == KEYS
    assert len(KEYS) == 19
    assert (record["status"], record["return-code"], record["trap-num"]) == ("Run Finished", 5, 255)
    assert (judged.stdout, judged.stderr) == (b"quack", b"qua")
    assert (record["stdout-size"], record["stderr-size"]) == (5, 3)
    assert record["time-ns"] > 0  # type: ignore[operator]
    assert record["memory-kb"] >= 4  # type: ignore[operator]


@pytest.mark.parametrize("abi", ["duckinfo", "duckinfo32"])
def test_the_example(client: Client, tmp_path: Path, abi: str) -> None:
    if shutil.which("cc") is None:
        pytest.skip("no C compiler here")
    cc.compile_program(EXAMPLES / "duckinfo.c", tmp_path / "it.elf", abi=abi)
    judged = client.judge(tmp_path / "it.elf", b"\n".join(b"%d" % i for i in range(1001)))
    if abi == "duckinfo32" and judged.record["status"] != "Run Finished":
        pytest.skip(f"this kernel runs no i386 programs: {judged.record}")
    assert judged.stdout == b"500500\n"


def test_through_the_duck_too(server: Server, tmp_path: Path) -> None:
    if shutil.which("cc") is None:
        pytest.skip("no C compiler here")
    cc.compile_program(EXAMPLES / "duckinfo.c", tmp_path / "it.elf", abi="duckinfo")
    with server.connect() as duck:
        record = duck.judge(tmp_path / "it.elf", stdin=b"1 2 3", abi="duckinfo", output=4096)
    assert (record["status"], record["stdout"]) == ("Run Finished", b"6\n")


def test_what_programs_do_is_in_the_record(client: Client, actor: bytes) -> None:
    crashed = client.judge(actor, b"x").record
    assert (crashed["status"], crashed["trap-num"], crashed["trap-cr2"]) == ("Runtime Error", 14, 0x123)
    overdue = client.judge(actor, b"l", time="30ms").record
    assert (overdue["status"], overdue["trap-num"], overdue["time-ns"]) == ("Time Limit Exceeded", 32, 30_000_000)
    assert client.judge(actor, b"w", stdout=10).stdout == bytes(10)  # it said more than there is room for


def test_failures_are_ours_and_said(client: Client, actor: bytes) -> None:
    for program, options, reason in (
        (b"no program", {}, "Can't load ELF"),
        (actor, {"memory": 4096}, "memory limit"),
        (actor, {"memory": 1 << 40}, "this duck has"),
        (actor, {"time": "501s"}, "invalid time limit"),
    ):
        record = client.judge(program, **options).record  # type: ignore[arg-type]
        assert record["status"] == "Judge Failed"
        assert reason in str(record["reason"])
    with pytest.raises(QuotaExceeded, match="the duck's buffer has"):
        client.judge(actor, ob=64 << 20)


# ---- the same numbers again ------------------------------------------------------------------------------------------


def test_the_same_again_is_no_second_run(client: Client, bare: Bare, hatch: Hatch, actor: bytes) -> None:
    numbers = laid_out(client, actor, b"k")
    client.write(4 << 20, (3).to_bytes(8, "little"))
    client.clear(5 << 20, 8)
    before = hatch.statistics()
    first = bare.judge(numbers)
    assert first.startswith(b"ok-judge " + b" ".join(b"%d" % number for number in numbers) + b"\n")
    assert bare.judge(numbers) == first
    assert hatch.statistics()["runs"] - before["runs"] == 1
    assert hatch.statistics()["results_again"] - before["results_again"] == 1
    assert client.read(5 << 20, 8) == (3).to_bytes(8, "little")  # reading changes nothing
    assert bare.judge(numbers) == first
    assert bare.judge([2, *numbers[1:]]) != first  # another sequence number: the OB went on from where it was
    assert client.read(5 << 20, 8) == (6).to_bytes(8, "little")


@pytest.mark.parametrize("change", ["clear", "write", "copy", "load"])
def test_whatever_is_written_drops_the_result(
    client: Client, bare: Bare, hatch: Hatch, actor: bytes, change: str
) -> None:
    numbers = laid_out(client, actor, b"k", seq=7)
    assert client.store("data", 0, 8, "b" * 64)
    bare.judge(numbers)
    before = hatch.statistics()
    client.write(6 << 20, b"")  # nothing
    if change == "clear":
        client.clear(6 << 20, 1)
    elif change == "write":
        client.write(6 << 20, b"x")
    elif change == "copy":
        client.copy(6 << 20, 0, 1)
    else:
        assert client.load("data", 6 << 20, 8, "b" * 64)
    assert hatch.statistics()["results_dropped"] - before["results_dropped"] == 1
    bare.judge(numbers)
    assert hatch.statistics()["runs"] - before["runs"] == 1


def test_while_a_program_runs(client: Client, bare: Bare, hatch: Hatch, actor: bytes) -> None:
    numbers = laid_out(client, actor, b"l", seq=9, time=300_000_000)
    words = b"judge " + b" ".join(b"%d" % number for number in numbers)
    bare._socket.send(words)
    bare._socket.send(words)
    bare._socket.send(b"write-buffer " + bytes(8) + b"x")
    bare._socket.send(b"uptime")
    assert bare._socket.recv(65536).startswith(b"ok-uptime ")  # control goes on
    assert b"Time Limit Exceeded" in bare._socket.recv(65536)  # one answer, to one of the two
    assert hatch.statistics()["while_running"] >= 2
    assert client.read(0, 1) == b"\x7f"


# ---- buffers ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("aligned", [True, False])
def test_output_buffers_stay_unless_they_are_cleared(
    client: Client, bare: Bare, hatch: Hatch, actor: bytes, aligned: bool
) -> None:
    at, size = (0, PAGE) if aligned else (24, 16)
    numbers = laid_out(client, actor, b"k", at=at, ib=size, ob=size)
    client.write((4 << 20) + at, (40).to_bytes(8, "little"))
    client.clear((5 << 20) - 16, PAGE + 32)
    client.write((5 << 20) + at + size, b"behind it")
    before = hatch.statistics()
    for i in range(1, 4):
        assert b"Run Finished" in bare.judge([100 + i, *numbers[1:]])
        assert int.from_bytes(client.read((5 << 20) + at, 8), "little") == 40 * i
    bare.judge([200, *numbers[1:15], 1])
    assert int.from_bytes(client.read((5 << 20) + at, 8), "little") == 40
    assert client.read((5 << 20) + at + size, 9) == b"behind it"
    after = hatch.statistics()
    mapped = after["mapped_bytes"] - before["mapped_bytes"]
    copied = after["copied_bytes"] - before["copied_bytes"]
    assert mapped == (8 * PAGE if aligned else 0)  # IB and OB of four runs
    assert copied == 4 * (1 if aligned else 1 + 3 * size)  # stdin of a byte; IB; OB there and back


def test_ranges_of_nothing(client: Client, bare: Bare, actor: bytes) -> None:
    client.write(0, actor)
    numbers = [3, 10**9, 65536, 0, len(actor), 8 << 20, 0, 0, 0, 5, 0, 5, 0, 7, 0, 0]
    assert b"Run Finished" in bare.judge(numbers)
    assert b"Can't load ELF" in bare.judge([4, 10**9, 65536, *[0] * 13])
