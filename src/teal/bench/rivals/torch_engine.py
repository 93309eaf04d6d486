"""PyTorch in the process itself: eager, and torch.compile with inductor as it comes.

torch.compile's first call takes tens of seconds; what inductor makes is kept in the bench's folder for the next run.
"""

from __future__ import annotations

import os
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch

from . import export, lane, zoo


def variant(config: dict[str, Any], batch: int, *, compiled: bool) -> lane.Variant:
    """The model on the input that all contenders get."""
    entry = zoo.ZOO[config["model"]]
    module = export.read(entry, Path(config["cache"]))
    inputs = export.as_tensors(entry.inputs(batch, 0))
    call = torch.compile(module) if compiled else module

    @torch.inference_mode()
    def run() -> Any:
        return call(*inputs)

    run()
    return lane.Variant(run, answer=lambda: bytes(run().numpy().tobytes()))


def compile_seconds(config: dict[str, Any], batch: int) -> float:
    """How long torch.compile's first call takes, with what an earlier run left."""
    start = time.perf_counter()
    variant(config, batch, compiled=True)
    return time.perf_counter() - start


def client(config: dict[str, Any]) -> lane.Contender:
    """config: model, batches, threads, cache (folder of the models)."""
    torch.set_num_threads(config["threads"])
    zoo.read_text(Path(config["cache"]))
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(Path(config["cache"]) / "inductor"))
    variants = {}
    for batch in config["batches"]:
        variants[f"eager b{batch}"] = partial(variant, config, batch, compiled=False)
        variants[f"compile b{batch}"] = partial(variant, config, batch, compiled=True)
    return lane.Contender(
        variants=variants,
        questions={"compile_seconds": partial(compile_seconds, config)},
        note=f"{config['threads']} threads",
        versions={"torch": torch.__version__},
    )


if __name__ == "__main__":
    lane.main(client)
