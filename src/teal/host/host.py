"""The host as a person meets it: embedded in this process, or reached through its socket.

Theory of operation: ``teal.Host()`` runs a Daemon on an event loop in a thread of its own (embedded.py) and connects to
it through its socket like any other client, so there is one way to talk to a host. ``teal.connect()`` is the same
object without the daemon, and imports nothing of it.
"""

from __future__ import annotations

import contextlib
import math
import os
import secrets
import weakref
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from numpy.typing import DTypeLike

from teal import _core
from teal._version import __version__
from teal.errors import Closed, InvalidArgument, TealError
from teal.host import address as addresses
from teal.host import argument, engines, wire
from teal.host import repository as files
from teal.host.connection import Connection
from teal.host.defaults import CACHE_BYTES, DEFAULT_POOL
from teal.host.duration import nanoseconds
from teal.host.event import Event
from teal.host.limits import Limits
from teal.host.model import Model, info_of
from teal.host.records import (
    CacheStatistics,
    ClientStatistics,
    Histogram,
    HostStatistics,
    ModelInfo,
    Verified,
    WorkerStatistics,
    filled,
    pools_of,
)
from teal.tune import choice as tuning

if TYPE_CHECKING:
    from teal.host.agent_view import Agents, AgentStatistics
    from teal.host.embedded import Embedded


class Host:
    """A host of resident models: embedded (``with teal.Host() as host:``), or attached (``teal.connect()``).

    name: others can connect to ``host.address``; without a name it is one nobody can guess by accident.
    workers: processes that run kernels. idle: longest time a worker spins for work before it sleeps ("200us", or
    seconds).
    threads: of engines, per model; default: all usable cores. cores: pin workers to these. limits: quotas per client.
    repository: folder of models that ``load(name)`` finds by name; then nothing outside it is read.
    batch, delay: requests of models whose inputs and outputs all begin with one symbolic dimension run together, up to
    so many rows; the first of them waits at most ``delay`` ("1ms", or seconds; 0: only what waits already). Their
    models compute each row by itself, or this makes them wrong.
    quantum: time that a request has ("50us", or seconds; at least 20us) before it gives way to others that are as
    urgent, if its kernel can be preempted (docs/preemption.md); 0: it runs to its end.
    pools: more of them beside "default", as in ``{"fast": {"workers": 2, "idle": "1ms", "cores": [1, 2]}}``: workers,
    idle, threads, cores, memory, keep, spares, batch, delay, quantum, and a client's bytes, in_flight and slots; what
    a pool does not say is as above. Each has workers, memory and sessions of its own. ``helps`` names others whose
    requests a pool runs as well, when it has nothing to do and they have no free worker (docs/models.md).
    memory: bytes that the models of a pool may take; beyond it those used least recently are parked, and brought back
    when somebody calls them (docs/models.md).
    keep: how many replaced versions of a name stay as files, so that rollback() can bring them back.
    cache: where what engines optimised is kept for the next start of a host: a folder, True (`~/.cache/teal`) or False
    (nowhere); it is used if nobody else can write there. cache_bytes: how much of it; those used least recently go.
    spares: workers of a pool that have started and hold the engines' models, to take the place of one that dies.
    policy: of an agent that schedules the pool's requests from a process of its own, such as "shinjuku:quantum=50us",
    "my/policy.py:Mine" or "package.module:Mine" (docs/agents.md); agents can be started later too (``host.agents``).
    agents: so many of them share a pool, each with workers of its own (at most 4). link: what it is spoken to over
    ("shm", or emulated "pcie", "cxl"). agent_core: a core of its own, or one for each. placement:
    "offload" (there), "host" (on the workers' cores), "auto" (moved by load). max_wait: longest that a request waits
    for its decision while a worker has nothing to do, before the pool goes on without the agent ("50ms");
    max_overtaken: and so it does when one waits while another of no higher priority runs that came so much later
    ("30s"; 0: at any time). heartbeat: longest that its heart may stand still meanwhile ("50ms"). come_back: an agent
    whose heart stood still is taken back when it beats again within so long ("2s"). local_fast_path: a request that
    finds an idle worker and nobody waiting runs at once. agent_memory: bytes that the policy may add.
    A pool's settings may have all of these too.
    It raises this process's soft limit of open files to the hard one.
    Raises Busy when another host has the name, InvalidArgument, PeerDied when a worker does not start.
    """

    def __init__(
        self,
        name: str | None = None,
        *,
        workers: int = 1,
        idle: str | float = "200us",
        threads: int | None = None,
        cores: Sequence[int] | None = None,
        limits: Limits | None = None,
        repository: str | os.PathLike[str] | None = None,
        pools: Mapping[str, Mapping[str, Any]] | None = None,
        memory: int | None = None,
        keep: int = 1,
        spares: int = 0,
        batch: int = 1,
        delay: str | float = 0,
        quantum: str | float = 0,
        policy: str | None = None,
        agents: int | None = None,
        link: str | None = None,
        agent_core: int | Sequence[int] | None = None,
        placement: str | None = None,
        max_wait: str | float | None = None,
        max_overtaken: str | float | None = None,
        heartbeat: str | float | None = None,
        come_back: str | float | None = None,
        local_fast_path: bool | None = None,
        agent_memory: int | None = None,
        cache: str | os.PathLike[str] | bool = True,
        cache_bytes: int = CACHE_BYTES,
    ) -> None:
        argument.optional(name, str, "$.name", "the name of a host")
        # A process number alone is not unique where containers share a network namespace.
        own = f"embedded-{os.getpid()}-{secrets.token_hex(4)}"
        address = addresses.default_address(own if name is None else name)
        # Only here: those who attach to a host do not pay for what a host is made of.
        from teal.host.embedded import Embedded
        from teal.host.settings import daemon_arguments

        self._thread: Embedded | None = Embedded(
            daemon_arguments(
                address,
                workers=workers,
                idle=idle,
                threads=threads,
                cores=cores,
                limits=limits,
                repository=repository,
                pools=pools,
                memory=memory,
                keep=keep,
                spares=spares,
                batch=batch,
                delay=delay,
                quantum=quantum,
                agent={
                    "policy": policy,
                    "agents": agents,
                    "link": link,
                    "agent_core": agent_core,
                    "placement": placement,
                    "max_wait": max_wait,
                    "max_overtaken": max_overtaken,
                    "heartbeat": heartbeat,
                    "come_back": come_back,
                    "local_fast_path": local_fast_path,
                    "agent_memory": agent_memory,
                },
                cache=cache,
                cache_bytes=cache_bytes,
            )
        )
        try:
            self._attach(Connection(address))
        except BaseException:
            self._thread.stop(drain=False, timeout=0)
            raise

    def _attach(self, connection: Connection) -> None:
        self._connection = connection
        # Workers are children: they must go before the interpreter does, with or without close().
        self._finalizer = weakref.finalize(self, _close, connection, self._thread)

    @classmethod
    def _attached(cls, address: str | None, timeout: float, idle_ns: int | None) -> Host:
        host = cls.__new__(cls)
        host._thread = None
        host._attach(Connection(address, timeout, idle_ns))
        return host

    @property
    def address(self) -> str:
        """What other processes give to teal.connect()."""
        return self._connection.address

    @property
    def embedded(self) -> bool:
        """Does the host run in this process?"""
        return self._thread is not None

    # ---- models --------------------------------------------------------------------------------------------------

    def load(
        self,
        name: str,
        source: str | os.PathLike[str] | None = None,
        *,
        version: int | None = None,
        kernel: str | None = None,
        idempotent: bool | None = None,
        threads: int | None = None,
        idle: str | float | None = None,
        pool: str | None = None,
        timeout: float = wire.LOAD_TIMEOUT,
        options: dict[str, str] | None = None,
        device: str | None = None,
        path: str | None = None,
        digest: str | None = None,
        precision: str | None = None,
        concurrency: int | None = None,
        tuned: bool | None = None,
    ) -> Model:
        """Makes a model resident and returns it once every worker of the pool can run it.

        source: path of an .onnx, .xml (OpenVINO's, with its .bin beside it), .pt2 (torch.export), .safetensors
        (docs/systems.md) or .elf file (docs/ducks.md), "builtin:identity" (sum, sleep, spin),
        "package.module:callable", or None for the host's repository.
        version: pins this number beside the others; without it the new version replaces the current one under load,
        losing no request.
        kernel: onnx, openvino, torch, systems, elf, function or builtin, when the source does not say (docs/models.md).
        idempotent: run again if a worker dies under it (default: if pure).
        threads: of the engine. idle: longest spin of workers and this model's callers, if above the host's.
        pool: whose workers run it; default: the pool that the name is in, else "default". A name is unique on the host,
        and in one pool at a time. options: of the engine, by name. precision: "fp32" (default: what the file says, no
        less) or "bf16" (float32 arithmetic may be done in bfloat16, where engine and CPU can).
        device: where a systems load runs, as teal.device.open() takes it ("opencl", "opencl:pocl", "cuda"), or one of
        OpenVINO's ("GPU", "NPU"); default: the CPU. path: "apk" (a resident kernel, called directly), "pl" (a launch
        each), "cpu", or "auto" (default: by batch; docs/devices.md).
        digest: SHA-256 that the file must have (of an .xml: that of its .bin and itself, in this order); a repository
        also honours FILE.sha256 beside a file.
        concurrency: workers of the pool that run this name at once, at most, so that a long model leaves some to the
        others; default: any number. It holds for all versions of the name, as the load that came last says.
        tuned: what `teal tune` kept for this file on this machine is used for kernel, precision and threads if these
        are left open, and said in ``model.statistics().note``; False: it is not; True: it must be there.
        timeout: seconds; a load that takes longer is given up, and workers that sit in it are replaced once they have
        finished what they run.
        Raises NotFound, InvalidArgument (a file that is not a model), QuotaExceeded, KernelFailed, PeerDied (it
        killed the worker), DeadlineExceeded (timeout).
        """
        message = wire.Load(
            files.check_name(name),
            argument.path_of(source, "$.source", "a path, builtin:NAME or package.module:function"),
            argument.optional(kernel, str, "$.kernel", engines.KINDS),
            argument.optional(version, int, "$.version", "a whole number"),
            argument.optional(pool, str, "$.pool", "the name of a pool"),
            argument.optional(idempotent, bool, "$.idempotent", "True, False or None"),
            argument.optional(threads, int, "$.threads", "a whole number"),
            None if idle is None else nanoseconds(idle, "$.idle"),
            timeout=argument.seconds(timeout, "$.timeout"),
            options=_engine_options(options),
            device=argument.optional(device, str, "$.device", "the name of a device"),
            path=argument.optional(path, str, "$.path", "cpu, apk, pl or auto"),
            digest=argument.optional(digest, str, "$.digest", "a SHA-256 in hexadecimal"),
            precision=argument.optional(precision, str, "$.precision", "fp32 or bf16"),
            concurrency=argument.optional(concurrency, int, "$.concurrency", "a whole number"),
        )
        tuning.apply(message, argument.optional(tuned, bool, "$.tuned", "True, False or None"))
        fds = _with_file(message)
        try:
            described, _ = self._connection.ask(message, fds)
        except InvalidArgument as error:
            if message.source is not None and not fds and error.path == "$.has_file":
                files.open_file(message.source, 1 << 46)  # says why
            raise
        finally:
            for fd in fds:
                os.close(fd)
        return Model(self, described, pinned=version is not None)

    def model(self, name: str, version: int | None = None) -> Model:
        """A loaded model, by name; with ``version`` calls stay with that version. Raises NotFound."""
        number = argument.optional(version, int, "$.version", "a whole number")
        return Model(self, self._ask(wire.Lookup(files.check_name(name), number)), pinned=version is not None)

    def unload(self, name: str, version: int | None = None, *, force: bool = False) -> None:
        """Unloads one version, or all of a name. Requests in flight finish first; ``force`` cancels waiting ones.

        Returns when the workers have given the memory back. Raises NotFound.
        """
        number = argument.optional(version, int, "$.version", "a whole number")
        self._ask(wire.Unload(files.check_name(name), number, bool(force)))

    def rollback(self, name: str, version: int | None = None, *, timeout: float = wire.LOAD_TIMEOUT) -> Model:
        """Makes an earlier version current again, under load and without losing a request.

        version: a loaded one, or one that was replaced and is kept (``keep=``); default: the one that was replaced
        last. What it replaces is kept in turn, so that rolling back twice is where one was.
        Raises NotFound (no such version is kept), and what ``load`` raises.
        """
        number = argument.optional(version, int, "$.version", "a whole number")
        seconds = argument.seconds(timeout, "$.timeout")
        return Model(self, self._ask(wire.RollBack(files.check_name(name), number, seconds)), pinned=False)

    def models(self) -> list[ModelInfo]:
        """Every loaded version."""
        return [info_of(described) for described in self._ask(wire.ListModels())]

    def verify(self, name: str | None = None, version: int | None = None) -> list[Verified]:
        """Reads the resident files of one model, or of all, anew and compares them with what was loaded.

        What differs is also in the host's log as an error. Raises NotFound.
        """
        known = None if name is None else files.check_name(name)
        number = argument.optional(version, int, "$.version", "a whole number")
        return [Verified(**found) for found in self._ask(wire.Verify(known, number))]

    def event(self, pool: str = "default") -> Event:
        """An event for ``model.submit(..., after=event)``; it comes when ``event.signal()`` is called.

        Raises QuotaExceeded, NotFound (no such pool), Closed.
        """
        self._connection.check_not_forked()
        if self._connection.closed:
            raise Closed("the connection to the host is closed")
        return Event(self._connection.session(pool))

    # ---- agents --------------------------------------------------------------------------------------------------

    @property
    def agents(self) -> Agents:
        """The agents of this host: start, upgrade, change and stop them, and see how they do."""
        from teal.host.agent_view import Agents

        return Agents(self._ask)

    def start_agent(self, pool: str | Sequence[str], policy: str | Sequence[str], **options: Any) -> AgentStatistics:
        """``host.agents.start``."""
        return self.agents.start(pool, policy, **options)

    # ---- memory --------------------------------------------------------------------------------------------------

    def empty(
        self,
        shape: int | Sequence[int],
        dtype: DTypeLike = "float32",
        *,
        pages: str = "best",
        pool: str = DEFAULT_POOL,
    ) -> _core.Tensor:
        """A zeroed tensor in this client's shared memory. pages: small, best or huge (2 MiB).

        shape: extents, or one for a vector. dtype: a name, or NumPy's (``np.int8``; ml_dtypes' too).
        pool: whose models take it where it is (``model.info.pool``); those of another get a copy, which is counted.
        Raises QuotaExceeded, InvalidArgument, NotFound (no such pool).
        """
        self._connection.check_not_forked()
        if self._connection.closed:
            raise Closed("the connection to the host is closed")
        extents, name = argument.shape(shape, "$.shape"), argument.dtype(dtype, "$.dtype")
        session = self._connection.session(argument.one_of(pool, str, "$.pool", "the name of a pool"))
        size = _core.dtype_size(name) * math.prod(extents)
        return session.with_room(lambda: session.core.allocate(name, extents), size, pages)

    # ---- numbers -------------------------------------------------------------------------------------------------

    def _ask(self, message: Any) -> Any:
        return self._connection.ask(message)[0]

    def _raw_statistics(self) -> dict[str, Any]:
        raw: dict[str, Any] = self._ask(wire.Statistics())
        return raw

    def _trace(self, pool: str, seconds: float, events: int) -> dict[str, Any]:
        found: dict[str, Any] = self._ask(wire.Trace(pool, seconds, events))
        return found

    def statistics(self) -> HostStatistics:
        """Workers, clients, models and what happened so far, as one frozen record."""
        raw = self._raw_statistics()
        pages = max((session.core.page_bytes for session in self._connection.sessions.values()), default=4096)
        return filled(
            HostStatistics,
            raw,
            pools=pools_of(raw),
            workers=tuple(filled(WorkerStatistics, worker) for worker in raw["workers"]),
            clients=tuple(
                filled(ClientStatistics, client, stages={name: Histogram.of(b) for name, b in client["stages"].items()})
                for client in raw["clients"]
            ),
            models=tuple(info_of(described) for described in raw["models"]),
            cache=filled(CacheStatistics, raw["cache"]),
            page_bytes=pages,
        )

    # ---- the end -------------------------------------------------------------------------------------------------

    def stop(self, *, drain: bool = True, timeout: float = 30.0) -> None:
        """Stops the host, wherever it runs: new requests are refused, submitted ones finish (``drain``)."""
        if self._thread is not None:
            self.close(drain=drain, timeout=timeout)
            return
        self._ask(wire.Stop(bool(drain), argument.seconds(timeout, "$.timeout")))
        self._connection.close()

    def close(self, *, drain: bool = True, timeout: float = 30.0) -> None:
        """Embedded: stops the host. Attached: hangs up. Views of tensors in this process stay readable."""
        if self._thread is not None:
            self._thread.stop(drain=bool(drain), timeout=argument.seconds(timeout, "$.timeout"))
        self._connection.close()
        self._finalizer.detach()

    def __enter__(self) -> Host:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        raise TypeError("a teal.Host belongs to its process; give host.address, and teal.connect(address) there")

    def __repr__(self) -> str:
        state = " closed" if self._connection.closed else ""
        return f"<teal.Host {'embedded' if self.embedded else 'attached'} at {self.address}{state}, Teal {__version__}>"


def _engine_options(options: object) -> dict[str, str]:
    given = argument.mapping({} if options is None else options, "$.options", "a mapping of names to text")
    expected = "text, as the engine takes it"
    return {name: argument.one_of(value, str, f"$.options[{name[:60]!r}]", expected) for name, value in given.items()}


def _with_file(message: wire.Load) -> tuple[int, ...]:
    """Descriptors to send along: the files of a model that is read from some, if they are here."""
    source = message.source
    if source is None or (message.kernel or files.kernel_kind(source)) not in files.FILE_KINDS.values():
        return ()
    fds: tuple[int, ...] = ()
    with contextlib.suppress(TealError):  # it may exist for the host only, in its repository
        fds = (files.open_file(source, 1 << 46),)
    message.has_file = bool(fds)
    beside = engines.weights_beside(source)
    if fds and beside is not None and os.path.exists(beside):
        try:
            fds = (*fds, files.open_file(beside, 1 << 46))
        except BaseException:
            os.close(fds[0])
            raise
        message.has_weights = True
    if os.path.exists(source):
        message.source = os.path.abspath(source)
    return fds


def _close(connection: Connection, thread: Embedded | None) -> None:
    if thread is not None:
        thread.stop(drain=False, timeout=0)
    connection.close()


def connect(address: str | None = None, *, timeout: float = 5.0, idle: str | float | None = None) -> Host:
    """Attaches to a running host: this user's (``teal serve``), or the one at ``address`` (``host.address``).

    idle: longest time a call of this process spins for its answer before it sleeps ("50ms", or seconds). Without it
    what the host and the model say ("200us"), and a call that is known to be longer sleeps through its middle. A caller
    that spins all the way keeps a core busy, and comes back to warm caches: some 5 µs sooner. The environment variable
    TEAL_HOST overrides the default address. Raises NotFound, VersionMismatch, InvalidArgument.
    """
    argument.optional(address, str, "$.address", "the address of a host, or None for this user's")
    if not argument.seconds(timeout, "$.timeout") > 0:
        raise InvalidArgument(f"{timeout}, expected more than 0 seconds", path="$.timeout")
    return Host._attached(address, timeout, None if idle is None else nanoseconds(idle, "$.idle"))
