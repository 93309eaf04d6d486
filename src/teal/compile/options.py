"""What ``torch.compile(model, backend="teal", options={…})`` takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from teal.errors import InvalidArgument
from teal.host import argument
from teal.host.repository import check_name

FALLBACKS = ("inductor", "eager", "error")


@dataclass(frozen=True, slots=True)
class Options:
    """host: address of a host; None: $TEAL_HOST, else this user's ``teal serve``, else one embedded in this process.

    precision: "fp32" or "bf16". threads: of the kernel. name: how the kernel's name begins.
    move: parameters are moved into sealed memory that the host's workers map too; False: they stay where they are, and
    the sealed copy is one more. fallback: who runs what Teal does not: "inductor", "eager", or "error": it raises.
    buckets: sizes that a batch of varying size is padded to, for models whose rows do not see each other: then there is
    memory, and a binding in the worker, for these sizes only.
    compile: the worker compiles the graph with inductor; False: it runs operator by operator, and is ready at once.
    timeout: seconds that compiling in the worker may take.
    """

    host: str | None = None
    precision: str | None = None
    threads: int | None = None
    name: str = "torch"
    move: bool = True
    fallback: str = "inductor"
    buckets: tuple[int, ...] = ()
    compile: bool = True
    timeout: float = 600.0

    @classmethod
    def of(cls, given: Mapping[str, Any] | None) -> Options:
        """Raises InvalidArgument for what is unknown or of a wrong type."""
        options = argument.mapping({} if given is None else given, "$.options", "a mapping of names to values")
        known = [field.name for field in fields(cls)]
        if unknown := sorted(set(options) - set(known)):
            raise InvalidArgument(f"{unknown}: not options of backend 'teal'; it has {known}", path="$.options")
        if "buckets" in options:
            options["buckets"] = _buckets(options["buckets"])
        made = cls(**options)
        argument.optional(made.host, str, "$.options['host']", "the address of a host")
        argument.optional(made.precision, str, "$.options['precision']", "fp32 or bf16")
        if made.threads is not None:
            argument.whole(made.threads, 1, 1024, "$.options['threads']")
        check_name(argument.one_of(made.name, str, "$.options['name']", "how the kernel's name begins"))
        if len(made.name) > 60:
            raise InvalidArgument(f"{made.name!r}: expected at most 60 characters", path="$.options['name']")
        argument.one_of(made.move, bool, "$.options['move']", "True or False")
        argument.one_of(made.compile, bool, "$.options['compile']", "True or False")
        if not 0 < argument.seconds(made.timeout, "$.options['timeout']") <= 86400:
            raise InvalidArgument(
                f"{made.timeout!r}, expected more than 0 and at most 86400 seconds", path="$.options['timeout']"
            )
        if made.precision not in (None, "fp32", "bf16"):
            raise InvalidArgument(f"{made.precision!r}, expected fp32 or bf16", path="$.options['precision']")
        if made.fallback not in FALLBACKS:
            raise InvalidArgument(f"{made.fallback!r}, expected {', '.join(FALLBACKS)}", path="$.options['fallback']")
        return made


def _buckets(given: object) -> tuple[int, ...]:
    path = "$.options['buckets']"
    if isinstance(given, (str, bytes)) or not isinstance(given, Sequence):
        raise argument.wrong(given, path, "a list of sizes such as [4, 8, 32]")
    return tuple(sorted({argument.whole(size, 2, 1 << 40, path) for size in given}))
