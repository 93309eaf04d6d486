"""Makes a model of the zoo once: `python -m rivals.export NAME FOLDER` leaves NAME.onnx and NAME.pt there.

Random weights come from a fixed seed. A network with BatchNorm and random weights would collapse (every layer scales
its input anew), so its statistics are taken from a few batches of the bench's own inputs before it is written. Both
files hold the same weights: NAME.pt is what the torch contenders map, NAME.onnx what the engines read; its batch is
free. Files are written under another name and moved, so that a run that was interrupted leaves nothing half made.
"""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path
from typing import Any

import torch

from . import zoo

OPSET = 18
CALIBRATION = 3  # batches of CALIBRATION_ROWS inputs each
CALIBRATION_ROWS = 4
CALIBRATION_SEED = 9000  # far from those that are measured


def calibrate(module: Any, entry: zoo.Entry) -> None:
    """Takes the BatchNorm statistics from inputs like those of the bench."""
    for part in module.modules():
        if isinstance(part, torch.nn.BatchNorm2d):
            part.reset_running_stats()
            part.momentum = None  # the plain mean over batches
    module.train()
    with torch.no_grad():
        for number in range(CALIBRATION):
            module(*as_tensors(entry.inputs(CALIBRATION_ROWS, CALIBRATION_SEED + number)))
    module.eval()


def as_tensors(arrays: zoo.Arrays) -> list[Any]:
    """Torch views of the arrays, in order."""
    return [torch.from_numpy(array) for array in arrays.values()]


def build(entry: zoo.Entry, folder: Path) -> Any:
    """The module with its weights made."""
    torch.manual_seed(7)
    module = entry.build(folder).eval()
    if entry.calibrated:
        calibrate(module, entry)
    return module


def write(entry: zoo.Entry, folder: Path) -> None:
    """Both files. Raises FileNotFoundError where real weights are missing."""
    module = build(entry, folder)
    inputs = entry.inputs(2, 0)
    names = list(inputs)
    partial = folder / f"{entry.name}.partial"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            module,
            tuple(as_tensors(inputs)),
            str(partial),
            input_names=names,
            output_names=["out"],
            dynamic_axes={name: {0: "batch"} for name in [*names, "out"]},
            opset_version=OPSET,
            dynamo=False,
        )
    os.replace(partial, folder / f"{entry.name}.onnx")
    torch.save(module.state_dict(), partial)
    os.replace(partial, folder / f"{entry.name}.pt")


def read(entry: zoo.Entry, folder: Path) -> Any:
    """The module as it was written; its weights are mapped from the file, so that processes share them."""
    with torch.device("meta"):
        module = entry.build(folder)
    state = torch.load(folder / f"{entry.name}.pt", mmap=True, weights_only=True)
    module.load_state_dict(state, assign=True)
    return module.eval().requires_grad_(False)


if __name__ == "__main__":
    where = Path(sys.argv[2])
    zoo.read_text(where)
    write(zoo.ZOO[sys.argv[1]], where)
