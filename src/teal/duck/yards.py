"""The yards of a duck: one for each kind of sandbox, each made when the first program asks for it.

Theory of operation: a yard (core/box/yard.hpp) starts one executable, and everything else is the same: ``process``
boxes are processes, ``kvm`` boxes are guests without an operating system, where /dev/kvm can run one (docs/kvm.md).
Sessions that a client elsewhere calls directly, and sealed, need libcrypto in their box: those are processes too, of a
yard of their own (``sealed``), so that nobody else's boxes grow by it.
"""

from __future__ import annotations

import threading
from pathlib import Path

from teal import _core
from teal.duck.inline import InlineYard
from teal.errors import Closed, InvalidArgument, NotFound, TealError

SANDBOXES = ("process", "kvm")
KINDS = (*SANDBOXES, "inline")  # the last one is none, and has to be allowed
_SEALED = "sealed"
_PROGRAMS = {"process": "teal-box", "kvm": "teal-kvm-box", _SEALED: "teal-sealed-box"}
_UNTRUSTED = (
    "sandbox 'inline' runs programs inside the duck's own process, with all of its rights; start the duck with "
    "--trust-programs (trust_programs=True) if every program that it will get is your own"
)

AnyYard = _core.DuckYard | InlineYard


class Yards:
    """``default``: the kind of programs that ask for none; made at once. ``trusted``: inline is allowed. Thread-safe.

    Raises InvalidArgument, NotFound: this machine cannot run a guest.
    """

    def __init__(self, default: str, spares: int, *, trusted: bool = False) -> None:
        if default not in KINDS:
            raise InvalidArgument(f"{default!r}, expected one of {list(KINDS)}", path="$.sandbox")
        self.default = default
        self.trusted = trusted
        self._spares = spares
        self._guard = threading.Lock()  # guards what is below
        self._yards: dict[str, AnyYard] = {}
        self._closed = False
        self.get(default)

    def get(self, sandbox: str | None) -> AnyYard:
        """The yard of that kind. Raises InvalidArgument, NotFound, Closed."""
        kind = sandbox or self.default
        if kind not in KINDS:
            raise InvalidArgument(f"{kind[:40]!r}, expected one of {list(KINDS)}", path="$.sandbox")
        return self._get(kind)

    def direct(self, sandbox: str | None, *, sealed: bool) -> AnyYard | str:
        """The yard whose boxes take direct calls, or why there is none."""
        kind = sandbox or self.default
        if kind != "process":
            return f"not with sandbox {kind[:40]}"
        try:
            yard = self._get(_SEALED if sealed else kind)
        except TealError as error:
            return str(error)
        return yard.refuses_direct(sealed) or yard

    def _get(self, kind: str) -> AnyYard:
        with self._guard:
            if self._closed:
                raise Closed("the duck is closed")
            found = self._yards.get(kind)
            if found is None:
                found = self._yards[kind] = self._made(kind)
            return found

    def _made(self, kind: str) -> AnyYard:
        if kind == "inline":
            if not self.trusted:
                raise InvalidArgument(_UNTRUSTED, path="$.sandbox")
            return InlineYard()
        if kind == "kvm" and (why := kvm_missing()):
            raise NotFound(f"no KVM to run guests: {why}; sandbox='process' needs none")
        return _core.DuckYard(box_program(kind), self._spares)

    def there(self) -> dict[str, AnyYard]:
        """Those that were made."""
        with self._guard:
            return dict(self._yards)

    def close(self) -> None:
        with self._guard:
            self._closed = True
            yards = list(self._yards.values())
            self._yards.clear()
        for yard in yards:
            yard.close()


def box_program(sandbox: str = "process") -> str:
    """The executable that boxes of that kind start as."""
    return str(Path(_core.__file__).parent / "duck" / "bin" / _PROGRAMS[sandbox])


def kvm_missing() -> str:
    """Why no guest can be run on this machine; empty: one can."""
    probe = _core.kvm_probe()
    return "" if probe["available"] else str(probe["reason"])
