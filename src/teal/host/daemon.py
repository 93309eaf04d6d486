"""The host: owns sessions, workers, versions and limits; enforces decisions. Never on the path of a call.

Theory of operation: one asyncio loop. A client's connection is a SOCK_SEQPACKET socket; each message is one Envelope
and gets one Reply, in
any order. What a client sent is decoded strictly; a message that is not understood ends that connection. When a
connection ends, for
whatever reason, its sessions are closed: waiting requests are cancelled, memory is freed once every worker has let go.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import os
import socket
import time
from collections.abc import Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from teal import _core
from teal._version import __version__
from teal.errors import InvalidArgument, NotFound, QuotaExceeded, TealError, VersionMismatch
from teal.host import address as addresses
from teal.host import repository as files
from teal.host import wire
from teal.host.limits import Limits
from teal.host.pool import Pool, Session, Version
from teal.kernel.builtin import BUILTINS

log = logging.getLogger("teal.host")


@dataclass(slots=True, eq=False)
class Client:
    """One connection."""

    sock: socket.socket
    pid: int
    uid: int
    greeted: bool = False
    sessions: dict[str, Session] = field(default_factory=dict)  # by pool


@dataclass(slots=True, eq=False)
class Name:
    """A model name: its versions by number, in the pool it was first loaded into."""

    index: int
    pool: str
    versions: dict[int, Version] = field(default_factory=dict)
    current: int | None = None
    last: int = 0
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class Daemon:
    """``await start()``, then it serves until ``stop()``. All methods run on the loop."""

    def __init__(
        self,
        address: str,
        *,
        workers: int,
        idle_ns: int,
        threads: int | None,
        cores: Sequence[int],
        limits: Limits,
        repository: Path | None,
        allowed_uids: Iterable[int] = (),
    ) -> None:
        self.address = address
        self.limits = limits
        self.threads = threads
        self.idle_ns = idle_ns
        self.repository = repository
        self.allowed = {os.getuid(), *allowed_uids}
        self.started = time.monotonic()
        self.stopped = asyncio.Event()
        self.pools = {"default": Pool("default", workers, idle_ns, cores, limits)}
        self.names: dict[str, Name] = {}
        self.clients: set[Client] = set()
        self._listener: socket.socket | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._stopping = False

    async def start(self) -> None:
        """Listens first (so that a second host of the same name fails early), then starts the workers."""
        self._loop = asyncio.get_running_loop()
        self._listener = addresses.listen(self.address)
        try:
            await asyncio.gather(*(pool.start() for pool in self.pools.values()))
        except BaseException:
            self._listener.close()
            raise
        self._loop.add_reader(self._listener.fileno(), self._accept)

    def _task(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        task = self._loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # ---- connections ---------------------------------------------------------------------------------------------

    def _accept(self) -> None:
        assert self._listener is not None
        while True:
            try:
                sock, _ = self._listener.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError as error:
                log.error("accept: %s", error)
                return
            pid, uid = addresses.peer(sock)
            sock.setblocking(False)
            client = Client(sock, pid, uid)
            if uid not in self.allowed:
                self._refuse(
                    client,
                    "NotFound",
                    f"user {uid} may not use this host; its owner can allow it: teal serve --allow-user {uid}",
                )
            elif len(self.clients) >= self.limits.clients:
                self._refuse(
                    client,
                    "QuotaExceeded",
                    f"{len(self.clients)} clients are connected, the most this host takes (Limits.clients)",
                )
            else:
                self.clients.add(client)
                self._loop.add_reader(sock.fileno(), self._readable, client)

    def _refuse(self, client: Client, kind: str, message: str) -> None:
        with contextlib.suppress(OSError):
            wire.send(client.sock, wire.Reply(0, error=wire.Failure(kind, message)))
        client.sock.close()

    def _readable(self, client: Client) -> None:
        for _ in range(64):  # a talkative client does not keep the others waiting
            try:
                datagram = wire.receive(client.sock)
            except BlockingIOError:
                return
            except (OSError, TealError):
                datagram = None
            if datagram is None:
                self._hang_up(client)
                return
            try:
                envelope = wire.decode_envelope(datagram.data)
            except Exception as error:  # msgspec names the part: - at `$.body.nbytes`
                datagram.close()
                log.warning("client process %d sent a message that is not understood: %s", client.pid, error)
                self._reply(
                    client, wire.Reply(0, error=wire.Failure("InvalidArgument", f"message not understood: {error}"))
                )
                self._hang_up(client)
                return
            self._task(self._answer(client, envelope, datagram))

    async def _answer(self, client: Client, envelope: wire.Envelope, datagram: wire.Datagram) -> None:
        fds: tuple[int, ...] = ()
        try:
            if not client.greeted and not isinstance(envelope.body, wire.Hello):
                raise InvalidArgument("the first message must be hello")
            body, fds = await self._obey(client, envelope.body, datagram)
            reply = wire.Reply(envelope.id, body)
        except TealError as error:
            reply = wire.Reply(envelope.id, error=wire.failure_of(error))
        except Exception as error:
            log.exception("while answering %s of process %d", type(envelope.body).__name__, client.pid)
            reply = wire.Reply(envelope.id, error=wire.failure_of(error))
        finally:
            datagram.close()
        self._reply(client, reply, fds)

    def _reply(self, client: Client, reply: wire.Reply, fds: tuple[int, ...] = ()) -> None:
        try:
            wire.send_reply(client.sock, reply, fds)
        except BlockingIOError:
            # It sends requests and does not read the answers.
            self._hang_up(client)
        except OSError:
            pass

    def _hang_up(self, client: Client) -> None:
        if client not in self.clients:
            return
        self.clients.discard(client)
        self._loop.remove_reader(client.sock.fileno())
        client.sock.close()
        for name, session in client.sessions.items():
            self._task(self.pools[name].close_session(session, gone=True))

    # ---- what clients ask ----------------------------------------------------------------------------------------

    async def _obey(
        self, client: Client, body: wire.ClientMessage, datagram: wire.Datagram
    ) -> tuple[Any, tuple[int, ...]]:
        match body:
            case wire.Hello():
                return self._greet(client, body), ()
            case wire.OpenSession(pool_name):
                return self._open_session(client, pool_name)
            case wire.MakeRegion(index, nbytes, pages):
                pool, session = self._session(client, index)
                if not 0 < nbytes <= 1 << 46:
                    raise InvalidArgument(f"{nbytes}, expected 1 to 2^46", path="$.nbytes")
                region, fd, size = pool.make_region(session, nbytes, pages)
                return {"region": region, "nbytes": size}, (fd,)
            case wire.FreeRegion(index, region):
                pool, session = self._session(client, index)
                await pool.free_region(session, region)
                return None, ()
            case wire.Load():
                return await self._load(body, datagram), ()
            case wire.Unload():
                await self._unload(body)
                return None, ()
            case wire.Lookup(name, number):
                return self._describe(name, self._version(name, number)), ()
            case wire.ListModels():
                return [self._describe(name, v) for name, n in self.names.items() for v in n.versions.values()], ()
            case wire.Statistics():
                return self.statistics(), ()
            case wire.TakeSpill(index, number):
                _, session = self._session(client, index)
                spill = session.spills.pop(number, None)
                if spill is None:
                    raise NotFound(f"spilled output {number}: none, or taken already")
                self._loop.call_soon(os.close, spill.fd)
                return spill.layout, (spill.fd,)
            case wire.Stop(drain, timeout):
                self._task(self.stop(drain=drain, timeout=timeout))
                return None, ()
        raise InvalidArgument(f"message {type(body).__name__} is not for a host")

    def _greet(self, client: Client, hello: wire.Hello) -> Any:
        if hello.protocol != wire.PROTOCOL or hello.abi != _core.ABI_VERSION:
            raise VersionMismatch(
                f"this host is Teal {__version__} (protocol {wire.PROTOCOL}, ABI {_core.ABI_VERSION}), "
                f"the client is Teal {hello.version[:40]} "
                f"(protocol {hello.protocol}, ABI {hello.abi}); run the same Teal on both sides"
            )
        client.greeted = True
        return {"version": __version__, "pid": os.getpid(), "address": self.address}

    def _pool(self, name: str) -> Pool:
        if name not in self.pools:
            raise NotFound(f"pool {name!r}; this host has {sorted(self.pools)}")
        return self.pools[name]

    def _open_session(self, client: Client, pool_name: str) -> tuple[Any, tuple[int, ...]]:
        pool = self._pool(pool_name)
        if pool_name in client.sessions:
            raise InvalidArgument(f"this connection has a session with pool {pool_name!r} already")
        session = pool.open_session()
        client.sessions[pool_name] = session
        body = {
            "index": session.index,
            "epoch": session.epoch,
            "slots": session.slots,
            "idle_ns": self.idle_ns,
            "bytes": self.limits.bytes,
        }
        return body, (session.fd,)

    def _session(self, client: Client, index: int) -> tuple[Pool, Session]:
        for name, session in client.sessions.items():
            if session.index == index:
                return self.pools[name], session
        raise NotFound(f"session {index}: not one of this connection")

    def _version(self, name: str, number: int | None) -> Version:
        files.check_name(name)
        known = self.names.get(name)
        if known is None or not known.versions:
            raise NotFound(
                f"model {name!r} is not loaded; loaded are {sorted(n for n, k in self.names.items() if k.versions)}"
            )
        chosen = known.current if number is None else number
        if chosen is None or chosen not in known.versions:
            raise NotFound(f"model {name!r} has no version {chosen}; loaded are {sorted(known.versions)}")
        return known.versions[chosen]

    def _describe(self, name: str, version: Version) -> dict[str, Any]:
        known = self.names[name]
        return {
            "name": name,
            "version": version.number,
            "index": known.index,
            "line": version.line,
            "pool": known.pool,
            "kernel": version.order.kernel,
            "source": version.order.source,
            "current": known.current == version.number,
            "pinned": version.pinned,
            "pure": version.pure,
            "idempotent": version.idempotent,
            "bytes": version.nbytes,
            "digest": version.digest,
            "seconds": version.seconds,
            "inputs": version.inputs,
            "outputs": version.outputs,
        }

    # ---- models --------------------------------------------------------------------------------------------------

    async def _load(self, load: wire.Load, datagram: wire.Datagram) -> dict[str, Any]:
        files.check_name(load.name)
        pool = self._pool(load.pool)
        if load.version is not None and not 1 <= load.version < 1 << 31:
            raise InvalidArgument(f"{load.version}, expected 1 to 2^31 - 1", path="$.version")
        if load.threads is not None and not 1 <= load.threads <= 1024:
            raise InvalidArgument(f"{load.threads}, expected 1 to 1024", path="$.threads")
        source, kind, file_fd, version = self._source(load, datagram)
        if sum(len(n.versions) for n in self.names.values()) >= self.limits.models:
            if file_fd is not None:
                os.close(file_fd)
            raise QuotaExceeded(
                f"{self.limits.models} model versions are loaded, the most this host takes (Limits.models)"
            )
        name = self.names.setdefault(load.name, Name(len(self.names), load.pool))
        if name.pool != load.pool:
            raise InvalidArgument(f"{load.name!r} is in pool {name.pool!r}; a name stays in its pool", path="$.pool")
        async with name.lock:
            return await self._load_version(pool, name, load, source, kind, file_fd, version)

    def _source(self, load: wire.Load, datagram: wire.Datagram) -> tuple[str, str, int | None, int | None]:
        """(source, kind, descriptor of the model file, version number it asks for)"""
        version = load.version
        source = load.source
        if source is None:
            if self.repository is None:
                raise InvalidArgument(
                    "no source given, and this host has no model repository (teal serve --repository DIR)",
                    path="$.source",
                )
            path, found = files.find(self.repository, load.name, load.version)
            return (
                str(path),
                "onnx",
                files.open_file(path, self.limits.model_bytes),
                version if version is not None else found,
            )
        kind = load.kernel or files.kernel_kind(source)
        if kind == "builtin":
            source = source.removeprefix("builtin:")
            if source not in BUILTINS:
                raise NotFound(f"builtin kernel {source[:80]!r}; there are {sorted(BUILTINS)}")
            return source, kind, None, version
        if kind == "function":
            return source, kind, None, version
        if kind != "onnx":
            raise InvalidArgument(f"kernel kind {kind[:80]!r}, expected onnx, function or builtin", path="$.kernel")
        if self.repository is not None:
            path = files.inside(self.repository, source)
            return str(path), kind, files.open_file(path, self.limits.model_bytes), version
        if not load.has_file:
            raise InvalidArgument("the model file's descriptor must come with the message", path="$.has_file")
        return source, kind, datagram.take_fd(), version

    async def _sealed(self, fd: int, name: str) -> tuple[int, str, int]:
        """(sealed descriptor, SHA-256, bytes) of the file, read once."""
        if os.fstat(fd).st_size > self.limits.model_bytes:
            raise InvalidArgument(
                f"model file of {os.fstat(fd).st_size} bytes, expected at most {self.limits.model_bytes} "
                "(Limits.model_bytes)"
            )

        def seal() -> tuple[int, str, int]:
            with open(fd, "rb", closefd=False) as file:
                contents = file.read(self.limits.model_bytes + 1)
            return _core.sealed_file(f"teal:{name}", contents), hashlib.sha256(contents).hexdigest(), len(contents)

        return await self._loop.run_in_executor(None, seal)

    async def _load_version(
        self, pool: Pool, name: Name, load: wire.Load, source: str, kind: str, fd: int | None, wanted: int | None
    ) -> dict[str, Any]:
        number = name.last + 1 if wanted is None else wanted
        sealed, digest, nbytes = None, "", 0
        try:
            if number in name.versions:
                raise InvalidArgument(
                    f"version {number} of {load.name!r} is loaded; unload it first, or load without a version",
                    path="$.version",
                )
            if fd is not None:
                sealed, digest, nbytes = await self._sealed(fd, load.name)
            flags = _core.KERNEL_NATIVE if kind == "builtin" else 0
            line = pool.sweeper.open_version(name.index, number, flags, 0)
            generation = pool.sweeper.version_generation(line)
            order = wire.LoadKernel(
                line,
                generation,
                load.name,
                kind,
                source,
                load.threads or self.threads,
                load.options,
                sealed is not None,
            )
            try:
                loaded = await pool.load_everywhere(order, sealed)
                # Purity is known only now: a function says so itself.
                idempotent = loaded.pure if load.idempotent is None else load.idempotent
                flags |= _core.KERNEL_PURE * loaded.pure | _core.KERNEL_IDEMPOTENT * idempotent
                pool.sweeper.set_version_flags(line, flags)
            except BaseException:
                await self._undo(pool, line, generation)
                raise
        except BaseException:
            if sealed is not None:
                os.close(sealed)
            raise
        finally:
            if fd is not None:
                os.close(fd)
        version = Version(
            name=load.name,
            number=number,
            line=line,
            generation=generation,
            order=order,
            file_fd=sealed,
            digest=digest,
            nbytes=nbytes,
            inputs=loaded.inputs,
            outputs=loaded.outputs,
            pure=loaded.pure,
            idempotent=idempotent,
            pinned=wanted is not None,
            seconds=loaded.seconds,
        )
        self._publish(pool, name, version)
        return self._describe(load.name, version)

    async def _undo(self, pool: Pool, line: int, generation: int) -> None:
        await pool._dropped_everywhere(wire.DropKernel(line, generation), ("drop kernel", line, generation))
        pool.sweeper.free_version(line)

    def _publish(self, pool: Pool, name: Name, version: Version) -> None:
        """From here on new calls go to it; the version it replaces finishes what it has and is dropped."""
        pool.versions[version.line] = version
        previous = name.versions.get(name.current) if name.current is not None else None
        name.versions[version.number] = version
        name.current = version.number
        name.last = max(name.last, version.number)
        pool.sweeper.publish_version(version.line, True)
        if previous is not None and not previous.pinned:
            del name.versions[previous.number]
            pool.spawn_task(pool.drop_version(previous, force=False))

    async def _unload(self, unload: wire.Unload) -> None:
        version = self._version(unload.name, unload.version)
        name = self.names[unload.name]
        pool = self.pools[name.pool]
        async with name.lock:
            doomed = [version] if unload.version is not None else list(name.versions.values())
            for one in doomed:
                name.versions.pop(one.number, None)
                if name.current == one.number:
                    name.current = max(name.versions, default=None)
                    if name.current is not None:
                        pool.sweeper.publish_version(name.versions[name.current].line, True)
            for one in doomed:
                await pool.drop_version(one, force=unload.force)

    # ---- numbers -------------------------------------------------------------------------------------------------

    def statistics(self) -> dict[str, Any]:
        """Raw numbers; records.py makes records of them."""
        workers = []
        for pool in self.pools.values():
            for worker in pool.workers:
                workers.append({**pool.sweeper.worker(worker.index), "pid": worker.pid, "pool": pool.name})
        clients = []
        for client in self.clients:
            for pool_name, session in client.sessions.items():
                numbers = self.pools[pool_name].sweeper.session(session.index)
                sweeper = self.pools[pool_name].sweeper
                stages = {stage: sweeper.client_histogram(session.index, stage) for stage in ("copy", "wake", "total")}
                clients.append(
                    {**numbers, "pid": client.pid, "uid": client.uid, "bytes": session.nbytes, "stages": stages}
                )
        pools = self.pools.values()
        return {
            "pid": os.getpid(),
            "address": self.address,
            "version": __version__,
            "uptime_s": time.monotonic() - self.started,
            "workers": workers,
            "restarts": sum(pool.restarts for pool in pools),
            "failed_with_worker": sum(pool.failed for pool in pools),
            "run_again": sum(pool.again for pool in pools),
            "queued": sum(pool.sweeper.queued() for pool in pools),
            "active": sum(pool.sweeper.active() for pool in pools),
            "clients": clients,
            "models": [self._describe(name, v) for name, n in self.names.items() for v in n.versions.values()],
            "versions": {str(line): pool.sweeper.version(line) for pool in pools for line in pool.versions},
        }

    # ---- the end -------------------------------------------------------------------------------------------------

    async def stop(self, *, drain: bool = True, timeout: float = 30.0) -> None:
        """Stops taking requests, lets submitted ones finish (drain), ends the workers, then hangs up on everybody."""
        if self._stopping:
            await self.stopped.wait()
            return
        self._stopping = True
        if self._listener is not None:
            self._loop.remove_reader(self._listener.fileno())
            self._listener.close()
            if not self.address.startswith("@"):
                Path(self.address).unlink(missing_ok=True)
        await asyncio.gather(*(pool.stop(drain=drain, timeout=timeout) for pool in self.pools.values()))
        for client in list(self.clients):
            self.clients.discard(client)
            self._loop.remove_reader(client.sock.fileno())
            client.sock.close()
        self.stopped.set()
