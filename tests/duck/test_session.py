"""Sessions on this machine: calls, what they return, buffers, and what their state is."""

from __future__ import annotations

import gc
from pathlib import Path

import numpy as np
import pytest
from duck_numbers import number

import teal


def test_a_call_returns_a_view_of_the_output_buffer(duck: teal.Duck, program: Path) -> None:
    with duck.open(program) as session:
        answer = session.call(b"e hello")
        assert bytes(answer.numpy()) == b"e hello"
        again = session.call(b"e there")
        assert again is answer  # of the same size: the same view, which the later call has written over
        assert bytes(answer.numpy()) == b"e there"
        assert bytes(session.call(b"e more and more").numpy()) == b"e more and more"
        assert bytes(session.ob.numpy()[:4]) == b"e mo"


def test_arguments_are_anything_packed(duck: teal.Duck, program: Path) -> None:
    with duck.open(program, args=1 << 16) as session:
        x = np.arange(2000, dtype=np.float32)
        x.view(np.uint8)[0] = ord("e")
        assert bytes(session.call(x).numpy()) == x.tobytes()
        assert bytes(session.call(memoryview(b"e!")).numpy()) == b"e!"
        with pytest.raises(teal.InvalidArgument, match=r"longer than the \d+ bytes"):
            session.call(bytes(1 << 17))
        with pytest.raises(teal.InvalidArgument, match="expected bytes or a packed array"):
            session.call(x[::2])
        with pytest.raises(teal.InvalidArgument, match="expected bytes or a packed array"):
            session.call("text")
        assert session.statistics().restarts == 0


def test_what_is_no_size_and_no_bytes_is_refused(duck: teal.Duck, program: Path) -> None:
    objects = np.array([object()])
    with duck.open(program) as session:
        with pytest.raises(teal.InvalidArgument, match="holds Python objects"):
            session.map(objects)
        with pytest.raises(teal.InvalidArgument, match="holds Python objects"):
            session.call(objects)
        with pytest.raises(teal.InvalidArgument, match=r"\$\.nbytes: -1"):
            session.prepare(-1)


def test_sessions_that_nobody_holds_are_closed(duck: teal.Duck, program: Path) -> None:
    numbers = set()
    for _ in range(3):
        session = duck.open(program)
        numbers.add(session.number)
    call = session.prepare(2)  # holds the last one
    del session
    gc.collect()
    with duck.open(program) as last:
        rows = {row["session"] for row in duck.info()["sessions"]}
        assert len(rows & numbers) == 1
        assert last.number in rows
        call.args.numpy()[:] = ord("e")
        assert bytes(call()) == b"ee"


def test_state_stays_and_each_session_has_its_own(duck: teal.Duck, program: Path) -> None:
    with duck.open(program) as one, duck.open(program) as other:
        assert [number(one.call(b"c")) for _ in range(3)] == [1, 2, 3]
        assert number(other.call(b"c")) == 1
        assert one.pid != other.pid
        rows = {row["session"]: row for row in duck.info()["sessions"]}
        assert {one.number, other.number} <= set(rows)
        assert rows[one.number]["pid"] == one.pid


def test_prepared_calls_are_written_in_place(duck: teal.Duck, program: Path) -> None:
    with duck.open(program) as session:
        call = session.prepare(16)
        args = call.args.numpy()
        for i in range(5):
            args[:] = ord("e") if i == 0 else i
            args[0] = ord("e")
            assert bytes(call().numpy()) == bytes(args)
        assert call() is call()
        assert session.statistics().calls == 7
        with pytest.raises(teal.InvalidArgument, match="longer than"):
            session.prepare(1 << 20)


def test_a_negative_answer_is_the_programs_own_failure(duck: teal.Duck, program: Path) -> None:
    with duck.open(program) as session:
        number(session.call(b"c"))
        with pytest.raises(teal.KernelFailed, match="the program returned -5"):
            session.call(b"n\x05")
        assert number(session.call(b"c")) == 2  # it lives
        assert session.statistics().failed == 1


def test_the_output_buffer_stays_until_it_is_cleared(duck: teal.Duck, program: Path) -> None:
    with duck.open(program, ob="64KiB") as session:
        session.call(b"e" * 100)
        assert session.ob.nbytes == 64 << 10
        assert int(session.ob.numpy().sum()) == 100 * ord("e")
        session.clear()
        assert int(session.ob.numpy().sum()) == 0
        assert number(session.call(b"c")) == 1


def test_several_cores_enter_the_program_together(duck: teal.Duck, program: Path) -> None:
    with duck.open(program, cores=2) as session:
        assert session.cores == 2
        assert [number(session.call(b"m")) for _ in range(200)] == [2] * 200
        x = np.random.default_rng(0).integers(0, 255, 1 << 20, np.uint8)
        session.map(x)
        assert number(session.call(b"s")) == int(x.sum(dtype=np.uint64))


def test_input_buffers_are_mapped_or_copied_and_counted(duck: teal.Duck, program: Path, tmp_path: Path) -> None:
    with duck.open(program) as session:
        assert number(session.call(b"i")) == 0
        shared = duck.empty((1000, 100), "float32")
        view = shared.numpy()
        view[:] = 1.5
        session.map(shared)
        assert number(session.call(b"i")) == 400_000
        assert number(session.call(b"s")) == int(view.view(np.uint8).sum(dtype=np.uint64))
        view[:] = 3.25  # it is the same memory
        assert number(session.call(b"s")) == int(view.view(np.uint8).sum(dtype=np.uint64))
        session.map(view)
        assert session.statistics().ib_copies == 0
        own = np.arange(5000, dtype=np.uint8)
        session.map(own)
        assert number(session.call(b"s")) == int(own.sum(dtype=np.uint64))
        file = tmp_path / "weights"
        file.write_bytes(own.tobytes() * 3)
        session.map(file)
        assert number(session.call(b"i")) == 15_000
        kept = duck.put(own)
        session.map(kept)
        assert number(session.call(b"i")) == 5000
        session.map(None)
        assert number(session.call(b"i")) == 0
        seen = session.statistics()
        assert (seen.ib_copies, seen.ib_copied_bytes) == (2, 20_000)


def test_the_program_cannot_write_its_input_buffer(duck: teal.Duck, program: Path) -> None:
    with duck.open(program) as session:
        shared = duck.empty(4096)
        session.map(shared)
        with pytest.raises(teal.PeerDied, match="SIGSEGV"):
            session.call(b"w")
        assert int(shared.numpy().sum()) == 0
        assert number(session.call(b"i")) == 4096  # opened anew, with the same input buffer
        assert session.statistics().restarts == 1


def test_shared_memory_goes_with_its_last_view(duck: teal.Duck, program: Path) -> None:
    with duck.open(program) as session:
        before = len(duck._segments._segments)
        shared = duck.empty(1 << 16)
        view = shared.numpy()
        session.map(shared)
        del shared
        gc.collect()
        view[0] = 7
        assert number(session.call(b"s")) == 7
        session.map(None)
        del view
        gc.collect()
        assert len(duck._segments._segments) == before
        session.map(duck.put(b"abc"))
        assert number(session.call(b"i")) == 3


def test_empty_answers_and_empty_arguments(duck: teal.Duck, program: Path) -> None:
    with duck.open(program) as session:
        assert session.call().nbytes == 0
        assert session.call(b"").nbytes == 0
        assert session.call(b"l" + b"a line\n").nbytes == 0


def test_what_a_program_says_is_in_the_log(duck: teal.Duck, program: Path) -> None:
    with duck.open(program, name="speaker") as session:
        session.call(b"lquack \x1b[31m\n")
        text = duck.log()[1]
    assert f"session {session.number}: quack \\x1b[31m" in text


def test_views_outlive_the_session(duck: teal.Duck, program: Path) -> None:
    session = duck.open(program)
    answer = session.call(b"e stays")
    session.close()
    session.close()
    assert bytes(answer.numpy()) == b"e stays"
    for use in (lambda: session.call(b"e"), lambda: session.prepare(1), lambda: session.map(None), session.clear):
        with pytest.raises(teal.Closed):
            use()


@pytest.mark.parametrize(
    ("settings", "path"),
    [
        ({"cores": 0}, "$.cores"),
        ({"cores": 65}, "$.cores"),
        ({"ob": -1}, "$.ob"),
        ({"ob": "much"}, "$.ob"),
        ({"args": 1 << 40}, "$.args"),
        ({"idle": "soon"}, "$.idle"),
        ({"cancel": "maybe"}, "$.cancel"),
        ({"sandbox": "paper"}, "$.sandbox"),
    ],
)
def test_open_says_what_is_wrong(duck: teal.Duck, program: Path, settings: dict[str, object], path: str) -> None:
    with pytest.raises(teal.InvalidArgument) as caught:
        duck.open(program, **settings)  # type: ignore[arg-type]
    assert caught.value.path == path


def test_programs_that_are_none(duck: teal.Duck, tmp_path: Path) -> None:
    with pytest.raises(teal.NotFound, match="No such file"):
        duck.open(tmp_path / "missing.elf")
    with pytest.raises(teal.InvalidArgument):
        duck.open(b"no program")
    with pytest.raises(teal.InvalidArgument):
        duck.open(3)  # type: ignore[arg-type]
    assert duck.statistics()["sessions"]["bytes"] == 0
