"""Inputs for tuning: given ones, and ones made up from a signature."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from teal.errors import InvalidArgument, NotFound
from teal.host.records import TensorSpec
from teal.tune import inputs

IMAGE = TensorSpec("image", "float32", ("batch", 3, 4, 4))
IDS = TensorSpec("input_ids", "int64", ("batch", "tokens"))
MASK = TensorSpec("attention_mask", "int64", ("batch", "tokens"))
FIXED = TensorSpec("x", "float32", (2, 3))


def test_rows_of_a_file_are_samples(tmp_path: Path) -> None:
    image = np.arange(5 * 48, dtype=np.float32).reshape(5, 3, 4, 4)
    np.savez(tmp_path / "a.npz", image=image)
    found = inputs.given(tmp_path / "a.npz", [IMAGE])
    assert (found.kind, len(found.rows), found.rows[3]["image"].shape) == ("given", 5, (1, 3, 4, 4))
    assert np.array_equal(found.rows[3]["image"][0], image[3])


def test_rows_of_a_fixed_batch_are_samples(tmp_path: Path) -> None:
    """What exporters write by default: a model for exactly so many rows."""
    one = [TensorSpec("image", "float32", (1, 4)), TensorSpec("flag", "bool", (1,))]
    np.savez(tmp_path / "a.npz", image=np.arange(12, dtype=np.float32).reshape(3, 4), flag=np.zeros(3, bool))
    rows = inputs.given(tmp_path / "a.npz", one).rows
    assert [(row["image"].tolist(), row["flag"].shape) for row in rows] == [
        ([[4 * i, 4 * i + 1, 4 * i + 2, 4 * i + 3]], (1,)) for i in range(3)
    ]
    np.savez(tmp_path / "b.npz", x=np.zeros((6, 3), np.float32))
    assert [row["x"].shape for row in inputs.given(tmp_path / "b.npz", [FIXED]).rows] == [(2, 3)] * 3


def test_a_folder_is_its_files_in_order(tmp_path: Path) -> None:
    for number in (2, 1):
        np.savez(tmp_path / f"{number}.npz", x=np.full((2, 3), number, np.float32))
    found = inputs.given(tmp_path, [FIXED])
    assert [row["x"][0, 0] for row in found.rows] == [1, 2]


@pytest.mark.parametrize(
    ("arrays", "why"),
    [
        ({"y": np.zeros((2, 3), np.float32)}, r"has \['y'\], expected"),
        ({"x": np.zeros((2, 3))}, "is float64, the model takes float32"),
        ({"x": np.zeros(3, np.float32)}, "has rank 1"),
        ({"x": np.zeros((3, 3), np.float32)}, r"has shape \(3, 3\), the model takes \(2, 3\)"),
        ({"x": np.zeros((2, 4), np.float32)}, r"has shape \(2, 4\), the model takes \(2, 3\)"),
        ({"x": np.zeros((2, 3), np.float32), "z": np.zeros(1)}, "expected the model's inputs"),
    ],
)
def test_what_does_not_suit_is_said(tmp_path: Path, arrays: dict[str, np.ndarray], why: str) -> None:  # type: ignore[type-arg]
    np.savez(tmp_path / "a.npz", **arrays)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match=why):
        inputs.given(tmp_path / "a.npz", [FIXED])


def test_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="no such file"):
        inputs.given(tmp_path / "a.npz", [FIXED])
    (tmp_path / "a.npz").write_bytes(b"PK\x03\x04 nothing")
    with pytest.raises(InvalidArgument, match=r"not an \.npz file"):
        inputs.given(tmp_path / "a.npz", [FIXED])
    np.savez(tmp_path / "b.npz", x=np.array([{}], object))
    with pytest.raises(InvalidArgument, match=r"not an \.npz file"):
        inputs.given(tmp_path / "b.npz", [FIXED])
    (tmp_path / "empty").mkdir()
    with pytest.raises(NotFound, match=r"no \.npz file"):
        inputs.given(tmp_path / "empty", [FIXED])


def test_random_inputs_suit_the_signature() -> None:
    found = inputs.random([IDS, MASK], {"tokens": 7}, count=3)
    assert (found.kind, found.note, len(found.rows)) == ("random", "", 3)
    row = found.rows[0]
    assert row["input_ids"].shape == row["attention_mask"].shape == (1, 7)
    assert row["attention_mask"].all()
    assert (row["input_ids"] > 0).all()
    assert not np.array_equal(row["input_ids"], found.rows[1]["input_ids"])
    assert inputs.random([IDS], {}).note == "assumed tokens = 64"
    with pytest.raises(InvalidArgument, match="give real inputs"):
        inputs.random([TensorSpec("text", "BYTES", ("n",))], {})


def test_batches_repeat_a_sample() -> None:
    sample = {"image": np.ones((1, 3, 4, 4), np.float32)}
    assert inputs.of_batch(sample, 4, True)["image"].shape == (4, 3, 4, 4)
    assert inputs.of_batch(sample, 1, False) is sample
    with pytest.raises(InvalidArgument, match="first extent is fixed"):
        inputs.of_batch(sample, 2, False)
