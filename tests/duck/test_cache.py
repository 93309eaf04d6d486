"""What a duck keeps: by SHA-256, within a budget, on disk too, and never what was damaged."""

from __future__ import annotations

import hashlib
import logging
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from duck_numbers import number

import teal
from teal.duck import Server, blob, ladder
from teal.duck.arrivals import Arrivals
from teal.duck.cache import Cache
from teal.duck.journal import Journal
from teal.duck.owner import Owner
from teal.duck.proof import Proof
from teal.duck.shelf import Shelf


def made(data: bytes) -> blob.Blob:
    return blob.from_bytes(data)


def stored(cache: Cache, data: bytes) -> str:
    kept = cache.add(made(data))
    cache.release(kept)
    return kept.digest


# ---- blobs -----------------------------------------------------------------------------------------------------------


def test_a_blob_is_sealed_and_known_by_its_hash(tmp_path: Path) -> None:
    data = os.urandom(10_000)
    (tmp_path / "file").write_bytes(data)
    fd = os.open(tmp_path / "file", os.O_RDONLY)
    for one in (made(data), blob.from_file(fd)):
        assert one.digest == hashlib.sha256(data).hexdigest()
        assert (one.nbytes, one.held) == (10_000, 12_288)
        assert os.pread(one.fd, 20_000, 0) == data
        with pytest.raises(OSError, match="not permitted"):
            os.pwrite(one.fd, b"x", 0)
        one.close()
        one.close()
    os.close(fd)
    with pytest.raises(teal.InvalidArgument):
        blob.check_digest("A" * 64)
    with pytest.raises(teal.InvalidArgument):
        blob.empty(1 << 50)


# ---- in memory -------------------------------------------------------------------------------------------------------


def test_the_least_recently_used_leave(tmp_path: Path) -> None:
    cache = Cache("data", 3 * 4096, Shelf(None, wanted=False))
    first, second, third = (stored(cache, bytes([i]) * 4096) for i in range(3))
    cache.release(cache.use(first))
    fourth = stored(cache, bytes([9]) * 4096)
    assert [cache.has(digest) for digest in (first, second, third, fourth)] == [True, False, True, True]
    with pytest.raises(teal.NotFound, match="send it again"):
        cache.use(second)
    held = cache.use(first), cache.use(third)
    with pytest.raises(teal.QuotaExceeded, match="sessions have 8192 mapped"):
        cache.add(made(bytes(8192)))
    for one in held:
        cache.release(one)
    stored(cache, bytes(8192))
    seen = cache.numbers()
    assert (seen.bytes <= seen.most_bytes, seen.evicted, seen.misses) == (True, 3, 1)
    cache.close()


def test_the_same_bytes_are_kept_once() -> None:
    cache = Cache("data", 1 << 20, Shelf(None, wanted=False))
    assert stored(cache, b"same") == stored(cache, b"same")
    assert cache.numbers().blobs == 1
    assert cache.forget() == 1
    assert cache.numbers().bytes == 0
    cache.close()


# ---- on disk ---------------------------------------------------------------------------------------------------------


def test_blobs_survive_a_restart(tmp_path: Path) -> None:
    data = os.urandom(5000)
    cache = Cache("data", 1 << 20, Shelf(tmp_path / "blobs"))
    digest = stored(cache, data)
    cache.close()
    assert (tmp_path / "blobs" / digest).read_bytes() == data
    again = Cache("data", 1 << 20, Shelf(tmp_path / "blobs"))
    assert again.has(digest)
    with again.using(digest) as found:
        assert os.pread(found.fd, 5000, 0) == data
    assert again.numbers().disk_hits == 1
    again.close()


@pytest.mark.parametrize("how", ["bits", "cut", "longer", "empty", "link", "open", "folder"])
def test_a_damaged_file_is_removed_and_said(tmp_path: Path, how: str, caplog: pytest.LogCaptureFixture) -> None:
    shelf = Shelf(tmp_path / "blobs")
    kept = made(b"precious" * 100)
    assert shelf.store(kept)
    file = tmp_path / "blobs" / kept.digest
    data = file.read_bytes()
    if how in ("link", "folder"):
        file.unlink()
        file.symlink_to("/dev/zero") if how == "link" else file.mkdir()
    elif how == "open":
        file.chmod(0o644)
    else:
        file.write_bytes({"bits": b"P" + data[1:], "cut": data[:-1], "longer": data + b"!", "empty": b""}[how])
    with caplog.at_level(logging.WARNING, "teal.duck"):
        assert shelf.find(kept.digest) is None
    if how != "link":
        assert "is removed" in caplog.text
        assert shelf.refused == 1
    if how not in ("link", "folder"):
        assert not file.exists()
        assert shelf.store(kept)
        found = shelf.find(kept.digest)
        assert found is not None
        found.close()
    kept.close()
    shelf.close()


def test_what_was_being_written_goes(tmp_path: Path) -> None:
    folder = tmp_path / "blobs"
    folder.mkdir(mode=0o700)
    (folder / "abc.partial").write_bytes(b"half")
    shelf = Shelf(folder)
    assert list(folder.iterdir()) == []
    shelf.close()


def test_the_disk_has_a_budget(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path / "blobs", most_bytes=10_000)
    for i in range(4):
        one = made(bytes([i]) * 4000)
        assert shelf.store(one)
        os.utime(tmp_path / "blobs" / one.digest, (i, i))
        one.close()
    big = made(bytes(20_000))
    assert not shelf.store(big)
    big.close()
    assert shelf.numbers() == (2, 8000)
    assert shelf.evicted == 2
    assert shelf.forget() == 2
    shelf.close()


def test_without_a_home_there_is_memory_only(monkeypatch: pytest.MonkeyPatch, program: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    with Server(None, memory=1 << 30) as server, server.connect() as duck:
        with duck.open(program) as session:
            assert number(session.call(b"c")) == 1
        note = duck.statistics()["programs"]["note"]
        assert "in memory only" in note
        assert duck.log()[1].count("in memory only: there is no home") == 2  # once for each of the two caches


def test_a_folder_that_others_can_write(tmp_path: Path) -> None:
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(0o777)
    shelf = Shelf(folder)
    assert "chmod 700" in shelf.note
    assert not shelf.store(made(b"x"))


def test_a_duck_that_stops_keeps_what_has_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its client was told that it is there; it is hashed and written a moment later."""
    data = os.urandom(100_000)
    store = Shelf.store
    with Server(None, cache=tmp_path, listen="127.0.0.1:0") as server:

        def late(shelf: Shelf, kept: blob.Blob) -> bool:
            if threading.current_thread().name == "teal-duck-shelf":  # else its client still waits for it
                server.stopped.wait(60)
            return store(shelf, kept)

        monkeypatch.setattr(Shelf, "store", late)
        with teal.Duck(server.listening) as duck:
            digest = duck.put(data).digest
    assert (tmp_path / "data" / digest).read_bytes() == data


def test_a_program_and_data_are_there_after_a_restart(tmp_path: Path, program: Path) -> None:
    x = np.arange(100_000, dtype=np.uint32)
    for i in range(2):
        with Server(None, memory=1 << 30, cache=tmp_path) as server, server.connect() as duck:
            kept = duck.put(x)
            with duck.open(program) as session:
                session.map(kept)
                assert number(session.call(b"s")) == int(x.view(np.uint8).sum(dtype=np.uint64))
            seen = duck.statistics()
            assert seen["client"]["skipped_bytes"] == i * (x.nbytes + program.stat().st_size)
            assert seen["data"]["disk_files"] == seen["programs"]["disk_files"] == 1
            duck.forget()
            if i == 0:
                duck.put(x)
                duck.open(program).close()
    assert not list((tmp_path / "data").iterdir())


# ---- budgets ---------------------------------------------------------------------------------------------------------


def test_the_ladder_takes_what_fits() -> None:
    sizes = [rung.whole for rung in ladder.RUNGS]
    assert sizes == sorted(sizes, reverse=True)
    assert ladder.RUNGS[0].sessions == 32 << 30
    for rung in ladder.RUNGS:
        assert ladder.choose(rung.whole + ladder.RESERVE) == rung
        assert ladder.choose(rung.whole + ladder.RESERVE + 4096) == rung
    with pytest.raises(teal.QuotaExceeded, match="--memory"):
        ladder.choose(ladder.RESERVE)


def test_sessions_stay_within_the_budget(program: Path) -> None:
    with Server(None, cache=False, memory=512 << 20) as server, server.connect() as duck:
        most = duck.info()["budget"]["sessions"]
        with pytest.raises(teal.QuotaExceeded, match="close some"):
            duck.open(program, ob=most)
        with duck.open(program, ob=most // 2) as session:
            assert session.ob.nbytes == most // 2
            with pytest.raises(teal.QuotaExceeded, match="sessions of this duck have"):
                duck.open(program, ob=most // 2)
            assert number(session.call(b"c")) == 1
        with duck.open(program, ob=most // 2):
            pass
        seen = duck.statistics()["sessions"]
        assert (seen["bytes"], seen["refused"], seen["opened"]) == (0, 2, 2)


# ---- the log ---------------------------------------------------------------------------------------------------------


def test_the_log_is_a_ring() -> None:
    journal = Journal(4000)
    at, text, end = journal.read(-100, 1000)
    assert (at, text, end) == (0, "", 0)
    for i in range(300):
        journal.write("test", f"line {i}")
    at, text, end = journal.read(0, 10_000)
    assert at > 0  # the oldest are gone
    assert text.endswith("line 299\n")
    assert len(text) <= 4000
    assert all(" test " in line for line in text.splitlines())
    assert journal.read(end, 1000) == (end, "", end)
    journal.write("test", "bad \x1b[1m\n" + "x" * 10_000)
    again = journal.read(end, 100_000)[1]
    assert "\\x1b" in again
    assert again.count("\n") <= 1


# ---- not known yet ---------------------------------------------------------------------------------------------------


def doubted(data: bytes, connection: int) -> tuple[blob.Blob, Proof]:
    made_one = made(data)
    made_one.proof = Proof(connection)
    return made_one, made_one.proof


def test_what_is_not_proven_is_its_senders_alone(tmp_path: Path) -> None:
    cache = Cache("data", 1 << 20, Shelf(tmp_path / "shelf"))
    sender, other = Owner("a", connection=7), Owner("b", connection=8)
    one, proof = doubted(b"d" * 5000, 7)
    cache.release(cache.add(one))
    assert cache.has(one.digest, sender)
    cache.release(cache.use(one.digest, sender))
    assert cache.numbers().disk_files == 0
    with ThreadPoolExecutor(1) as pool:
        waits = pool.submit(cache.use, one.digest, other)
        with pytest.raises(TimeoutError):
            waits.result(0.05)
        proof.settle(good=True)
        cache.proven(one.digest, proof)
        cache.release(waits.result(20))
    assert cache.numbers().disk_files == 1
    cache.close()


def test_what_is_proven_wrong_goes() -> None:
    cache = Cache("data", 1 << 20, Shelf(None, wanted=False))
    sender, other = Owner("a", connection=7), Owner("b", connection=8)
    one, proof = doubted(b"d" * 5000, 7)
    held = cache.add(one)
    proof.settle(good=False)
    with pytest.raises(teal.NotFound, match="not what it was called"):
        cache.use(one.digest, other)
    cache.proven(one.digest, proof)
    assert not cache.has(one.digest, sender)
    assert cache.numbers().bytes == 0
    cache.release(held)  # its sessions end when their owner does
    late, proof = doubted(b"e" * 5000, 7)
    proof.settle(good=True)
    cache.release(cache.add(late))  # known before it was put away
    cache.release(cache.use(late.digest, other))
    cache.close()


def test_arrivals_are_their_senders() -> None:
    arrivals = Arrivals()
    sender, other = Owner("a", connection=7), Owner("b", connection=8)
    one, _ = doubted(b"x" * 100, 7)
    arrivals.add(one)
    assert arrivals.take(other, one.digest) is None
    assert arrivals.take(sender, one.digest) is one
    two, _ = doubted(b"y" * 100, 7)
    arrivals.add(two)
    assert arrivals.settle(two.digest, 8, good=True) is None  # another connection's
    assert not arrivals.wait(0)
    assert arrivals.settle(two.digest, 7, good=True) is not None
    assert arrivals.take(other, two.digest) is two
    three, _ = doubted(b"z" * 100, 7)
    arrivals.add(three)
    arrivals.settle(three.digest, 7, good=False)
    assert arrivals.take(sender, three.digest) is None
    assert not arrivals.wait(0)  # the first one
    arrivals.settle(one.digest, 7, good=True)
    assert arrivals.wait(0)
    for left in (one, two):
        left.close()
    arrivals.close()
