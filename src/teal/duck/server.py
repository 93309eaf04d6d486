"""A duck: keeps programs and data, opens sessions for its clients, and answers questions about itself.

Theory of operation: the yard (core/box) makes and ends the processes that programs run in; the door (door.py) lets
clients of this machine in, the net (net.py) those of others. All of them ask the same things of ``obey`` here, each in
a thread of its own. A call of a session is none of these things: it goes through the session's memory, or through the
net's own loop. Nothing that a client says is believed before it was checked, and whatever it has goes when it goes.

Works as a daemon (``teal duck serve``) and inside a program:

    with teal.duck.Server(name=None) as server, server.connect() as duck:
        ...
"""

from __future__ import annotations

import logging
import os
import secrets
import threading
import time
import weakref
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from teal import _core
from teal._version import __version__
from teal.duck import blob as blobs
from teal.duck import messages
from teal.duck.arrivals import Arrivals
from teal.duck.cache import Cache
from teal.duck.door import Answer, Door
from teal.duck.journal import Journal
from teal.duck.judging import judged
from teal.duck.key import key_from, read_key
from teal.duck.ladder import RESERVE, Budget, choose
from teal.duck.link import default_address
from teal.duck.owner import Owner
from teal.duck.proof import Proof
from teal.duck.residents import Residents
from teal.duck.shelf import Shelf
from teal.duck.vitals import vitals
from teal.duck.yards import Yards
from teal.errors import InternalError, InvalidArgument, NotFound, VersionMismatch
from teal.host import argument, wire
from teal.host.cache import default_folder
from teal.host.duration import nanoseconds

if TYPE_CHECKING:
    from teal.duck.classic.hatch import Hatch
    from teal.duck.duck import Duck
    from teal.duck.net import Gate

log = logging.getLogger("teal.duck")

KINDS = ("programs", "data")
_TICK_S = 0.25  # between looks at what programs have said
_LAST_PROOFS_S = 10.0  # for what is being hashed when it stops
_FILE_SHARE = 1 << 40


class Server:
    """A duck in this process. Serves from the start; a context manager.

    ``name``: of the UNIX socket among this user's ducks; None: a random one. ``listen``: "HOST:PORT" for clients of
    other machines as well, over UDP and TCP; beyond loopback only with ``key`` (64 hexadecimal digits) or ``key_file``.
    ``multicast``: IPv4 address of the interface by which it takes data that is sent to many ducks at once (group.py).
    ``idle``: how long boxes and the network loop poll after the last call before they sleep. ``memory``: bytes that the
    duck may use [what is free]; the ladder takes a rung that fits (docs/ducks.md). ``cache``: folder for programs and
    data; None: the user's own; False: in memory only. ``sandbox``: process or kvm, of programs that do not ask; with
    ``trust_programs`` also inline: in this very process, for clients of this machine, with nothing in between.
    ``spares``: boxes kept ready. ``direct``: clients elsewhere may call boxes past this process (docs/ducks.md).
    ``classic``: HOST:PORT of JudgeDuck-OS's own protocol as well (docs/duck-classic.md),
    which has no authentication: loopback only, unless ``classic_trusted``; ``classic_buffer``: bytes of its buffer.
    Raises Busy (the name is taken), InvalidArgument, NotFound, QuotaExceeded.
    """

    def __init__(
        self,
        name: str | None = "default",
        *,
        listen: str | None = None,
        key: str | None = None,
        key_file: str | os.PathLike[str] | None = None,
        multicast: str | None = None,
        idle: float | str = "10ms",
        memory: int | None = None,
        reserve: int = RESERVE,
        cache: str | os.PathLike[str] | bool | None = None,
        sandbox: str = "process",
        trust_programs: bool = False,
        spares: int = 1,
        direct: bool = True,
        classic: str | None = None,
        classic_trusted: bool = False,
        classic_buffer: int | None = None,
    ) -> None:
        if key is not None and key_file is not None:
            raise InvalidArgument("key and key_file are given; one is enough", path="$.key_file")
        self.name = f"x{secrets.token_hex(8)}" if name is None else name
        self.idle_ns = nanoseconds(idle, "$.idle")
        self.sandbox = sandbox
        self.direct = bool(direct)
        self.started = time.time()
        self._began = time.monotonic()
        self._pid = os.getpid()
        self._guard = threading.Lock()  # guards _closed, _shelving
        self._shelving: set[threading.Thread] = set()
        self._arrivals = Arrivals()
        self._closed = False
        self.stopped = threading.Event()
        self.journal = Journal()
        log.addHandler(self.journal)
        if log.getEffectiveLevel() > logging.INFO:
            log.setLevel(logging.INFO)
        self.budget = _budget(memory, reserve)
        secret = read_key(key_file) if key_file is not None else None if key is None else key_from(key)
        if listen is not None:
            from teal.duck.net import check_listen

            check_listen(listen, secret)
        elif multicast is not None:
            raise InvalidArgument("groups are told of over connections: listen= as well", path="$.multicast")
        address = self.name if self.name.startswith("@") or "/" in self.name else default_address(self.name)
        self._gate: Gate | None = None
        self.hatch: Hatch | None = None
        folder = _folder(cache)
        self.programs = Cache("programs", self.budget.programs, _shelf(folder, "programs"))
        self.data = Cache("data", self.budget.data, _shelf(folder, "data"))
        try:
            self.yards = Yards(sandbox, spares, trusted=bool(trust_programs))
            self.residents = Residents(
                self.yards, self.programs, self.data, self.budget.sessions, self.idle_ns, self.journal
            )
            self._door = Door(address, self.obey, self.gone)
        except BaseException:
            self._close_quietly()
            raise
        try:
            if listen is not None:
                from teal.duck.net import Gate

                self._gate = Gate(self, listen, secret, multicast)
            if classic is not None:
                from teal.duck.classic.hatch import Hatch

                self.hatch = Hatch(self, classic, trusted=classic_trusted, buffer=classic_buffer)
        except BaseException:
            if self._gate is not None:
                self._gate.close()
            self._door.close()
            self._close_quietly()
            raise
        self._ticking = threading.Thread(target=self._tick, name="teal-duck-tick", daemon=True)
        self._ticking.start()
        _servers.add(self)
        log.info("duck %s: %d cores, budget %d MiB of sessions, %d of programs, %d of data", self.address,
                 len(os.sched_getaffinity(0)), *(part >> 20 for part in asdict(self.budget).values()))  # fmt: skip

    @property
    def address(self) -> str:
        """Where clients of this machine find it."""
        return self._door.address

    @property
    def listening(self) -> str | None:
        """HOST:PORT for others, or None."""
        return None if self._gate is None else self._gate.address

    def connect(self) -> Duck:
        """A client of this duck."""
        from teal.duck.duck import Duck

        return Duck(self.address)

    def close(self) -> None:
        """Ends every session and frees all. Clients get PeerDied or Closed."""
        with self._guard:
            if self._closed:
                return
            self._closed = True
        if self._pid != os.getpid():
            return
        self.stopped.set()
        self._door.close()
        if self._gate is not None:
            if self.programs.kept or self.data.kept:
                self._arrivals.wait(_LAST_PROOFS_S)  # its client was told that it is here: it is after a restart too
            self._gate.close()
        if self.hatch is not None:
            self.hatch.close()
        self._ticking.join()
        for thread in list(self._shelving):
            thread.join()
        self.residents.finish()
        self._close_quietly()
        log.info("duck %s stopped", self.address)
        log.removeHandler(self.journal)

    def _close_quietly(self) -> None:
        if (yards := getattr(self, "yards", None)) is not None:
            yards.close()
        self._arrivals.close()
        self.programs.close()
        self.data.close()
        log.removeHandler(self.journal)

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _tick(self) -> None:
        while not self.stopped.wait(_TICK_S):
            self.residents.take_logs()
            self.residents.reap()
            self._arrivals.expire()

    # ---- what clients say ------------------------------------------------------------------------------------------

    def obey(self, owner: Owner, message: messages.ClientMessage, datagram: wire.Datagram) -> Answer:
        """The answer to one message, with descriptors that stay the duck's. Raises what the client is told."""
        match message:
            case messages.Hello():
                return self._greet(owner, message), ()
            case messages.Has(kind, digests):
                cache = self._cache(kind)
                return [cache.has(digest, owner) for digest in digests], ()
            case messages.Put():
                return self._put(owner, message, datagram), ()
            case messages.Open():
                return self._open(owner, message)
            case messages.Map():
                fd = datagram.take_fd() if datagram.fds else None
                try:
                    self.residents.map(owner, message, fd)
                finally:
                    if fd is not None:
                        os.close(fd)
                return None, ()
            case messages.Close(session, kill):
                self.residents.close(owner, session, kill=kill)
                return None, ()
            case messages.Judge():
                return self._judge(message), ()
            case messages.Info():
                return self.info(), ()
            case messages.Statistics():
                return self.statistics(), ()
            case messages.Log(start, most):
                self.residents.take_logs()
                return self.journal.read(start, most), ()
            case messages.SelfTest():
                from teal.duck.selftest import selftest

                return [asdict(result) for result in selftest(self)], ()
            case messages.Forget():
                return [self.programs.forget(), self.data.forget()], ()
            case messages.Stop():
                if not owner.here:
                    raise InvalidArgument("a duck is stopped from its own machine")
                self.stopped.set()
                return None, ()
        raise InternalError(f"no answer to {type(message).__name__}")

    def gone(self, owner: Owner) -> None:
        """A client has left, or died: so do its sessions."""
        ended = self.residents.close_all(owner)
        if ended:
            log.info("%s is gone: %d session(s) ended", owner.label, ended)

    def _greet(self, owner: Owner, hello: messages.Hello) -> dict[str, Any]:
        if hello.protocol != messages.PROTOCOL:
            raise VersionMismatch(
                f"the client speaks duck protocol {hello.protocol} (teal {hello.version[:40]}), this duck "
                f"{messages.PROTOCOL} (teal {__version__})"
            )
        owner.greeted = True
        if hello.name:
            owner.label = f"{hello.name[:40]} ({owner.label})"
        return {"pid": os.getpid(), "version": __version__, "name": self.name, "cores": len(os.sched_getaffinity(0)),
                "isa": _core.isa(), "sandbox": self.sandbox, "memory": asdict(self.budget)}  # fmt: skip

    def _cache(self, kind: str) -> Cache:
        if kind not in KINDS:
            raise InvalidArgument(f"{kind[:40]!r}, expected one of {KINDS}", path="$.kind")
        return self.programs if kind == "programs" else self.data

    def _put(self, owner: Owner, message: messages.Put, datagram: wire.Datagram) -> str:
        cache = self._cache(message.kind)
        if datagram.fds:
            fd = datagram.take_fd()
            try:
                blob = blobs.from_file(fd, message.nbytes, lambda: not self.stopped.is_set())
            finally:
                os.close(fd)
        else:
            found = self._arrivals.take(owner, message.digest or "")
            if found is None:
                if message.digest is not None and cache.has(message.digest, owner):
                    return message.digest
                raise NotFound(f"{message.kind} blob {(message.digest or '?')[:16]}… did not arrive; send it again")
            blob = found
        if message.digest is not None and blob.digest != message.digest:
            blob.close()
            raise InvalidArgument(f"the blob's SHA-256 is {blob.digest}, not what was announced", path="$.digest")
        kept = cache.add(blob)
        cache.release(kept)
        return kept.digest

    def arrived(self, blob: blobs.Blob) -> None:
        """A blob came over the wire; a Put says what it is. ``checked`` follows if it has a proof."""
        self._arrivals.add(blob)

    def checked(self, digest: str, connection: int, *, good: bool) -> None:
        """Its SHA-256 is known. If it is another one, its sender's connection has ended."""
        if (proof := self._arrivals.settle(digest, connection, good=good)) is None:
            return
        if not good:
            log.warning("a blob is not what its SHA-256 says: who sent it is thrown out")
        # It may be written to disk, which takes a while.
        thread = threading.Thread(target=self._shelve, args=(digest, proof), name="teal-duck-shelf", daemon=True)
        with self._guard:
            self._shelving.add(thread)
            thread.start()

    def _shelve(self, digest: str, proof: Proof) -> None:
        try:
            for cache in (self.programs, self.data):
                cache.proven(digest, proof)
        finally:
            with self._guard:
                self._shelving.discard(threading.current_thread())

    def _open(self, owner: Owner, order: messages.Open) -> Answer:
        if (order.sandbox or self.sandbox) == "inline" and not owner.here:
            raise InvalidArgument("sandbox 'inline' is for clients of the duck's own machine", path="$.sandbox")
        offer = None
        if self._gate is not None and not owner.here and self.direct:
            offer = self._gate.offer(owner, order.direct)
        resident = self.residents.open(owner, order, offer)
        if not self.direct:
            resident.indirect = "this duck was started without (--no-direct)"
        facts: Mapping[str, int] = resident.box.facts
        if self._gate is not None and not owner.here:
            try:
                self._gate.attach(owner, resident)
            except BaseException:
                self.residents.close(owner, resident.number, kill=True)
                raise
        body = {
            "session": resident.number,
            "facts": dict(facts),
            "pid": facts["box_pid"],
            "sandbox": order.sandbox or self.sandbox,
            "wire": resident.wire,
            "name": order.name,
            "direct": None if offer is None or resident.indirect else [offer.port, offer.id],
            "indirect": resident.indirect,
        }
        return body, (resident.box.control_fd, resident.box.fate_fd) if owner.here else ()

    def _judge(self, order: messages.Judge) -> dict[str, Any]:
        yard = self.yards.get(order.sandbox)
        with (
            self.programs.using(order.program) as program,
            self.residents.holding(order.memory + 2 * order.output),
        ):
            ready = self.residents.program(program, "", duckinfo=order.abi == "duckinfo")
            if order.stdin is None:
                return judged(yard, ready, order, None)
            with self.data.using(order.stdin) as given:
                return judged(yard, ready, order, given)

    # ---- what it says of itself --------------------------------------------------------------------------------------

    def info(self) -> dict[str, Any]:
        """Its machine, its versions, its budget, its sessions."""
        return {
            "name": self.name,
            "address": self.address,
            "listening": self.listening,
            "pid": os.getpid(),
            "version": __version__,
            "protocol": messages.PROTOCOL,
            "started": self.started,
            "uptime": time.monotonic() - self._began,
            "sandbox": self.sandbox,
            "idle_ns": self.idle_ns,
            "direct": self.direct,
            "vitals": asdict(vitals()),
            "budget": asdict(self.budget),
            "guards": [
                {"sandbox": kind, "name": name, "used": used, "detail": detail}
                for kind, yard in self.yards.there().items()
                for name, used, detail in yard.report()
            ],
            "sessions": self.residents.rows(),
        }

    def statistics(self) -> dict[str, Any]:
        """Counters since it started."""
        return {
            "uptime": time.monotonic() - self._began,
            "clients": self._door.clients + (0 if self._gate is None else self._gate.clients),
            "sessions": self.residents.numbers(),
            "programs": asdict(self.programs.numbers()),
            "data": asdict(self.data.numbers()),
            "yards": {kind: yard.statistics() for kind, yard in self.yards.there().items()},
            "net": None if self._gate is None else self._gate.figures(),
            "classic": None if self.hatch is None else self.hatch.statistics(),
        }  # fmt: skip


def _budget(memory: int | None, reserve: int) -> Budget:
    if memory is None:
        return choose(_core.available_memory(), reserve)
    return choose(argument.whole(memory, 1, _FILE_SHARE, "$.memory"), 0)


def _folder(cache: str | os.PathLike[str] | bool | None) -> Path | bool | None:
    if cache is False:
        return False
    if cache is None or cache is True:
        found = default_folder()
        return None if found is None else found / "ducks"
    return Path(cache)


def _shelf(folder: Path | bool | None, kind: str) -> Shelf:
    if isinstance(folder, bool):
        return Shelf(None, wanted=False)
    return Shelf(None if folder is None else folder / kind)


_servers: weakref.WeakSet[Server] = weakref.WeakSet()


def _forget_in_child() -> None:
    for server in list(_servers):
        server._door.forget()


os.register_at_fork(after_in_child=_forget_in_child)
