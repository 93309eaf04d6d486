"""Rows: PyTorch as people serve it first, and in-process.

"standard" in the bars is eager PyTorch behind FastAPI with JSON bodies: what the first tutorial of most model servers
does. The same server with raw bytes, and gRPC with raw bytes, are rows of their own and their ratios are in the notes.
"""

from __future__ import annotations

from contextlib import ExitStack

from .entrant import Contest, Entrant
from .stage import Stage

STANDARD = "PyTorch HTTP, JSON"
WIRES = {STANDARD: "json", "PyTorch HTTP, raw bytes": "raw", "PyTorch gRPC, raw bytes": "grpc"}
EAGER, COMPILED = "in-process PyTorch eager", "in-process torch.compile"


def entrants(stage: Stage, contest: Contest, stack: ExitStack, *, compiled: bool) -> list[Entrant]:
    """One lane for the server, one for PyTorch in-process."""
    config = stage.config(contest.entry, [contest.batch])
    batch, found = contest.batch, []
    if (server := stage.rival("torch_server", config, stack, contest.group, "PyTorch servers")) is not None:
        found += [Entrant(row, server, f"{wire} b{batch}", server.note) for row, wire in WIRES.items()]
    alone = config | {"core": config["server_core"]}
    if (torch := stage.rival("torch_engine", alone, stack, contest.group, "in-process PyTorch")) is not None:
        found.append(Entrant(EAGER, torch, f"eager b{batch}", torch.note))
        if compiled:
            found.append(Entrant(COMPILED, torch, f"compile b{batch}", f"inductor, {torch.note}"))
        else:
            stage.report.absent(COMPILED, contest.group, "left out: --no-compile")
    return found
