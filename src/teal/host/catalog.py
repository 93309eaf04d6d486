"""The models of a host: names, versions, and how a version comes and goes.

Theory of operation: a name has an index for as long as the host lives (handles of clients hold it), and versions that
come and go, all in one pool; while it has none it may be loaded into another pool. A load seals the model's file first
(nobody can change it afterwards), makes it resident in every worker, and only then publishes it: new calls go to it
from that moment, the version it replaces finishes what it has and is dropped. One load or unload of a name at a time. A
name that never had a version gives its index back, so that loads which fail do not use names up.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from teal import _core
from teal.errors import DeadlineExceeded, InvalidArgument, NotFound, QuotaExceeded
from teal.host import repository as files
from teal.host import wire
from teal.host.limits import Limits
from teal.host.pool import Pool, Version
from teal.host.settings import DEFAULT_POOL
from teal.kernel.builtin import BUILTINS

log = logging.getLogger("teal.host")

_EXTERNAL_DATA = "session.model_external_initializers_file_folder_path"


_MOST_LEAVING = 4
_MOST_NOTE = 600  # characters of what a client has to say of its load


@dataclass(slots=True, eq=False)
class Name:
    """A model name, unique on the host: its versions by number, all in one pool."""

    index: int
    pool: str
    versions: dict[int, Version] = field(default_factory=dict)
    current: int | None = None
    last: int = 0
    leaving: set[asyncio.Task[None]] = field(default_factory=set)  # versions that were replaced, on their way out
    waiting: int = 0  # loads that hold or want the lock
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    kept: bool = False  # somebody loaded it to stay
    holders: set[Hashable] = field(default_factory=set)  # connections it is loaded for, until somebody keeps it


@dataclass(frozen=True, slots=True)
class User:
    """Who asks. owner: the host's own user, or root, who may do anything."""

    uid: int
    owner: bool


@dataclass(slots=True)
class Origin:
    """Where a version comes from; ``fd`` is its file, ours to close."""

    source: str
    kind: str
    fd: int | None = None
    version: int | None = None


class Catalog:
    """All methods run on the daemon's loop."""

    def __init__(self, pools: Mapping[str, Pool], limits: Limits, repository: Path | None) -> None:
        self.names: dict[str, Name] = {}
        self._pools = pools
        self._limits = limits
        self._repository = repository
        self._loading = 0
        self._free_indices: list[int] = []
        self._next_index = 0

    def pool(self, name: str) -> Pool:
        """Raises NotFound."""
        if name not in self._pools:
            raise NotFound(f"pool {name[:80]!r}; this host has {sorted(self._pools)}")
        return self._pools[name]

    def version(self, name: str, number: int | None) -> Version:
        """A loaded version, the current one without a number. Raises NotFound."""
        files.check_name(name)
        known = self.names.get(name)
        if known is None or not known.versions:
            loaded = sorted(n for n, k in self.names.items() if k.versions)
            more = f" and {len(loaded) - 20} more" if len(loaded) > 20 else ""
            raise NotFound(f"model {name!r} is not loaded; loaded are {loaded[:20]}{more}")
        chosen = known.current if number is None else number
        if chosen is None or chosen not in known.versions:
            raise NotFound(f"model {name!r} has no version {chosen}; loaded are {sorted(known.versions)}")
        return known.versions[chosen]

    def describe(self, name: str, version: Version) -> dict[str, Any]:
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
            "uid": version.uid,
            "device": version.order.device,
            "path": version.order.path if version.order.device is not None else None,
            "batches": version.batches,
            "losses": len(version.losses),
            "note": version.note,
            "threads": _threads_of(version),
            "idle_ns": version.idle_ns,
            "inputs": version.inputs,
            "outputs": version.outputs,
        }

    def describe_all(self) -> list[dict[str, Any]]:
        return [self.describe(name, v) for name, n in self.names.items() for v in n.versions.values()]

    # ---- loading -------------------------------------------------------------------------------------------------

    async def load(self, load: wire.Load, datagram: wire.Datagram, user: User) -> dict[str, Any]:
        """Makes a version resident and current.

        Raises NotFound, InvalidArgument, QuotaExceeded, KernelFailed, PeerDied.
        """
        files.check_name(load.name)
        pool = self.pool(self._pool_of(load))
        if load.version is not None and not 1 <= load.version < 1 << 31:
            raise InvalidArgument(f"{load.version}, expected 1 to 2^31 - 1", path="$.version")
        if load.threads is not None and not 1 <= load.threads <= 1024:
            raise InvalidArgument(f"{load.threads}, expected 1 to 1024", path="$.threads")
        if load.idle_ns is not None and not 0 <= load.idle_ns <= 3600 * 10**9:
            raise InvalidArgument(f"{load.idle_ns} ns, expected 0 to one hour", path="$.idle")
        if not 0 < load.timeout <= 86_400:
            raise InvalidArgument(f"{load.timeout}, expected more than 0 and at most 86400 seconds", path="$.timeout")
        if _EXTERNAL_DATA in load.options:
            raise InvalidArgument(f"{_EXTERNAL_DATA}: is the model's own folder", path="$.options")
        loaded = sum(len(n.versions) for n in self.names.values()) + self._loading
        if loaded >= self._limits.models:
            raise QuotaExceeded(
                f"{loaded} model versions are loaded or being loaded, and this host takes {self._limits.models} "
                "(Limits.models); unload some"
            )
        origin = self._origin(load, datagram, user.owner)
        try:
            if origin.kind == "systems" and (load.options or load.threads not in (None, 1)):
                raise InvalidArgument(
                    "a systems load has no options and runs in one thread; leave options= and threads= out",
                    path="$.options",
                )
            name = self._name(load, pool)
            name.waiting += 1
            self._loading += 1
            try:
                until = asyncio.get_running_loop().time() + load.timeout
                await self._turn(name, load, until)
                try:
                    return await self._load_version(pool, name, load, origin, user, until)
                finally:
                    name.lock.release()
            finally:
                self._loading -= 1
                name.waiting -= 1
                self._forget_unused(load.name, name)
        finally:
            if origin.fd is not None:
                os.close(origin.fd)

    async def _turn(self, name: Name, load: wire.Load, until: float) -> None:
        """Takes the name's lock. Raises DeadlineExceeded."""
        try:
            async with asyncio.timeout_at(until):
                await name.lock.acquire()
                try:
                    while len(name.leaving) >= _MOST_LEAVING:  # loaded faster than memory comes back
                        await asyncio.wait(name.leaving, return_when=asyncio.FIRST_COMPLETED)
                except BaseException:
                    name.lock.release()
                    raise
        except TimeoutError:
            raise DeadlineExceeded(
                f"{load.name!r} was not loaded within {load.timeout:g} s: another load or unload of it is under way"
            ) from None

    def _name(self, load: wire.Load, pool: Pool) -> Name:
        name = self.names.get(load.name)
        if name is None:
            if self._free_indices:
                index = min(self._free_indices)
                self._free_indices.remove(index)
            else:
                index = self._next_index
                self._next_index += 1
            name = self.names[load.name] = Name(index, pool.name)
        if name.pool != pool.name:
            if name.versions or name.waiting > 0:
                raise InvalidArgument(
                    f"{load.name!r} is in pool {name.pool!r}, and a name is in one pool at a time; unload it there "
                    "first, or take another name",
                    path="$.pool",
                )
            name.pool = pool.name  # handles that were made before find nothing loaded in theirs
        pool.names = max(pool.names, name.index + 1)
        return name

    def _pool_of(self, load: wire.Load) -> str:
        if load.pool is not None:
            return load.pool
        known = self.names.get(load.name)
        return DEFAULT_POOL if known is None else known.pool

    def _forget_unused(self, key: str, name: Name) -> None:
        if name.last == 0 and not name.versions and name.waiting == 0:
            del self.names[key]
            self._free_indices.append(name.index)

    def _origin(self, load: wire.Load, datagram: wire.Datagram, owner: bool) -> Origin:
        if load.source is None:
            _check_device(load, "onnx")
            if self._repository is None:
                raise InvalidArgument(
                    "no source given, and this host has no model repository (teal serve --repository DIR)",
                    path="$.source",
                )
            path, found = files.find(self._repository, load.name, load.version)
            number = load.version if load.version is not None else found
            kind = files.FILE_KINDS[path.suffix]
            return Origin(str(path), kind, files.open_file(path, self._limits.model_bytes), number)
        kind = load.kernel or files.kernel_kind(load.source)
        _check_device(load, kind)
        if kind == "builtin":
            name = load.source.removeprefix("builtin:")
            if name not in BUILTINS:
                raise NotFound(f"builtin kernel {name[:80]!r}; there are {sorted(BUILTINS)}")
            return Origin(name, kind, None, load.version)
        if kind == "function":
            if not owner:
                raise InvalidArgument(
                    "a function kernel runs any code as the host's user, so only that user may load one; "
                    "ask the host's owner to load it",
                    path="$.source",
                )
            return Origin(load.source, kind, None, load.version)
        if kind not in files.FILE_KINDS.values():
            raise InvalidArgument(
                f"kernel kind {kind[:80]!r}, expected onnx, systems, function or builtin", path="$.kernel"
            )
        if self._repository is not None:
            path = files.inside(self._repository, load.source)
            return Origin(str(path), kind, files.open_file(path, self._limits.model_bytes), load.version)
        if not load.has_file:
            raise InvalidArgument("the model file's descriptor must come with the message", path="$.has_file")
        # Files beside the model (external data) are opened by the worker, with the owner's rights: for the owner only.
        source = load.source if owner else os.path.basename(load.source)
        return Origin(source, kind, datagram.take_fd(), load.version)

    async def _load_version(
        self, pool: Pool, name: Name, load: wire.Load, origin: Origin, user: User, until: float
    ) -> dict[str, Any]:
        number = name.last + 1 if origin.version is None else origin.version
        if number in name.versions:
            raise InvalidArgument(
                f"version {number} of {load.name!r} is loaded; unload it first, or load without a version",
                path="$.version",
            )
        self._check_may_change(load.name, list(name.versions.values()), user)
        file = await self._sealed(load.name, origin.fd)
        try:
            self._check_digest(load, origin, file)
            version = await self._resident(pool, name, load, origin, user, number, file, until)
        except BaseException:
            if file.fd is not None:
                os.close(file.fd)
            raise
        replaced = None if name.current is None else name.versions.get(name.current)
        self._publish(pool, name, version)
        if replaced is not None:
            await pool.unbind(replaced)
        return self.describe(load.name, version)

    def _check_may_change(self, name: str, versions: list[Version], user: User) -> None:
        """Raises InvalidArgument when one of these is somebody else's."""
        for version in versions:
            if not user.owner and version.uid != user.uid:
                raise InvalidArgument(
                    f"{name!r} was loaded by user {version.uid}; only that user and the host's owner may replace or "
                    "unload it"
                )

    def _check_digest(self, load: wire.Load, origin: Origin, file: files.Sealed) -> None:
        """Of the sealed copy, which is what runs. Raises InvalidArgument."""
        if load.digest is not None:
            if file.fd is None:
                raise InvalidArgument(
                    f"a {origin.kind} kernel has no file whose SHA-256 could be compared; leave digest= out",
                    path="$.digest",
                )
            files.check_digest(load.digest, file.digest, f"the file of {load.name!r}")
        if self._repository is not None and file.fd is not None:
            noted = files.noted_digest(Path(origin.source))
            if noted is not None:
                files.check_digest(noted, file.digest, origin.source, "$.source")

    async def verify(self, verify: wire.Verify) -> list[dict[str, Any]]:
        """Reads the sealed files of loaded versions anew and compares them with what was loaded. Raises NotFound."""
        if verify.name is not None:
            self.version(verify.name, verify.version)  # raises
        found = []
        for name, known in sorted(self.names.items()):
            for version in list(known.versions.values()):
                if verify.name not in (None, name) or verify.version not in (None, version.number):
                    continue
                found.append(await self._verified(version))
        return found

    async def _verified(self, version: Version) -> dict[str, Any]:
        seen: str | None = None
        sealed = False
        if version.file_fd is not None:
            fd = os.dup(version.file_fd)  # it may be unloaded meanwhile
            try:
                sealed = files.is_sealed(fd)
                seen = await asyncio.get_running_loop().run_in_executor(None, files.digest_of, fd)
            finally:
                os.close(fd)
            if seen != version.digest or not sealed:
                log.error(
                    "model %r version %d: the resident file is not what was loaded (SHA-256 %s, loaded %s, sealed: %s)",
                    version.name, version.number, seen, version.digest, sealed,
                )  # fmt: skip
        return {
            "name": version.name,
            "version": version.number,
            "kernel": version.order.kernel,
            "digest": version.digest,
            "found": seen,
            "sealed": sealed,
            "bytes": version.nbytes,
        }

    async def _sealed(self, name: str, fd: int | None) -> files.Sealed:
        if fd is None:
            return files.Sealed(None, "", 0)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(None, files.seal, fd, name, self._limits.model_bytes)

    async def _resident(
        self,
        pool: Pool,
        name: Name,
        load: wire.Load,
        origin: Origin,
        user: User,
        number: int,
        file: files.Sealed,
        until: float,
    ) -> Version:
        flags = _core.KERNEL_NATIVE if origin.kind == "builtin" else 0
        line = pool.sweeper.open_version(name.index, number, flags, 0)
        order = wire.LoadKernel(
            line,
            pool.sweeper.version_generation(line),
            load.name,
            origin.kind,
            origin.source,
            load.threads or pool.settings.threads,
            load.options,
            file.fd is not None,
            load.device,
            load.path or "auto",
            load.idle_ns,
        )
        try:
            loaded = await pool.residence.load(order, file.fd, load.timeout, until)
            # Purity is known only now: a function says so itself.
            idempotent = loaded.pure if load.idempotent is None else load.idempotent
            flags |= _core.KERNEL_PURE * loaded.pure | _core.KERNEL_IDEMPOTENT * idempotent
            pool.sweeper.set_version_flags(line, flags)
        except DeadlineExceeded:
            pool.spawn_task(pool.undo_load(order))  # which takes until the worker that sits in it is gone
            raise
        except BaseException:
            await pool.undo_load(order)
            raise
        return Version(
            name=load.name,
            number=number,
            line=line,
            generation=order.generation,
            order=order,
            file_fd=file.fd,
            digest=file.digest,
            nbytes=file.nbytes,
            inputs=loaded.inputs,
            outputs=loaded.outputs,
            pure=loaded.pure,
            idempotent=idempotent,
            pinned=origin.version is not None,
            seconds=loaded.seconds,
            uid=user.uid,
            idle_ns=load.idle_ns,
            note="; ".join(note for note in (load.note[:_MOST_NOTE], loaded.note) if note),
        )

    def _publish(self, pool: Pool, name: Name, version: Version) -> None:
        """From here on new calls go to it; the version it replaces finishes what it has and is dropped."""
        pool.versions[version.line] = version
        name.versions[version.number] = version
        name.current = version.number
        name.last = max(name.last, version.number)
        pool.sweeper.publish_version(version.line, True)
        pool.set_idle()
        if version.pinned:
            return  # it stands beside the others
        for other in [v for v in name.versions.values() if v is not version and not v.pinned]:
            del name.versions[other.number]
            task = pool.spawn_task(pool.drop_version(other, force=False))
            name.leaving.add(task)
            task.add_done_callback(name.leaving.discard)

    # ---- who wants it --------------------------------------------------------------------------------------------

    def keep(self, name: str, user: User) -> None:
        """It stays until somebody unloads it. Raises InvalidArgument for a user who may not change it."""
        self._check_may_change(name, list(self.names[name].versions.values()), user)
        self.names[name].kept = True

    def hold(self, name: str, client: Hashable) -> None:
        """It stays while the client is there, at least."""
        self.names[name].holders.add(client)

    def held_by(self, client: Hashable) -> list[str]:
        return [name for name, known in self.names.items() if client in known.holders]

    async def release(self, name: str, client: Hashable) -> None:
        """The client needs it no more. A model that nobody keeps or holds is unloaded."""
        known = self.names.get(name)
        if known is None or client not in known.holders:
            return
        known.holders.discard(client)
        if known.kept or known.holders:
            return
        async with known.lock:  # a load may have been under way
            if known.versions and not known.kept and not known.holders:
                await self._drop(known, list(known.versions.values()), force=False)

    # ---- unloading -----------------------------------------------------------------------------------------------

    async def unload(self, unload: wire.Unload, user: User) -> None:
        """One version, or all of a name; returns when the memory is given back. Raises NotFound."""
        self.version(unload.name, unload.version)
        name = self.names[unload.name]
        async with name.lock:
            version = self.version(unload.name, unload.version)  # somebody else may have unloaded it meanwhile
            doomed = [version] if unload.version is not None else list(name.versions.values())
            self._check_may_change(unload.name, doomed, user)
            await self._drop(name, doomed, force=unload.force)

    async def _drop(self, name: Name, doomed: list[Version], *, force: bool) -> None:
        """The name's lock is held."""
        pool = self._pools[name.pool]
        for one in doomed:
            name.versions.pop(one.number, None)
            if name.current == one.number:
                name.current = max(name.versions, default=None)
                if name.current is not None:
                    pool.sweeper.publish_version(name.versions[name.current].line, True)
                    await pool.unbind(one)
        if not name.versions:
            name.kept = False
            name.holders.clear()
        for one in doomed:
            await pool.drop_version(one, force=force)


def _check_device(load: wire.Load, kind: str) -> None:
    """Raises InvalidArgument."""
    if load.path not in (None, "cpu", "apk", "pl", "auto"):
        raise InvalidArgument(f"{load.path[:80]!r}, expected cpu, apk, pl or auto", path="$.path")
    if load.device is None and load.path is not None:
        raise InvalidArgument(f"path {load.path!r} without a device; give device= too", path="$.path")
    if load.device is not None and kind != "systems":
        raise InvalidArgument(
            f"device {load.device[:80]!r} for a kernel of kind {kind}, expected a systems load (.safetensors)",
            path="$.device",
        )


def _threads_of(version: Version) -> int:
    """Cores a run of this version may keep busy at once."""
    return (version.order.threads or len(os.sched_getaffinity(0))) if version.order.kernel == "onnx" else 1
