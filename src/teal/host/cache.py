"""Snapshots on disk: what an engine optimised once is there when the host starts the next time.

Theory of operation: a snapshot (snapshot.py) is a file (snapshot_file.py) in a folder that is this user's alone
(private_folder.py). Its name says what it was made for: the model's SHA-256, the kernel and its options, the versions
of engine and Teal, the processor. Files appear under their name only when they are complete: they are written under
another name that its writer locks, and renamed; whoever opens the folder takes away what nobody holds a lock of, so
a host that is killed leaves nothing behind for long. What is read is hashed on its way into sealed memory. A file that
does not fit is removed, the load is an ordinary one, and its note says so. Those used least recently go when there are
too many bytes; any number of hosts may share a folder. Nothing here fails a load: without a folder there is no cache,
and statistics().cache.note says why.

Methods run on the daemon's loop; those that start with ``_in_thread`` elsewhere.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import logging
import os
import secrets
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from teal._version import __version__
from teal.host import engines, wire
from teal.host.defaults import CACHE_BYTES
from teal.host.private_folder import Unsafe, check_file, open_private, sweep
from teal.host.snapshot import Snapshot
from teal.host.snapshot_file import NoRoomError, Unfit, head_of, read, write
from teal.kernel.sealed import processor

log = logging.getLogger("teal.host")

_SUFFIX, _PARTIAL = ".snapshot", ".partial"
_FREE = 0.05  # of the file system stays free
_THREADS = 2
_LAST_WRITES = 5.0  # seconds that a host which stops gives to what is being written

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Entry:
    """What a snapshot is made for."""

    made_for: dict[str, str]

    @property
    def name(self) -> str:
        text = msgspec.json.encode(sorted(self.made_for.items()))
        return f"{self.made_for['model'][:16]}-{hashlib.sha256(text).hexdigest()[:32]}{_SUFFIX}"


def entry_of(order: wire.LoadKernel, digest: str, cores: int) -> Entry | None:
    """Of a load by an engine; ``cores``: that a worker may use. None: there is nothing to keep, or no such engine."""
    if order.kernel not in engines.ENGINES or not digest:
        return None
    package = engines.PACKAGES[order.kernel]
    try:
        engine = f"{package} {metadata.version(package)}"
    except metadata.PackageNotFoundError:
        return None
    return Entry(
        {
            "model": digest,
            "kernel": order.kernel,
            "engine": engine,
            "processor": processor(),
            "threads": str(order.threads or cores),
            "precision": order.precision or "fp32",
            "device": order.device or "CPU",
            "options": msgspec.json.encode(sorted(order.options.items())).decode(),
            "weights": f"{order.weights_bytes} {order.sealed}",
            "teal": __version__,
        }
    )


def default_folder() -> Path | None:
    """`$XDG_CACHE_HOME/teal`, or `~/.cache/teal`; None: there is no home."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache"))
    return base / "teal" if base.is_absolute() else None


class Cache:
    """``folder``: its own one is `snapshots` in there; None: no cache, and ``note`` says why."""

    def __init__(self, folder: Path | None, most_bytes: int = CACHE_BYTES, note: str = "") -> None:
        self._path = None if folder is None else folder / "snapshots"
        self.headers = None if folder is None else folder / "headers"  # torch_headers.py
        self._most_bytes = most_bytes
        self.note = note
        self._folder: int | None = None
        self._opening = threading.Lock()  # guards the above: the first one who needs it opens it
        self._making_room = threading.Lock()
        self._threads = ThreadPoolExecutor(_THREADS, "teal-cache")
        self._running: set[asyncio.Future[Any]] = set()  # in threads
        self._writing: set[asyncio.Task[None]] = set()
        self._closed = False
        self.files = self.bytes = 0  # when last looked
        self.hits = self.misses = self.stored = self.refused = self.evicted = 0

    # ---- loads ---------------------------------------------------------------------------------------------------

    async def find(self, entry: Entry | None) -> tuple[Snapshot | None, str]:
        """The snapshot that was kept, in sealed memory, and what there is to say of one that is not used."""
        if entry is None or self._path is None or self._closed:
            return None, ""
        looking = self._start(self._in_thread_find, entry)
        if looking is None:
            return None, ""
        try:
            found, note = await asyncio.shield(looking)
        except asyncio.CancelledError:
            looking.add_done_callback(lambda done: _close(done.result()[0]))
            raise
        self.hits += found is not None
        self.misses += found is None
        return found, note

    def store(self, entry: Entry | None, snapshot: Snapshot) -> None:
        """Writes it, later; the snapshot stays the caller's."""
        if entry is None or self._path is None or self._closed:
            return
        task = asyncio.get_running_loop().create_task(self._store(entry, snapshot.copy()))
        self._writing.add(task)
        task.add_done_callback(self._writing.discard)

    async def _store(self, entry: Entry, snapshot: Snapshot) -> None:
        # It may have been closed before this task had its first turn.
        storing = None if self._closed else self._start(self._in_thread_store, entry, snapshot)
        if storing is None:
            snapshot.close()
        else:
            await asyncio.shield(storing)

    async def refuse(self, entry: Entry | None, why: str) -> None:
        """The engine did not take what was found: it is removed."""
        if entry is not None and self._path is not None:
            self.hits -= 1
            self.misses += 1
            removing = self._start(self._in_thread_remove, entry.name, None, why)
            if removing is not None:
                await asyncio.shield(removing)

    async def close(self, *, drain: bool) -> None:
        """Waits for what is being written, for a while."""
        if self._writing and drain:
            await asyncio.wait(self._writing, timeout=_LAST_WRITES)
        self._closed = True
        if self._running:
            await asyncio.wait(self._running)
        self._threads.shutdown(wait=False)  # they have nothing left
        if self._folder is not None:
            os.close(self._folder)
            self._folder = None

    def _start(self, call: Callable[..., T], *given: Any) -> asyncio.Future[T] | None:
        """None: the interpreter ends, and has ended its threads before its hosts."""
        try:
            future = asyncio.wrap_future(self._threads.submit(call, *given))
        except RuntimeError:
            return None
        self._running.add(future)
        future.add_done_callback(self._running.discard)
        return future

    def forget(self) -> None:
        """In a forked child."""
        if self._folder is not None:
            with contextlib.suppress(OSError):
                os.close(self._folder)

    def numbers(self) -> dict[str, Any]:
        """records.CacheStatistics."""
        return {
            "folder": None if self._path is None else str(self._path),
            "most_bytes": self._most_bytes,
            "files": self.files,
            "bytes": self.bytes,
            "hits": self.hits,
            "misses": self.misses,
            "stored": self.stored,
            "refused": self.refused,
            "evicted": self.evicted,
            "note": self.note,
        }

    # ---- in threads ----------------------------------------------------------------------------------------------

    def _in_thread_open(self) -> int | None:
        """The folder, or None: there is no cache, and the note says why."""
        with self._opening:
            if self._folder is None and self._path is not None:
                try:
                    self._folder = open_private(self._path)
                except (Unsafe, OSError) as error:
                    why = error if isinstance(error, Unsafe) else f"{self._path}: {error.strerror}"
                    self.note = f"snapshots are not kept on disk: {why}"
                    log.warning("%s", self.note)
                    self._path = None
                    return None
                sweep(self._folder, _PARTIAL)
                self._look(self._folder)
            return self._folder

    def _in_thread_find(self, entry: Entry) -> tuple[Snapshot | None, str]:
        if (folder := self._in_thread_open()) is None:
            return None, ""
        name = entry.name
        try:
            fd = os.open(name, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW, dir_fd=folder)
        except FileNotFoundError:
            return None, ""
        except OSError as error:
            return None, self._in_thread_remove(name, None, str(error.strerror))
        try:
            status = check_file(fd)
            found = read(fd, entry.made_for)
            with contextlib.suppress(OSError):
                os.utime(fd)  # used now
            log.info("snapshot %s: %d bytes", name, status.st_size)
            return found, ""
        except NoRoomError as error:
            return None, f"its snapshot on disk was not used: {error}"
        except (Unsafe, Unfit) as error:
            return None, self._in_thread_remove(name, os.fstat(fd), str(error))
        except OSError as error:
            return None, self._in_thread_remove(name, os.fstat(fd), f"it cannot be read ({error.strerror})")
        finally:
            os.close(fd)

    def _in_thread_remove(self, name: str, seen: os.stat_result | None, why: str) -> str:
        """What does not fit; ``seen``: not what another host may have put there since. Returns a note."""
        self.refused += 1
        log.warning("snapshot %s is removed: %s", name, why)
        with contextlib.suppress(OSError):
            assert self._folder is not None
            now = os.stat(name, dir_fd=self._folder, follow_symlinks=False)
            if seen is None or (now.st_dev, now.st_ino) == (seen.st_dev, seen.st_ino):
                os.unlink(name, dir_fd=self._folder)
        return f"its snapshot on disk was not used, and is removed: {why}"

    def _in_thread_store(self, entry: Entry, snapshot: Snapshot) -> None:
        try:
            if (folder := self._in_thread_open()) is not None:
                self._write(folder, entry, snapshot)
        except (Unfit, OSError) as error:
            why = error if isinstance(error, Unfit) else error.strerror
            log.warning("snapshot %s is not kept on disk: %s", entry.name, why)
            self.note = f"a snapshot was not kept on disk: {why}"
        finally:
            snapshot.close()

    def _write(self, folder: int, entry: Entry, snapshot: Snapshot) -> None:
        head = head_of(snapshot, entry.made_for)
        self._make_room(folder, entry.name, len(head) + snapshot.nbytes)
        partial = f"{entry.name[:48]}.{secrets.token_hex(8)}{_PARTIAL}"
        fd = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=folder)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)  # it has an owner who lives
            os.fchmod(fd, 0o600)
            write(fd, head, snapshot, lambda: not self._closed)
            os.rename(partial, entry.name, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(partial, dir_fd=folder)
            raise
        finally:
            os.close(fd)
        self.stored += 1
        self._look(folder)

    def _make_room(self, folder: int, name: str, need: int) -> None:
        """Raises Unfit: it cannot be."""
        if need > self._most_bytes:
            raise Unfit(f"{need} bytes, and the cache may have {self._most_bytes} (cache_bytes=)")
        with self._making_room:
            held = sorted(_kept(folder), key=lambda file: file[1].st_mtime_ns, reverse=True)
            room = self._most_bytes - need - sum(status.st_size for other, status in held if other != name)
            while room < 0 and held:
                other, status = held.pop()
                if other == name:
                    continue  # about to be replaced
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(other, dir_fd=folder)
                room += status.st_size
                self.evicted += 1
        disk = os.fstatvfs(folder)
        if (disk.f_bavail - _FREE * disk.f_blocks) * disk.f_frsize < need:
            raise Unfit(f"{need} bytes, and {disk.f_bavail * disk.f_frsize} are free on its file system")

    def _look(self, folder: int) -> None:
        sizes = [status.st_size for _, status in _kept(folder)]
        self.files, self.bytes = len(sizes), sum(sizes)


def _close(snapshot: Snapshot | None) -> None:
    if snapshot is not None:
        snapshot.close()


def _kept(folder: int) -> list[tuple[str, os.stat_result]]:
    """Name and state of every snapshot."""
    found = []
    for name in os.listdir(folder):
        if name.endswith(_SUFFIX):
            with contextlib.suppress(FileNotFoundError):  # another host took it away
                found.append((name, os.stat(name, dir_fd=folder, follow_symlinks=False)))
    return found
