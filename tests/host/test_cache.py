"""Snapshots on disk: a host that starts anew begins with them, and believes nothing that it finds there."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import teal
from teal.errors import InvalidArgument
from teal.host import cache as caches
from teal.host import snapshot_file
from teal.host.cache import Cache, Entry
from teal.host.private_folder import Unsafe, open_private
from teal.host.snapshot import Part, Snapshot
from teal.kernel import sealed

WIDTH = 600  # a weight of 1.4 MB: smaller files have no snapshot
MADE_FOR = {"model": "a" * 64, "kernel": "onnx", "processor": "this one"}


def part(name: str, data: bytes) -> Part:
    import hashlib

    fd = sealed.memory_file(name)
    sealed.write(fd, data)
    return Part(name, sealed.seal(fd), hashlib.sha256(data).hexdigest(), len(data))


def snapshot(size: int = 5000, letter: bytes = b"g") -> Snapshot:
    return Snapshot("key of the engine", (part("graph", letter * size), part("weights", b"")))


def contents(of: Snapshot) -> list[bytes]:
    return [os.pread(each.fd, each.nbytes + 1, 0) for each in of.parts]


def entry(**more: str) -> Entry:
    return Entry(MADE_FOR | more)


async def stored(cache: Cache, *entries: Entry, size: int = 5000, letter: bytes = b"g") -> None:
    for each in entries:
        made = snapshot(size, letter)
        cache.store(each, made)
        made.close()  # the cache has its own
        while cache._writing:
            await asyncio.sleep(0)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def files(folder: Path) -> list[Path]:
    return sorted((folder / "snapshots").iterdir())


# ---- one file --------------------------------------------------------------------------------------------------------


def test_kept_and_found(folder: Path) -> None:
    async def run() -> None:
        cache = Cache(folder)
        assert await cache.find(entry()) == (None, "")
        await stored(cache, entry())
        await cache.close(drain=True)
        again = Cache(folder)
        found, note = await again.find(entry())
        assert found is not None
        assert (found.key, note, contents(found)) == ("key of the engine", "", [b"g" * 5000, b""])
        assert all(caches.os.fstat(fd).st_size in (0, 5000) for fd in found.fds)
        found.close()
        assert await again.find(entry(processor="another")) == (None, "")
        assert (again.hits, again.misses, again.refused, again.files) == (1, 1, 0, 1)
        await again.close(drain=True)

    asyncio.run(run())
    (file,) = files(folder)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE((folder / "snapshots").stat().st_mode) == 0o700


def _change(at: int, data: bytes) -> Callable[[Path], None]:
    def change(file: Path) -> None:
        with file.open("r+b") as opened:
            opened.seek(at, os.SEEK_END if at < 0 else os.SEEK_SET)
            opened.write(data)

    return change


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "a flipped byte of a part": (_change(-1, b"x"), "its graph is damaged"),
    "a flipped byte of the head": (_change(60, b"\0"), "its head is damaged"),
    "another layout": (_change(8, b"\2"), "it has layout 2, expected 1"),
    "an endless head": (_change(12, b"\xff\xff\xff\xff"), "its head has 4294967295 bytes"),
    "cut off": (lambda file: os.truncate(file, file.stat().st_size - 1), "it was cut off"),
    "more behind": (lambda file: file.write_bytes(file.read_bytes() + b"x"), "it was cut off"),
    "empty": (lambda file: os.truncate(file, 0), "it is no snapshot"),
    "of nobody alone": (lambda file: file.chmod(0o644), "mode 0644"),
    "with another name": (lambda file: os.link(file, file.with_name("more")), "2 names"),
    "a pipe": (lambda file: (file.unlink(), os.mkfifo(file, 0o600)), "not a regular file"),
    "a link": (lambda file: (file.rename(file.with_name("f")), file.symlink_to("f")), "symbolic links"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_what_does_not_fit_is_removed_and_said(folder: Path, damage: str) -> None:
    change, why = DAMAGES[damage]

    async def run() -> None:
        cache = Cache(folder)
        await stored(cache, entry())
        (file,) = files(folder)
        change(file)
        found, note = await cache.find(entry())
        assert found is None
        assert note.startswith("its snapshot on disk was not used, and is removed: ")
        assert why in note
        assert not os.path.lexists(file)
        assert cache.refused == 1
        assert await cache.find(entry()) == (None, "")
        await cache.close(drain=True)

    asyncio.run(run())


def test_a_file_under_another_name_does_not_fit(folder: Path) -> None:
    """What it was made for is in the file as well: a name alone is no proof."""

    async def run() -> None:
        cache = Cache(folder)
        await stored(cache, entry(processor="the other one"))
        (file,) = files(folder)
        file.rename(file.with_name(entry().name))
        _, note = await cache.find(entry())
        assert "it was made for processor the other one, here is this one" in note
        assert files(folder) == []
        await cache.close(drain=True)

    asyncio.run(run())


def test_heads_that_lie(tmp_path: Path) -> None:
    import hashlib
    import json
    import struct

    def file_of(head: object) -> int:
        text = json.dumps(head).encode()
        path = tmp_path / "file"
        path.write_bytes(struct.pack("<8sII32s", b"TEALSNAP", 1, len(text), hashlib.sha256(text).digest()) + text)
        return os.open(path, os.O_RDONLY)

    one = {"name": "graph", "nbytes": 0, "digest": hashlib.sha256().hexdigest()}
    whole = {"made_for": MADE_FOR, "key": "k", "parts": [one]}
    for lie in (
        [],
        {**whole, "more": 1},
        {**whole, "parts": []},
        {**whole, "parts": [one] * 2},
        {**whole, "parts": [{**one, "name": "../graph"}]},
        {**whole, "parts": [{**one, "nbytes": -1}]},
        {**whole, "parts": [{**one, "nbytes": 1 << 45}]},
        {**whole, "parts": [{**one, "digest": "0" * 64}]},
        {**whole, "made_for": {**MADE_FOR, "more": "x"}},
    ):
        fd = file_of(lie)
        with pytest.raises(snapshot_file.Unfit):
            snapshot_file.read(fd, MADE_FOR)
        os.close(fd)
    fd = file_of(whole)
    snapshot_file.read(fd, MADE_FOR).close()
    os.close(fd)


# ---- the folder ------------------------------------------------------------------------------------------------------


def test_only_a_folder_of_our_own(tmp_path: Path) -> None:
    os.close(open_private(tmp_path / "a" / "b"))
    (tmp_path / "a" / "b").chmod(0o750)
    with pytest.raises(Unsafe, match="is open to others"):
        open_private(tmp_path / "a" / "b")
    (tmp_path / "a" / "b").chmod(0o700)
    (tmp_path / "a").chmod(0o777)
    with pytest.raises(Unsafe, match="can be changed by others: chmod go-w"):
        open_private(tmp_path / "a" / "b")
    (tmp_path / "a").chmod(0o1777)  # as /tmp
    os.close(open_private(tmp_path / "a" / "b"))
    if os.getuid() == 0:
        os.chown(tmp_path / "a", 1, 1)
        with pytest.raises(Unsafe, match="belongs to user 1"):
            open_private(tmp_path / "a" / "b")


def test_without_a_folder_there_is_a_note_and_no_failure(tmp_path: Path, mlp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "open").mkdir(mode=0o777)
    (tmp_path / "open").chmod(0o777)
    for folder, why in ((tmp_path / "file", "Not a directory"), (tmp_path / "open", "can be changed by others")):
        with teal.Host(cache=folder, threads=1) as host:
            model = host.load("mlp", mlp_path)
            assert model(np.ones((1, 64), np.float32))[0].shape == (1, 8)
            found = host.statistics().cache
            assert why in found.note
            assert found.folder is None
    with teal.Host(cache=False) as host:
        assert host.statistics().cache.note == "off (cache=False)"
    with pytest.raises(InvalidArgument, match="the path of a folder"):
        teal.Host(cache=3)  # type: ignore[arg-type]


def test_no_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", "")
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    assert caches.default_folder() is None
    with teal.Host() as host:
        assert "this user has no home" in host.statistics().cache.note


def test_those_used_least_recently_make_room(folder: Path) -> None:
    async def run() -> None:
        entries = [entry(processor=str(i)) for i in range(4)]
        cache = Cache(folder, 3 * 6000)
        await stored(cache, *entries[:3])
        for i, each in enumerate(entries[:3]):
            os.utime(folder / "snapshots" / each.name, (1000 + i, 1000 + i))
        found, _ = await cache.find(entries[0])  # used: it stays
        assert found is not None
        found.close()
        await stored(cache, entries[3])
        assert cache.evicted == 1
        kept = {file.name for file in files(folder)}
        assert kept == {entries[i].name for i in (0, 2, 3)}
        assert cache.files == 3
        assert cache.bytes == sum(file.stat().st_size for file in files(folder))
        await stored(cache, entry(processor="large"), size=20_000)
        assert "and the cache may have 18000" in cache.note
        assert {file.name for file in files(folder)} == kept
        await cache.close(drain=True)

    asyncio.run(run())


def test_a_full_file_system_is_a_note(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full = os.statvfs("/")
    monkeypatch.setattr(os, "fstatvfs", lambda fd: type(full)([*full[:4], 0, *full[5:10]]))

    async def run() -> None:
        cache = Cache(folder)
        await stored(cache, entry())
        assert "are free on its file system" in cache.note
        assert files(folder) == []
        await cache.close(drain=True)

    asyncio.run(run())


# ---- several hosts, and sudden ends ----------------------------------------------------------------------------------

WRITER = """
import asyncio, os, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
import test_cache
from teal.host import cache as caches

def stopped(fd, head, snapshot, go_on):
    os.write(fd, head)
    print("writing", flush=True)
    sys.stdin.read()

caches.write = stopped
async def run():
    await test_cache.stored(caches.Cache(Path(sys.argv[1])), test_cache.entry())
asyncio.run(run())
"""


def test_killed_in_the_middle_of_a_write(folder: Path) -> None:
    here = str(Path(__file__).parent)
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(folder), here], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert writer.stdin is not None
    assert writer.stdout is not None
    assert writer.stdout.readline() == "writing\n"

    async def run() -> None:
        (partial,) = files(folder)
        assert partial.name.endswith(".partial")
        living = Cache(folder)
        assert await living.find(entry()) == (None, "")
        assert files(folder) == [partial]  # its writer lives
        await living.close(drain=True)
        writer.send_signal(signal.SIGKILL)
        writer.wait()
        cache = Cache(folder)
        assert await cache.find(entry()) == (None, "")
        assert files(folder) == []
        await stored(cache, entry())
        assert [file.name for file in files(folder)] == [entry().name]
        await cache.close(drain=True)

    asyncio.run(run())
    writer.stdin.close()
    writer.stdout.close()


@pytest.mark.parametrize("other", ["replaces", "removes"])
def test_another_host_is_quicker(folder: Path, monkeypatch: pytest.MonkeyPatch, other: str) -> None:
    """What was opened is read to its end, whatever becomes of its name; nothing is refused or removed."""
    check = caches.check_file

    def meanwhile(fd: int) -> os.stat_result:
        (file,) = files(folder)
        if other == "replaces":
            file.with_name("newer").write_bytes(b"newer")
            file.with_name("newer").rename(file)
        else:
            file.unlink()
        return check(fd)

    async def run() -> None:
        cache = Cache(folder)
        await stored(cache, entry(), size=100_000, letter=b"a")
        monkeypatch.setattr(caches, "check_file", meanwhile)
        found, note = await cache.find(entry())
        assert found is not None
        assert (note, cache.refused, contents(found)[0]) == ("", 0, b"a" * 100_000)
        found.close()
        assert [file.read_bytes() for file in files(folder)] == [b"newer"] * (other == "replaces")
        await cache.close(drain=True)

    asyncio.run(run())


def test_two_hosts_write_and_read_the_same(folder: Path) -> None:
    """Whatever is found is whole, and one of those that were written."""
    failures: list[BaseException] = []

    async def turns(letter: bytes) -> None:
        cache = Cache(folder, 300_000)
        for _ in range(20):
            await stored(cache, entry(), entry(processor=letter.decode()), size=100_000, letter=letter)
            found, note = await cache.find(entry())
            assert note == ""
            if found is not None:  # another's eviction may have come between
                whole = contents(found)[0]
                found.close()
                assert whole in (b"a" * 100_000, b"b" * 100_000)
        assert cache.refused == 0
        await cache.close(drain=True)

    def host(letter: bytes) -> None:
        try:
            asyncio.run(turns(letter))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=host, args=(letter,)) for letter in (b"a", b"b")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert all(file.suffix == ".snapshot" for file in files(folder))


def test_an_interpreter_that_ends_with_a_host_in_it(folder: Path) -> None:
    """Its thread pools have ended before: nothing is kept, nothing is found, and nobody hears of an error."""

    async def run() -> None:
        cache = Cache(folder)
        cache._threads.shutdown()  # as a pool's threads do then
        made = snapshot(1000)
        cache.store(entry(), made)
        (writing,) = cache._writing
        await writing
        made.close()
        assert await cache.find(entry()) == (None, "")
        await cache.refuse(entry(), "no reason")
        await cache.close(drain=True)

    asyncio.run(run())
    assert not (folder / "snapshots").exists()


def test_stopping_while_it_writes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A host that stops at once leaves no half-written file."""
    monkeypatch.setattr(snapshot_file, "_CHUNK", 1)

    async def run() -> None:
        cache = Cache(folder)
        made = snapshot(1_000_000)
        cache.store(entry(), made)
        made.close()
        while not (folder / "snapshots").exists() or not files(folder):
            await asyncio.sleep(0)
        await cache.close(drain=False)
        assert files(folder) == []

    asyncio.run(run())


# ---- hosts -----------------------------------------------------------------------------------------------------------


X = np.random.default_rng(1).standard_normal((3, WIDTH)).astype(np.float32)


def once(
    folder: Path, wide: Path, engine: str, workers: int = 1
) -> tuple[np.ndarray, teal.ModelInfo, str, teal.host.records.CacheStatistics]:
    """A host's whole life: its answer, what it loaded, the note, the cache."""
    with teal.Host(cache=folder, threads=1, workers=workers) as host:
        model = host.load("wide", wide, kernel=engine)
        answer = model(X)[0].numpy().copy()
        while not (cache := host.statistics().cache).hits and not cache.stored:
            pass  # it is written after the load
        return answer, host.model("wide").info, model.statistics().note, cache


def test_a_host_that_starts_anew_begins_with_it(folder: Path, wide: Path, engine: str) -> None:
    wanted, first, _, cache = once(folder, wide, engine)
    assert (cache.hits, cache.misses) == (0, 1)
    assert len(files(folder)) == 1
    answer, info, note, cache = once(folder, wide, engine, workers=2)
    assert np.array_equal(answer, wanted)
    assert (cache.hits, cache.misses, cache.stored, cache.refused) == (1, 0, 0, 0)
    assert (info.snapshot, info.weights, note) == (first.snapshot, first.weights, "")
    with teal.Host(cache=folder, threads=2) as host:  # another number of threads is another snapshot
        host.load("wide", wide, kernel=engine)
        assert host.statistics().cache.hits == 0


def test_an_ordinary_load_where_it_does_not_fit(folder: Path, wide: Path, engine: str) -> None:
    wanted, *_ = once(folder, wide, engine)
    (file,) = files(folder)
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    answer, info, note, cache = once(folder, wide, engine)
    assert np.array_equal(answer, wanted)
    assert "was not used, and is removed: its " in note
    assert info.snapshot > 0
    assert (cache.hits, cache.misses, cache.refused) == (0, 1, 1)
    assert once(folder, wide, engine)[3].hits == 1  # it was made anew


def test_one_that_the_engine_does_not_take(
    folder: Path, wide: Path, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whole by its hashes, and nonsense to the engine: the worker makes another, which replaces it."""
    wanted, *_ = once(folder, wide, engine)
    (file,) = files(folder)
    before = file.read_bytes()

    async def spoil() -> None:
        cache = Cache(folder)
        fd = os.open(file, os.O_RDONLY)
        (made_for,) = [snapshot_file._head(fd, file.stat().st_size)[0].made_for]
        found = snapshot_file.read(fd, made_for)
        os.close(fd)
        first, *rest = found.parts
        nonsense = dataclasses.replace(found, parts=(part(first.name, b"nonsense" * 1000), *rest))
        cache.store(Entry(made_for), nonsense)
        while cache._writing:
            await asyncio.sleep(0)
        await cache.close(drain=True)

    asyncio.run(spoil())
    assert file.read_bytes() != before
    answer, info, note, cache = once(folder, wide, engine, workers=2)
    assert np.array_equal(answer, wanted)
    assert "its snapshot did not load" in note
    assert info.snapshot > 0
    assert (cache.hits, cache.misses, cache.refused, cache.stored) == (0, 1, 1, 1)
    assert once(folder, wide, engine)[3].hits == 1


def test_one_that_kills_the_worker(folder: Path, wide: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever an engine does with what is on disk: the load comes through, and the file is gone."""
    pytest.importorskip("onnxruntime")
    wanted, *_ = once(folder, wide, "onnx")
    monkeypatch.syspath_prepend(str(Path(__file__).parent / "deadly"))
    answer, _, note, cache = once(folder, wide, "onnx")
    assert np.array_equal(answer, wanted)
    assert "was not used, and is removed: a worker died of it" in note
    assert cache.refused == 1


def test_weights_beside_the_file_are_not_kept(folder: Path, tmp_path: Path, wide: Path) -> None:
    """The file's bytes do not say what such a model computes."""
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    model = onnx.load(wide)
    many = np.random.default_rng(3).standard_normal((WIDTH, WIDTH)).astype(np.float32)  # so that the file is large too
    model.graph.initializer.append(onnx.numpy_helper.from_array(many, "v"))
    model.graph.node[0].input[1] = "v"
    model.graph.node.append(onnx.helper.make_node("MatMul", ["y", "w"], ["z"]))
    model.graph.output[0].name = "z"
    onnx.external_data_helper.set_external_data(model.graph.initializer[0], "w.bin")
    path = tmp_path / "beside" / "beside.onnx"
    path.parent.mkdir()
    onnx.save(model, path)

    def answer() -> np.ndarray:
        with teal.Host(cache=folder, threads=1) as host:
            found = host.load("beside", path, kernel="onnx")(X)[0].numpy().copy()
            assert host.statistics().cache.stored == 0
            again = host.load("again", path, kernel="onnx")(X)[0].numpy().copy()
            assert np.array_equal(again, found)
            return found

    before = answer()
    data = np.fromfile(path.parent / "w.bin", np.float32)
    (data * 2).tofile(path.parent / "w.bin")
    assert np.allclose(answer(), before * 2, rtol=1e-4, atol=1e-3)


def test_a_program_that_ends_with_its_host_open(folder: Path, mlp_path: Path) -> None:
    """At the end of the interpreter no thread can be started any more."""
    pytest.importorskip("onnxruntime")
    script = (
        "import sys, numpy, teal\n"
        "host = teal.Host(cache=sys.argv[1], threads=1)\n"
        "print(host.load('mlp', sys.argv[2])(numpy.ones((1, 64), 'float32'))[0].shape)\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", script, str(folder), str(mlp_path)], capture_output=True, text=True, check=False
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "(1, 8)\n", "")
