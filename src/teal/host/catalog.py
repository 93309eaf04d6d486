"""The models of a host: how a version comes and goes, and who wants it.

Theory of operation: names.py says what stands where, loading.py how a version becomes current. Here is what happens to
it from then on: it stays while somebody keeps or holds it, is compared with what was loaded when somebody asks, and
leaves when it is unloaded. One load or unload of a name at a time.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any

from teal.host import repository as files
from teal.host import wire
from teal.host.limits import Limits
from teal.host.loading import Loading
from teal.host.names import Name, Names, User
from teal.host.pool import Pool, Version
from teal.host.snapshot import still_right

log = logging.getLogger("teal.host")


class Catalog:
    """All methods run on the daemon's loop."""

    def __init__(self, pools: Mapping[str, Pool], limits: Limits, repository: Path | None) -> None:
        self.names = Names(pools)
        self._loading = Loading(self.names, limits, repository)

    async def load(self, load: wire.Load, datagram: wire.Datagram, user: User) -> dict[str, Any]:
        """Makes a version resident and current. See loading.py."""
        return await self._loading.load(load, datagram, user)

    async def roll_back(self, back: wire.RollBack, user: User) -> dict[str, Any]:
        """Makes an earlier version current again. See loading.py."""
        return await self._loading.roll_back(back, user)

    # ---- who wants it --------------------------------------------------------------------------------------------

    def keep(self, name: str, user: User) -> None:
        """It stays until somebody unloads it. Raises InvalidArgument for a user who may not change it."""
        user.check_may_change(name, list(self.names.known[name].versions.values()))
        self.names.known[name].stays = True

    def hold(self, name: str, client: Hashable, number: int | None = None) -> None:
        """It stays while the client is there, at least; with a number, that version does."""
        known = self.names.known[name]
        (known.holders if number is None else known.numbered.setdefault(number, set())).add(client)

    def held_by(self, client: Hashable) -> list[tuple[str, int | None]]:
        """Names, and versions by their number."""
        held: list[tuple[str, int | None]] = []
        for name, known in self.names.known.items():
            held += [(name, None)] if client in known.holders else []
            held += [(name, number) for number, holders in known.numbered.items() if client in holders]
        return held

    async def release(self, name: str, client: Hashable, number: int | None = None) -> None:
        """The client needs it no more. What nobody keeps or holds is unloaded."""
        known = self.names.known.get(name)
        if known is not None and number is not None:
            await self._release_version(known, client, number)
            return
        if known is None or client not in known.holders:
            return
        known.holders.discard(client)
        if known.stays or known.holders:
            return
        async with known.lock:  # a load may have been under way
            if known.versions and not known.stays and not known.holders:
                await self._drop(known, list(known.versions.values()), force=False)

    async def _release_version(self, known: Name, client: Hashable, number: int) -> None:
        holders = known.numbered.get(number)
        if holders is None or client not in holders:
            return
        holders.discard(client)
        async with known.lock:  # a load may have been under way
            if known.numbered.get(number):
                return
            known.numbered.pop(number, None)
            if (version := known.versions.get(number)) is not None and not known.stays and not known.holders:
                await self._drop(known, [version], force=False)

    # ---- unloading -----------------------------------------------------------------------------------------------

    async def unload(self, unload: wire.Unload, user: User) -> None:
        """One version, or all of a name; returns when the memory is given back. Raises NotFound."""
        self.names.version(unload.name, unload.version)
        name = self.names.known[unload.name]
        async with name.lock:
            version = self.names.version(unload.name, unload.version)  # somebody else may have unloaded it meanwhile
            doomed = [version] if unload.version is not None else list(name.versions.values())
            user.check_may_change(unload.name, doomed)
            await self._drop(name, doomed, force=unload.force)

    async def _drop(self, name: Name, doomed: list[Version], *, force: bool) -> None:
        """The name's lock is held."""
        pool = self.names.pool(name.pool)
        for one in doomed:
            name.versions.pop(one.number, None)
            name.numbered.pop(one.number, None)
            if name.current == one.number:
                name.current = max(name.versions, default=None)
                if name.current is not None:
                    current = name.versions[name.current]
                    pool.sweeper.limit_running(name.index, current.concurrency or 0)
                    pool.sweeper.publish_version(current.line, True)
                    await pool.unbind(one)
        if not name.versions:
            name.stays = False
            name.holders.clear()
            name.forget_replaced()
        for one in doomed:
            await pool.drop_version(one, force=force)

    # ---- what is loaded ------------------------------------------------------------------------------------------

    async def verify(self, verify: wire.Verify) -> list[dict[str, Any]]:
        """Reads the sealed files of loaded versions anew and compares them with what was loaded. Raises NotFound."""
        if verify.name is not None:
            self.names.version(verify.name, verify.version)  # raises
        found = []
        for name, known in sorted(self.names.known.items()):
            for version in list(known.versions.values()):
                if verify.name not in (None, name) or verify.version not in (None, version.number):
                    continue
                found.append(await self._verified(version))
        return found

    async def _verified(self, version: Version) -> dict[str, Any]:
        seen: str | None = None
        sealed = False
        loop = asyncio.get_running_loop()
        kept = self.names.pool(self.names.known[version.name].pool).residence.snapshot(version.line)
        right = None if kept is None else await loop.run_in_executor(None, still_right, kept.copy())
        if right is False:
            log.error("model %r version %d: its snapshot is not what was kept", version.name, version.number)
        if version.file_fd is not None:
            fd = os.dup(version.file_fd)  # it may be unloaded meanwhile
            try:
                sealed = files.is_sealed(fd)
                seen = await loop.run_in_executor(None, files.digest_of, fd)
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
            "snapshot": right,
        }
