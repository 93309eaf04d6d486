"""The host: owns sessions, workers, versions and limits; enforces decisions. Never on the path of a call.

Theory of operation: one asyncio loop. Clients come in through the listener (listener.py), which hands their messages to
``_obey`` one by one; models are the catalog's (catalog.py), workers and sessions the pool's (pool.py). When a
connection ends, for whatever reason, its sessions are closed: waiting requests are cancelled, memory is freed once
every worker has let go. Users whom the owner let in may call and load models, and replace and unload
what they loaded; only the owner (or root) may stop the host, or load function kernels, which run any code as the owner.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from teal import _core
from teal._version import __version__
from teal.errors import InvalidArgument, NotFound, PeerDied, QuotaExceeded, VersionMismatch
from teal.host import callers, records, wire
from teal.host import repository as files
from teal.host.agents import Agents
from teal.host.cache import Cache
from teal.host.catalog import Catalog
from teal.host.limits import Limits, raise_descriptors
from teal.host.listener import Answer, Client, Listener
from teal.host.names import User
from teal.host.pool import Pool
from teal.host.session import Session
from teal.host.settings import PoolSettings

log = logging.getLogger("teal.host")

_MOST_BPF_SESSIONS = 16  # of one client


class Daemon:
    """``await start()``, then it serves until ``stop()``. All methods run on the loop."""

    def __init__(
        self,
        address: str,
        *,
        pools: Mapping[str, PoolSettings],
        limits: Limits,
        repository: Path | None,
        cache: Cache,
        allowed_uids: Iterable[int] = (),
    ) -> None:
        self.address = address
        self.limits = limits
        self.started = time.monotonic()
        self.stopped = asyncio.Event()
        self.descriptors = 0  # that this process may have open
        self.cache = cache
        self.pools = {name: Pool(name, settings, cache) for name, settings in pools.items()}
        self.agents = Agents(self.pools)
        self.catalog = Catalog(self.pools, limits, repository)
        self.listener = Listener(address, {os.getuid(), *allowed_uids}, limits, self._obey, self._gone)
        self._stopping = False

    async def start(self) -> None:
        """Listens first (so that a second host of the same name fails early), then starts the workers."""
        self.descriptors = raise_descriptors()
        self.listener.open()
        try:
            await asyncio.gather(*(pool.start() for pool in self.pools.values()))
            await asyncio.gather(*(pool.lending.start(self.pools) for pool in self.pools.values()))
            await self.agents.start_configured()
        except BaseException:
            self.listener.close()
            await self.agents.stop()
            await asyncio.gather(*(pool.stop(drain=False, timeout=0) for pool in self.pools.values()))
            await self.cache.close(drain=False)
            raise
        self.listener.start()

    def forget(self) -> None:
        """In a forked child: closes its copies of our descriptors. See docs/ownership.md."""
        self.listener.forget()
        self.agents.forget()
        for pool in self.pools.values():
            pool.forget()
        self.cache.forget()

    def _gone(self, client: Client) -> None:
        for name, number in self.catalog.held_by(client):
            self.listener.task(self.catalog.release(name, client, number))
        for name, session in client.all_sessions():
            self.listener.task(self.pools[name].close_session(session, gone=True))

    # ---- what clients ask ----------------------------------------------------------------------------------------

    async def _obey(self, client: Client, body: wire.ClientMessage, datagram: wire.Datagram) -> Answer:
        if self._stopping and isinstance(body, wire.OpenSession | wire.Load):
            raise PeerDied("host", "it is stopping, and takes no more work")
        match body:
            case wire.Hello():
                return self._greet(client, body), ()
            case wire.OpenSession(pool_name):
                return self._open_session(client, pool_name)
            case wire.OpenBpfSession(pool_name, slots):
                return self._open_bpf_session(client, pool_name, slots, datagram), ()
            case wire.CloseBpfSession(pool_name, index):
                await self._close_bpf_session(client, pool_name, index)
                return None, ()
            case wire.MakeRegion(index, nbytes, pages, pool_name):
                pool, session = self._session(client, pool_name, index)
                if not 0 < nbytes <= 1 << 46:
                    raise InvalidArgument(f"{nbytes}, expected 1 to 2^46", path="$.nbytes")
                region, fd, size = pool.make_region(session, nbytes, pages)
                return {"region": region, "nbytes": size}, (fd,)
            case wire.FreeRegion(index, region, pool_name):
                pool, session = self._session(client, pool_name, index)
                await pool.free_region(session, region)
                return None, ()
            case wire.Load():
                user = User(client.uid, client.owner)
                described = await self.catalog.load(body, datagram, user)
                await self._hold(client, body)
                return described, ()
            case wire.Unload():
                await self.catalog.unload(body, User(client.uid, client.owner))
                return None, ()
            case wire.RollBack():
                return await self.catalog.roll_back(body, User(client.uid, client.owner)), ()
            case wire.Lookup(name, number):
                version = self.catalog.names.version(name, number)
                described = self.catalog.names.describe(name, version)
                await self._hold(client, body)
                return described, User(client.uid, client.owner).files_of(version) if body.files else ()
            case wire.Release(name, number):
                await self.catalog.release(files.check_name(name), client, number)
                return None, ()
            case wire.ListModels():
                return self.catalog.names.describe_all(), ()
            case wire.Verify():
                return await self.catalog.verify(body), ()
            case wire.Statistics():
                return self.statistics(), ()
            case wire.TakeSpill(index, number, pool_name):
                pool, session = self._session(client, pool_name, index)
                spill, fds = pool.take_spill(session, number)
                return spill.layout, fds
            case (
                wire.StartAgent()
                | wire.StopAgent()
                | wire.UpgradeAgent()
                | wire.ChangeAgent()
                | wire.LookAtAgents()
                | wire.Trace()
            ):
                return await self._obey_about_agents(client, body), ()
            case wire.Stop(drain, timeout):
                if not client.owner:
                    raise InvalidArgument(f"user {client.uid} may use this host, and only its owner may stop it")
                if not 0 <= timeout <= 86_400:
                    raise InvalidArgument(f"{timeout}, expected 0 to 86400 seconds", path="$.timeout")
                self.listener.task(self.stop(drain=drain, timeout=timeout))
                return None, ()
        raise InvalidArgument(f"message {type(body).__name__} is not for a host")

    async def _hold(self, client: Client, asked: wire.Load | wire.Lookup) -> None:
        keep = not asked.hold if isinstance(asked, wire.Load) else asked.keep
        if keep:
            self.catalog.keep(asked.name, User(client.uid, client.owner))
        elif asked.hold:
            self.catalog.hold(asked.name, client, asked.version)
            if client.gone:  # it left while we loaded
                await self.catalog.release(asked.name, client, asked.version)

    async def _obey_about_agents(self, client: Client, body: wire.ClientMessage) -> Any:
        if isinstance(body, wire.LookAtAgents):
            found = self.agents.list(body.pool)
            if body.dump and body.pool is not None:
                found["said"] = await self.agents.dump(body.pool)
            return found
        if not client.owner:  # a policy is code that runs as the owner
            raise InvalidArgument(f"user {client.uid} may use this host, and only its owner may direct its agents")
        match body:
            case wire.StartAgent(pools, policies, options):
                return await self.agents.start(pools, policies, options)
            case wire.UpgradeAgent(pool, policies, options):
                return await self.agents.upgrade(pool, policies, options)
            case wire.ChangeAgent(pool, settings):
                return await self.agents.change(pool, settings)
            case wire.StopAgent(pool):
                await self.agents.stop_agent(pool)
            case wire.Trace(pool, seconds, events):
                return await self.catalog.names.pool(pool).recording.record(seconds, events)
        return None

    def _greet(self, client: Client, hello: wire.Hello) -> Any:
        if hello.protocol != wire.PROTOCOL or hello.abi != _core.ABI_VERSION:
            raise VersionMismatch(
                f"this host is Teal {__version__} (protocol {wire.PROTOCOL}, ABI {_core.ABI_VERSION}), "
                f"the client is Teal {hello.version[:40]} "
                f"(protocol {hello.protocol}, ABI {hello.abi}); run the same Teal on both sides"
            )
        client.greeted = True
        return {"version": __version__, "pid": os.getpid(), "address": self.address}

    def _open_session(self, client: Client, pool_name: str) -> Answer:
        pool = self.catalog.names.pool(pool_name)
        if pool_name in client.sessions:
            raise InvalidArgument(f"this connection has a session with pool {pool_name!r} already")
        session = pool.open_session(client.accounts.setdefault(pool_name, []))
        if not client.owner:  # users who were let in may be less urgent than the owner's clients, not more
            pool.sweeper.limit_priority(session.index, 0)
        client.sessions[pool_name] = session
        pool.seats.name_client(session.index, client.uid, client.pid)
        body = {
            "index": session.index,
            "epoch": session.epoch,
            "slots": session.slots,
            "idle_ns": pool.settings.idle_ns,
            "bytes": pool.limits.bytes,
        }
        return body, (session.fd,)

    def _open_bpf_session(self, client: Client, pool_name: str, slots: int, datagram: wire.Datagram) -> Any:
        pool = self.catalog.names.pool(pool_name)
        if len(client.bpf_sessions) >= _MOST_BPF_SESSIONS:
            raise QuotaExceeded(
                f"one more BPF session: this client has {_MOST_BPF_SESSIONS}, the most it may have; close one"
            )
        account = client.accounts.setdefault(pool_name, [])
        session = pool.open_bpf_session(datagram.take_fd(), slots, account)
        if not client.owner:
            pool.sweeper.limit_priority(session.index, 0)
        client.bpf_sessions.append((pool_name, session))
        pool.seats.name_client(session.index, client.uid, client.pid)
        return {"index": session.index, "epoch": session.epoch, "idle_ns": pool.settings.idle_ns}

    async def _close_bpf_session(self, client: Client, pool_name: str, index: int) -> None:
        for entry in client.bpf_sessions:
            name, session = entry
            if (name, session.index) == (pool_name, index):
                client.bpf_sessions.remove(entry)
                await self.pools[pool_name].close_session(session, gone=False)
                return
        raise NotFound(f"BPF session {index} with pool {pool_name[:80]!r}: not one of this connection")

    def _session(self, client: Client, pool_name: str, index: int) -> tuple[Pool, Session]:
        session = client.sessions.get(pool_name)
        if session is None or session.index != index:
            raise NotFound(f"session {index} with pool {pool_name[:80]!r}: not one of this connection")
        return self.pools[pool_name], session

    # ---- numbers -------------------------------------------------------------------------------------------------

    def statistics(self) -> dict[str, Any]:
        """Raw numbers; records.py makes records of them."""
        workers = []
        for pool in self.pools.values():
            lenders = {lent.process: lent.lender for lent in pool.lent}
            for worker in pool.everyone:
                own = {"pid": worker.pid, "pool": pool.name, "lent_by": lenders.get(worker)}
                workers.append({**pool.sweeper.worker(worker.index), **own})
        clients = []
        for client in self.listener.clients:
            for pool_name, session in client.all_sessions():
                numbers = self.pools[pool_name].sweeper.session(session.index)
                sweeper = self.pools[pool_name].sweeper
                seen = callers.summed(sweeper.client_stages(session.index).values())
                stages = {stage: seen[stage] for stage in callers.STAGES} | sweeper.bpf_stages(session.index)
                key = {"session": session.index, "epoch": session.epoch, "pool": pool_name}
                clients.append(
                    {**numbers, **key, "pid": client.pid, "uid": client.uid, "bytes": session.nbytes, "stages": stages}
                )
        pools = self.pools.values()
        return {
            "pid": os.getpid(),
            "address": self.address,
            "version": __version__,
            "descriptors": self.descriptors,
            "uptime_s": time.monotonic() - self.started,
            "workers": workers,
            "restarts": sum(pool.restarts for pool in pools),
            "failed_with_worker": sum(pool.failed for pool in pools),
            "run_again": sum(pool.again for pool in pools),
            "queued": sum(pool.sweeper.queued() for pool in pools),
            "active": sum(pool.sweeper.active() for pool in pools),
            "clients": clients,
            "models": self.catalog.names.describe_all(),
            "pools": [pool.numbers() for pool in pools],
            **self.agents.list(),
            "cache": self.cache.numbers(),
            "callers": {
                records.place(pool.name, index): numbers for pool in pools for index, numbers in pool.callers().items()
            },
            "versions": {
                records.place(pool.name, line): pool.sweeper.version(line) for pool in pools for line in pool.versions
            },
        }

    # ---- the end -------------------------------------------------------------------------------------------------

    async def stop(self, *, drain: bool = True, timeout: float = 30.0) -> None:
        """Stops taking requests, lets submitted ones finish (drain), ends the workers, then hangs up on everybody.

        Called again without ``drain`` while it waits: it waits no longer. Until then it listens, so that whoever comes
        may say so.
        """
        if self._stopping:
            for pool in self.pools.values():
                pool.hurry |= not drain
            await self.stopped.wait()
            return
        self._stopping = True
        await self.agents.stop()
        await asyncio.gather(*(pool.stop(drain=drain, timeout=timeout) for pool in self.pools.values()))
        await self.cache.close(drain=drain and timeout > 0)
        for known in self.catalog.names.known.values():
            known.forget_replaced()
        self.listener.close()
        self.listener.hang_up_on_all()
        self.stopped.set()
