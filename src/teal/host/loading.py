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
from teal.errors import DeadlineExceeded, InvalidArgument, QuotaExceeded
from teal.host import engines, wire
from teal.host import repository as files
from teal.host.limits import Limits
from teal.host.names import Name, Names, User
from teal.host.origin import Origin, check_load, find_origin
from teal.host.pool import Pool, Version

_MOST_LEAVING = 4


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
                await self._turn(name, load, until)
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
        sealed: list[files.Sealed] = []
        try:
            sealed.append(await self._sealed(load.name, origin))
            for fd in origin.sealed:
                sealed.append(await self._sealed(load.name, Origin(origin.source, origin.kind, fd)))
            self._check_digest(load, origin, sealed[0])
            version = await self._resident(pool, name, load, origin, user, number, sealed, until)
        except BaseException:
            for one in sealed:
                if one.fd is not None:
                    os.close(one.fd)
            raise
        replaced = None if name.current is None else name.versions.get(name.current)
        self._publish(pool, name, version)
        if replaced is not None:
            await pool.unbind(replaced)
        return self._names.describe(load.name, version)

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
        return await loop.run_in_executor(None, files.seal, origin.fd, name, limit, origin.weights)

    async def _resident(
        self,
        pool: Pool,
        name: Name,
        load: wire.Load,
        origin: Origin,
        user: User,
        number: int,
        sealed: list[files.Sealed],
        until: float,
    ) -> Version:
        file, weights = sealed[0], tuple(one.fd for one in sealed[1:] if one.fd is not None)
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
            load.precision,
            file.weights_bytes,
            user.owner,
            len(weights),
        )
        try:
            fds = () if file.fd is None else (file.fd, *weights)
            loaded = await pool.residence.load(order, fds, load.timeout, until)
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
            nbytes=sum(one.nbytes for one in sealed),
            inputs=loaded.inputs,
            outputs=loaded.outputs,
            pure=loaded.pure,
            idempotent=idempotent,
            pinned=origin.version is not None,
            seconds=loaded.seconds,
            uid=user.uid,
            idle_ns=load.idle_ns,
            note=loaded.note,
            engine=loaded.engine,
            precision=load.precision or "fp32" if origin.kind in engines.ENGINES else None,
            weights=loaded.weights,
            sealed=weights,
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
