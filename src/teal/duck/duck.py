"""A duck as its clients see it: open programs, call them, ask how it does.

    with teal.Duck() as duck, duck.open("prog.elf") as session:
        answer = session.call(b"arguments")

Theory of operation: the client hashes what it sends (programs, input buffers) and asks the duck first whether it has
it; so a program or a blob crosses the wire once. On one machine nothing crosses anything: descriptors do.
"""

from __future__ import annotations

import contextlib
import os
import weakref
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from teal._core import Tensor
from teal.duck import blob as blobs
from teal.duck import messages
from teal.duck.key import key_from, read_key
from teal.duck.lent import Lent
from teal.duck.link import Link, Near, default_address
from teal.duck.session import Session
from teal.duck.shared import Place, Segments, address_of
from teal.errors import Closed, InvalidArgument, NotFound
from teal.host import argument
from teal.host.duration import nanoseconds

_SELF_TEST_S = 120.0
_LONGEST_RUN = 500 * 10**9  # ns of CPU time


@dataclass(frozen=True, slots=True)
class Blob:
    """Data that a duck has, by its SHA-256. Made by ``duck.put``; give it to ``session.map``."""

    digest: str
    nbytes: int


class Duck:
    """A connection to a duck. Thread-safe; a context manager.

    ``address``: a name (`teal duck serve --name`), "@abstract" or a path, for this user's ducks on this machine; or
    "HOST:PORT" of one elsewhere, with its ``key`` (64 hexadecimal digits) or ``key_file``; None: $TEAL_DUCK, or else
    this user's duck. ``tcp``: over TCP instead of UDP. ``timeout``: seconds that connecting may take.
    Raises NotFound (nobody there), InvalidArgument (key), VersionMismatch, PeerDied.
    """

    def __init__(
        self,
        address: str | None = None,
        *,
        key: str | None = None,
        key_file: str | os.PathLike[str] | None = None,
        tcp: bool = False,
        timeout: float = 5.0,
    ) -> None:
        if key is not None and key_file is not None:
            raise InvalidArgument("key and key_file are given; one is enough", path="$.key_file")
        address = address or os.environ.get("TEAL_DUCK") or None
        self._pid = os.getpid()
        self._segments = Segments()
        self._sessions: weakref.WeakSet[Session] = weakref.WeakSet()
        self._dropped: deque[tuple[int, bool]] = deque()  # sessions that nobody held any more, and whether they ran
        self._once = 0
        self._link: Link
        if _is_far(address):
            from teal.duck.far import Far

            secret = read_key(key_file) if key_file is not None else None if key is None else key_from(key)
            assert address is not None
            self._link = Far(address, secret, bool(tcp), argument.seconds(timeout, "$.timeout"))
        else:
            if key is not None or key_file is not None:
                raise InvalidArgument(
                    "a duck on this machine knows its user and takes no key; leave it out", path="$.key"
                )
            self._link = Near(_near_address(address), argument.seconds(timeout, "$.timeout"))

    @property
    def address(self) -> str:
        """Where it is."""
        return self._link.address

    # ---- programs and data -------------------------------------------------------------------------------------------

    def open(
        self,
        program: str | os.PathLike[str] | bytes,
        *,
        cores: int = 1,
        ob: int | str = "1MiB",
        args: int | str = 4096,
        idle: float | str | None = None,
        timeout: float | str | None = None,
        memory: int | str | None = None,
        sandbox: str | None = None,
        name: str | None = None,
        restart: bool = True,
        cancel: str = "wait",
    ) -> Session:
        """Makes a program resident (a path, or the bytes of an ELF file), and returns once its duck_init() has.

        ``cores``: that enter duck_call() together. ``ob``: size of the output buffer; ``args``: of the longest
        arguments; ``memory``: what the program may have beside its image and these. ``idle``: how long it polls after a
        call before it sleeps [the duck's]. ``timeout``: bound of one call, after which the program is ended [none].
        ``restart``: after the program died the next call opens it anew. ``cancel``: what becomes of a call that was
        given up: "wait" lets it run to its end, "kill" ends the program.
        Raises NotFound, InvalidArgument, QuotaExceeded, KernelFailed (duck_init() refused), PeerDied.
        """
        if cancel not in ("wait", "kill"):
            raise InvalidArgument(f"{cancel!r}, expected wait or kill", path="$.cancel")
        self._close_dropped()
        blob, called = self._program(program)
        order = messages.Open(
            blob.digest,
            (name or called)[:200],
            argument.whole(cores, 1, messages.MOST_CORES, "$.cores"),
            _size(ob, 0, messages.MOST_OB, "$.ob"),
            max(messages.LEAST_ARGS, _size(args, 0, messages.MOST_ARGS, "$.args")),
            None if idle is None else nanoseconds(idle, "$.idle"),
            0 if timeout is None else nanoseconds(timeout, "$.timeout"),
            0 if memory is None else _size(memory, 0, 1 << 40, "$.memory"),
            sandbox,
        )
        try:
            session = Session(self, order, blob, restart=bool(restart), kill=cancel == "kill")
        except BaseException:
            blob.close()
            raise
        self._sessions.add(session)
        return session

    def _close_dropped(self) -> None:
        while self._dropped:
            number, busy = self._dropped.popleft()
            with contextlib.suppress(Closed, ConnectionError, NotFound):
                self._link.ask(messages.Close(number, kill=busy))

    def empty(self, shape: int | tuple[int, ...], dtype: str = "uint8") -> Tensor:
        """Zeros in shared memory that ``session.map`` hands to a program where they are, without a copy."""
        extents = (shape,) if isinstance(shape, int) else tuple(shape)
        return self._segments.empty(dtype, extents)

    def put(self, x: Any) -> Blob:
        """Leaves data (a packed array, bytes, or a path) with the duck, which keeps it under its SHA-256.

        It is copied once; a duck that has it already is not sent it again. Raises InvalidArgument, NotFound,
        QuotaExceeded.
        """
        blob = self._data(x)
        try:
            self._link.put("data", blob)
        finally:
            blob.close()
        return Blob(blob.digest, blob.nbytes)

    def _program(self, program: str | os.PathLike[str] | bytes) -> tuple[blobs.Blob, str]:
        if isinstance(program, (bytes, bytearray, memoryview)):
            return blobs.from_bytes(program), "program"
        path = argument.path_of(program, "$.program", "a path, or the bytes of an ELF file")
        if path is None:
            raise argument.wrong(program, "$.program", "a path, or the bytes of an ELF file")
        return self._file(path), os.path.basename(path)

    def _file(self, path: str) -> blobs.Blob:
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise NotFound(f"{path}: {error.strerror}") from None
        try:
            return blobs.from_file(fd)
        except OSError as error:
            raise NotFound(f"{path}: {error.strerror}") from None
        finally:
            os.close(fd)

    def _data(self, x: Any) -> blobs.Blob | Lent:
        if isinstance(x, (str, os.PathLike)):
            return self._file(os.fspath(x))
        try:
            view = memoryview(x)
            if "O" in (view.format or ""):
                raise TypeError("it holds Python objects")
            view = view.cast("B")
            return blobs.from_bytes(view) if self._link.near else Lent(view)
        except (TypeError, ValueError) as error:
            raise InvalidArgument(
                f"{type(x).__name__}: {error}; expected a packed array, bytes or a path", path="$.x"
            ) from None

    # ---- input buffers -----------------------------------------------------------------------------------------------

    def _resolved(self, x: Any) -> Any:
        """What map() does with it: None, a Place (shared memory), a Blob (the duck has it), or "copy"."""
        if x is None or isinstance(x, Blob):
            return x
        if self._link.near and not isinstance(x, (str, bytes, os.PathLike)) and (found := address_of(x)) is not None:
            place = self._segments.find(*found)
            if place is not None and place.offset == 0:
                return place
        return "copy"

    def _map(self, order: messages.Map, what: Any, x: Any) -> int:
        """Returns the bytes that were copied."""
        copied, fd, mine = 0, None, None
        if isinstance(what, Place):
            order.segment, order.nbytes, fd = what.segment, what.nbytes, what.fd
        elif what is not None and not isinstance(what, Blob):
            if self._link.near and not isinstance(x, (str, os.PathLike)):
                mine = self._data(x)
                assert isinstance(mine, blobs.Blob)  # it is on this machine
                self._once += 1
                order.segment, order.once = 1 << 30 | self._once % (1 << 30), True
                order.nbytes, fd, copied = mine.nbytes, mine.fd, mine.nbytes
            else:  # worth keeping, under its digest
                what = self.put(x)
                copied = what.nbytes
        if isinstance(what, Blob):
            order.digest, order.nbytes = what.digest, what.nbytes
        try:
            self._link.map(order, fd)
        finally:
            if mine is not None:
                mine.close()
        return copied

    # ---- judged runs -------------------------------------------------------------------------------------------------

    def judge(
        self,
        program: str | os.PathLike[str] | bytes,
        *,
        stdin: Any = None,
        time: float | str = "1s",
        memory: int | str = "256MiB",
        output: int | str = "16MiB",
        abi: str = "linux",
    ) -> dict[str, Any]:
        """Runs a program once, from zero, and returns the run record with ``stdout`` and ``stderr`` (docs/ducks.md).

        ``stdin``: bytes or a path. ``abi``: linux (an ordinary static program) or duckinfo. What the program does, or
        fails to do, is in the record's status. Raises NotFound, InvalidArgument, QuotaExceeded, PeerDied.
        """
        limit = nanoseconds(time, "$.time")
        if not 0 < limit <= _LONGEST_RUN:
            raise InvalidArgument(f"{time!r}, expected more than nothing, and at most 500s", path="$.time")
        blob, called = self._program(program)
        try:
            self._link.put("programs", blob)
        finally:
            blob.close()
        given = None if stdin is None else self.put(stdin).digest
        order = messages.Judge(
            blob.digest,
            limit,
            _size(memory, 1 << 16, 1 << 40, "$.memory"),
            given,
            _size(output, 1, 1 << 25, "$.output"),
            abi,
        )
        try:
            found: dict[str, Any] = self._link.ask(order, timeout=30.0 + limit / 1e9 * 3)
        except InvalidArgument as error:  # the duck knows the program by its digest only
            raise InvalidArgument(str(error).replace(f"program {blob.digest[:16]}", called)) from None
        return found

    # ---- questions ---------------------------------------------------------------------------------------------------

    def info(self) -> dict[str, Any]:
        """Machine, versions, budget, what confines programs, sessions."""
        found: dict[str, Any] = self._link.ask(messages.Info())
        return found

    def statistics(self) -> dict[str, Any]:
        """The duck's counters, and this connection's under "client"."""
        found: dict[str, Any] = self._link.ask(messages.Statistics())
        link = self._link
        found["client"] = {"sent_bytes": link.sent_bytes, "skipped_bytes": link.skipped_bytes, **link.figures()}
        return found

    def log(self, start: int = -32768, most: int = 32768) -> tuple[int, str, int]:
        """(position, text, position after it) of its log; a negative ``start`` counts from the end."""
        at, text, after = self._link.ask(messages.Log(start, most))
        return int(at), str(text), int(after)

    def selftest(self) -> list[Mapping[str, Any]]:
        """Runs real programs in each of its back ends. Rows of name, outcome (PASS, FAIL, CAUTION), detail, fix."""
        found: list[Mapping[str, Any]] = self._link.ask(messages.SelfTest(), timeout=_SELF_TEST_S)
        return found

    def ping(self) -> float:
        """Seconds of one round trip to the duck: its daemon on this machine, its network loop elsewhere."""
        return self._link.ping()

    def forget(self) -> None:
        """Empties the duck's caches of what no session uses, on disk too."""
        self._link.ask(messages.Forget())

    # ---- end ---------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Hangs up: the duck ends this client's sessions. Views of answers in this process stay readable."""
        if self._pid == os.getpid():
            for session in list(self._sessions):
                with contextlib.suppress(ConnectionError):
                    session.close()
        self._link.close()

    def __enter__(self) -> Duck:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<teal.Duck {self.address}>"


def _is_far(address: str | None) -> bool:
    """HOST:PORT, and neither a name nor a path."""
    if address is None or address.startswith("@") or "/" in address:
        return False
    host, colon, port = address.rpartition(":")
    return bool(host and colon and port.isdecimal())


def _near_address(address: str | None) -> str:
    if address is None:
        return default_address()
    return address if address.startswith("@") or "/" in address else default_address(address)


def _size(value: int | str, low: int, high: int, path: str) -> int:
    """Bytes, as a number or a text such as 1MiB."""
    if isinstance(value, str):
        from teal.duck.size import nbytes

        value = nbytes(value, path)
    return argument.whole(value, low, high, path)
