"""Loading: how a version of a model becomes resident and current.

Theory of operation: a load seals the model's file first (nobody can change it afterwards), makes it resident in every
worker, and only then publishes it: new calls go to it from that moment, the version it replaces finishes what it has
and is dropped. One load or unload of a name at a time: whoever does either holds the name's lock.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

from teal import _core
from teal.errors import DeadlineExceeded, InvalidArgument, NotFound, QuotaExceeded
from teal.host import engines, wire
from teal.host import repository as files
from teal.host.batching import takes_batches
from teal.host.cache import entry_of
from teal.host.limits import Limits
from teal.host.names import Name, Names, User
from teal.host.origin import Origin, check_load, find_origin
from teal.host.pool import Pool, Version
from teal.host.snapshot import Beginning

_MOST_LEAVING = 4
_PREEMPTION = {"anywhere": _core.KERNEL_PREEMPTIBLE, "yields": _core.KERNEL_PREEMPTIBLE | _core.KERNEL_YIELDS}
_MOST_NOTE = 600  # characters of what a client has to say of its load


class Loading:
    """All methods run on the daemon's loop."""

    def __init__(self, names: Names, limits: Limits, repository: Path | None) -> None:
        self._names = names
        self._limits = limits
        self._repository = repository
        self._under_way = 0

    async def load(self, load: wire.Load, datagram: wire.Datagram, user: User) -> dict[str, Any]:
        """Makes a version resident and current.

        Raises NotFound, InvalidArgument, QuotaExceeded, KernelFailed, PeerDied.
        """
        files.check_name(load.name)
        pool = self._names.pool_for(load.name, load.pool)
        check_load(load)
        loaded = self._names.loaded() + self._under_way
        if loaded >= self._limits.models:
            raise QuotaExceeded(
                f"{loaded} model versions are loaded or being loaded, and this host takes {self._limits.models} "
                "(Limits.models); unload some"
            )
        origin = find_origin(
            load, datagram, owner=user.owner, repository=self._repository, model_bytes=self._limits.model_bytes
        )
        try:
            name = self._names.take(load.name, pool)
            name.waiting += 1
            self._under_way += 1
            try:
                until = asyncio.get_running_loop().time() + load.timeout
                await self._turn(name, load.name, load.timeout, until)
                try:
                    return await self._load_version(pool, name, load, origin, user, until)
                finally:
                    name.lock.release()
            finally:
                self._under_way -= 1
                name.waiting -= 1
                self._names.forget_unused(load.name, name)
        finally:
            origin.close()

    # ---- and back ------------------------------------------------------------------------------------------------

    async def roll_back(self, back: wire.RollBack, user: User) -> dict[str, Any]:
        """Makes a loaded version current, or one that was replaced resident and current. Raises what ``load`` does."""
        current = self._names.version(back.name, None)  # raises
        name = self._names.known[back.name]
        pool = self._names.pool(name.pool)
        until = asyncio.get_running_loop().time() + back.timeout
        await self._turn(name, back.name, back.timeout, until)
        try:
            current = self._names.version(back.name, None)
            user.check_may_change(back.name, [current])
            number = back.version if back.version is not None else next(reversed(name.kept), None)
            if number is not None and number in name.versions:
                if number != current.number:
                    self._publish(pool, name, name.versions[number])
                    await pool.unbind(current)
                return self._names.describe(back.name, name.versions[number])
            if number is None or number not in name.kept:
                wanted = "an earlier version" if number is None else f"version {number}"
                raise NotFound(
                    f"{wanted} of {back.name!r}: kept are {sorted(name.kept)}, loaded {sorted(name.versions)}; a pool "
                    f"keeps {pool.settings.keep} replaced (keep=)"
                )
            await self._bring_back(pool, name, name.kept[number], back.timeout, until)
            return self._names.describe(back.name, name.versions[number])
        finally:
            name.lock.release()

    async def _bring_back(self, pool: Pool, name: Name, kept: Version, timeout: float, until: float) -> None:
        order = kept.order
        again = wire.Load(
            kept.name, order.source, order.kernel, None, pool.name, kept.idempotent, order.threads, kept.idle_ns,
            timeout=timeout, options=order.options, device=order.device, path=order.path, precision=order.precision,
            concurrency=kept.concurrency,
        )  # fmt: skip
        fds = [os.dup(fd) for fd in kept.descriptors]
        own, regions = fds[0] if fds else None, tuple(fds[1:])
        file = files.Sealed(own, kept.digest, kept.nbytes, order.weights_bytes, (), regions)
        origin = Origin(order.source, order.kernel)
        loader = User(kept.uid, order.trusted)  # by the rights of whoever loaded it, not of whoever rolls back
        version = await self._admitted(pool, name, again, origin, loader, kept.number, file, until)
        replaced = None if name.current is None else name.versions.get(name.current)
        self._publish(pool, name, version)
        if replaced is not None:
            await pool.unbind(replaced)

    async def _turn(self, name: Name, key: str, timeout: float, until: float) -> None:
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
                f"{key!r} was not loaded within {timeout:g} s: another load or unload of it is under way"
            ) from None

    async def _load_version(
        self, pool: Pool, name: Name, load: wire.Load, origin: Origin, user: User, until: float
    ) -> dict[str, Any]:
        number = name.last + 1 if origin.version is None else origin.version
        if number in name.versions:
            raise InvalidArgument(
                f"version {number} of {load.name!r} is loaded; unload it first, or load without a version",
                path="$.version",
            )
        user.check_may_change(load.name, list(name.versions.values()))
        file = await self._sealed(load.name, origin)
        try:
            self._check_digest(load, origin, file)
        except BaseException:
            file.close()
            raise
        version = await self._admitted(pool, name, load, origin, user, number, file, until)
        replaced = None if name.current is None else name.versions.get(name.current)
        self._publish(pool, name, version)
        if replaced is not None:
            await pool.unbind(replaced)
        return self._names.describe(load.name, version)

    async def _admitted(
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
        """Resident, within the pool's budget. Takes the file."""
        promised = 0
        try:
            promised = await pool.parking.admit(load.name, file.nbytes)
            version = await self._resident(pool, name, load, origin, user, number, file, until)
            promised, given = 0, promised
            try:
                await pool.parking.settled(given, version)
            except BaseException:
                await pool.undo_load(version.order)
                raise
        except BaseException:
            await pool.parking.settled(promised, None)
            file.close()
            raise
        return version

    def _check_digest(self, load: wire.Load, origin: Origin, file: files.Sealed) -> None:
        """Of the sealed copy, which is what runs. Raises InvalidArgument."""
        if load.digest is not None:
            if file.fd is None:
                raise InvalidArgument(
                    f"a {origin.kind} kernel has no file whose SHA-256 could be compared; leave digest= out",
                    path="$.digest",
                )
            files.check_digest(load.digest, file.digest, f"the file of {load.name!r}")
        if self._repository is None or file.fd is None:
            return
        paths = [origin.source] if origin.weights is None else [engines.weights_beside(origin.source), origin.source]
        for path, digest in zip(paths, file.digests, strict=True):
            assert path is not None
            noted = files.noted_digest(Path(path))
            if noted is not None:
                files.check_digest(noted, digest, path, "$.source")

    async def _sealed(self, name: str, origin: Origin) -> files.Sealed:
        if origin.fd is None:
            return files.Sealed(None, "", 0)
        loop = asyncio.get_running_loop()
        limit = self._limits.model_bytes
        file = await loop.run_in_executor(None, files.seal, origin.fd, name, limit, origin.weights)
        try:
            for fd in origin.sealed:
                region = await loop.run_in_executor(None, files.seal, fd, name, limit)
                file = file.beside(region)
        except BaseException:
            file.close()
            raise
        return file

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
        await pool.seats.name_model(name.index, load.name)
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
            load.precision,
            file.weights_bytes,
            user.owner,
            len(file.regions),
            ducks=list(pool.settings.ducks),
            duck_key=pool.settings.duck_key,
            headers=str(pool.cache.headers or ""),
        )
        try:
            begin = await self._beginning(pool, order, file.digest)
            loaded = await pool.residence.load(order, file.descriptors, load.timeout, until, begin)
            # Purity is known only now: a function says so itself.
            idempotent = loaded.pure if load.idempotent is None else load.idempotent
            flags |= _core.KERNEL_PURE * loaded.pure | _core.KERNEL_IDEMPOTENT * idempotent
            batches = takes_batches(origin.kind, pure=loaded.pure, inputs=loaded.inputs, outputs=loaded.outputs)
            flags |= _core.KERNEL_BATCHES * batches | _PREEMPTION.get(loaded.preemption, 0)
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
            engine=loaded.engine,
            precision=load.precision or "fp32" if origin.kind in engines.ENGINES else None,
            weights=loaded.weights,
            sealed=file.regions,
            memory=loaded.memory,
            takes_batches=batches and pool.settings.batch > 1,
            concurrency=load.concurrency,
            preemption=loaded.preemption,
        )

    async def _beginning(self, pool: Pool, order: wire.LoadKernel, digest: str) -> Beginning:
        """With the snapshot of a version that is loaded from the same file, or with one on disk, if there is any."""
        if (kept := self._names.snapshot_like(order, digest)) is not None:
            return Beginning(kept)
        entry = entry_of(order, digest, len(pool.settings.cores or os.sched_getaffinity(0)))
        found, note = await pool.cache.find(entry)
        return Beginning(found, entry, found is None, note)

    def _publish(self, pool: Pool, name: Name, version: Version) -> None:
        """From here on new calls go to it; the version it replaces finishes what it has and is dropped."""
        pool.versions[version.line] = version
        name.forget_replaced(version.number)  # the same, resident again, or another with its number
        name.versions[version.number] = version
        name.current = version.number
        name.last = max(name.last, version.number)
        pool.sweeper.limit_running(name.index, version.concurrency or 0)
        pool.sweeper.publish_version(version.line, True)
        pool.set_idle()
        pool.changed()
        if version.pinned:
            return  # it stands beside the others
        for other in [v for v in name.versions.values() if v is not version and not v.pinned]:
            del name.versions[other.number]
            name.keep(other, pool.settings.keep)
            task = pool.spawn_task(pool.drop_version(other, force=False))
            name.leaving.add(task)
            task.add_done_callback(name.leaving.discard)
