"""What `host.load(name, file)` does with what was tuned: it takes the engine, precision and threads that won.

Only where the caller left these open, and the file is one that can be tuned. The record's word is passed on as a note,
which `model.statistics()` and `teal load` show: "tuned: openvino bf16, 2 threads", or why a record was not used. An
int8 form is another file than the one that was asked for, so it is loaded only with the SHA-256 that the record has of
it, and never where the caller gave a `digest=` of the model.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from teal.errors import InvalidArgument, NotFound
from teal.host import wire

if TYPE_CHECKING:
    from teal.tune.record import Record

SUFFIXES = (".onnx", ".pt2")
ADVICE = "run teal tune again, or load with tuned=False"


def apply(load: wire.Load, tuned: bool | None) -> None:
    """Fills in a load. tuned: True: there must be a record; False: none is looked for; None: if there is one.

    Raises NotFound, InvalidArgument.
    """
    if tuned is False:
        return
    source = load.source
    if source is None or not source.endswith(SUFFIXES):
        if tuned:
            raise InvalidArgument(f"only files of {' and '.join(SUFFIXES)} can be tuned", path="$.tuned")
        return
    given = [name for name in ("kernel", "precision", "threads") if getattr(load, name) is not None]
    given += [name for name in ("options", "device") if getattr(load, name)]
    if given:
        if tuned:
            raise InvalidArgument(f"tuned=True chooses {', '.join(given)} itself; leave them out", path="$.tuned")
        return
    from teal.tune import record  # only here: most loads are of other things, and importing teal shall stay quick

    try:
        known = record.found(Path(source))
        if known is not None:
            take(load, *known)
            return
        why = f"no tuned record of {source} on this machine"
    except record.Unusable as error:
        why = f"the tuned record was not used: {error}"
        load.note = f"{why}; {ADVICE}"
    if tuned:
        raise NotFound(f"{why}; run teal tune {source}")


def take(load: wire.Load, chosen: Record, path: Path) -> None:
    """Raises Unusable, InvalidArgument (an int8 file that is not the one that was tuned)."""
    from teal.tune import record

    if chosen.file is not None:
        if load.digest is not None:
            raise record.Unusable("its int8 file is not the file that digest= names")
        file = path.parent / chosen.file
        try:
            seen = record.digest_of(file)
        except OSError as error:
            raise record.Unusable(f"its int8 file {file} cannot be read ({error.strerror})") from None
        if seen != chosen.file_digest:
            raise InvalidArgument(
                f"{file} is not the file that was tuned: SHA-256 {seen}, expected {chosen.file_digest}; {ADVICE}",
                path="$.source",
            )
        load.source, load.digest = str(file), chosen.file_digest
    load.kernel, load.threads = chosen.kernel, chosen.threads
    if chosen.precision == "bf16":
        load.precision = "bf16"
    if chosen.compiled:
        load.options = dict(record.COMPILED)
    load.note = f"tuned: {chosen.words}"
