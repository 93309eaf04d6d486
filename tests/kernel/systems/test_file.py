"""Model files: what is written can be read, what is not exactly a model is refused, and says why."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import systems_cases as cases
from hypothesis import given, settings
from hypothesis import strategies as st

from teal import _core
from teal.errors import InvalidArgument, NotFound
from teal.kernel.systems import LOADS, file

ROOT = Path(__file__).resolve().parents[3]


def parts(contents: bytes) -> tuple[dict[str, Any], bytes]:
    """(header, data) of a file."""
    length = int.from_bytes(contents[:8], "little")
    return json.loads(contents[8 : 8 + length]), contents[8 + length :]


def joined(header: dict[str, Any] | str | bytes, data: bytes, *, align: int = 8) -> bytes:
    text = header if isinstance(header, bytes) else (header if isinstance(header, str) else json.dumps(header)).encode()
    text += b" " * (-len(text) % align)
    return len(text).to_bytes(8, "little") + text + data


def refused(contents: bytes, *words: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        os.close(file.seal(contents))
    for word in words:
        assert word in str(caught.value)


@pytest.fixture(scope="module")
def mllb() -> bytes:
    return file.pack("mllb", cases.weights("mllb"))


@pytest.mark.parametrize("load", LOADS)
def test_round_trip(load: str) -> None:
    tensors = cases.weights(load)
    contents = file.pack(load, tensors, {"note": 'of "mine" — \\ \n'})
    seen = file.view(contents)
    assert seen.load is LOADS[load]
    assert seen.offset % 64 == 0
    assert list(seen.tensors) == sorted(tensors)
    for name, array in tensors.items():
        np.testing.assert_array_equal(seen.tensors[name], array)
        with pytest.raises(ValueError, match="read-only"):
            seen.tensors[name][0] = 1


def test_save_and_view_a_path(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    file.save(path, "kml", cases.weights("kml"))
    assert file.view(path).load.name == "kml"
    assert [child.name for child in tmp_path.iterdir()] == ["m.safetensors"]
    with pytest.raises(NotFound, match="No such file"):
        file.view(tmp_path / "none")
    bad = {**cases.weights("kml"), "std": np.zeros(5, np.float32)}
    with pytest.raises(InvalidArgument, match="tensor 'std': element 0 is not above zero"):
        file.save(path, "kml", bad)
    assert file.view(path).tensors["std"][0] > 0  # the old one stands
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match="folder"):
        file.save(tmp_path / "folder", "kml", cases.weights("kml"))
    assert sorted(child.name for child in tmp_path.iterdir()) == ["folder", "m.safetensors"]


@pytest.mark.parametrize("load", LOADS)
def test_files_of_the_safetensors_package(load: str) -> None:
    package = pytest.importorskip("safetensors.numpy")
    tensors = cases.weights(load)
    contents = package.save(tensors, {"teal.load": load, "teal.version": "1"})
    assert file.view(contents).load.name == load
    read = package.load(file.pack(load, tensors))
    for name, array in tensors.items():
        np.testing.assert_array_equal(read[name], array)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"load": "gpt"}, ("$.load", "'gpt', expected one of")),
        ({"tensors": {"w0": 1}}, ("$.tensors", "['w0'], expected those of mllb")),
        ({"w0": np.zeros((10, 15), np.float32)}, ("$.tensors['w0']", "float32 (10, 15), expected float32 (15, 10)")),
        ({"b1": np.zeros(1)}, ("$.tensors['b1']", "float64 (1,), expected float32 (1,)")),
    ],
)
def test_writer_refuses(change: dict[str, Any], words: tuple[str, ...]) -> None:
    tensors = change.get("tensors") or {**cases.weights("mllb"), **{k: v for k, v in change.items() if k != "load"}}
    with pytest.raises(InvalidArgument) as caught:
        file.pack(change.get("load", "mllb"), tensors)
    for word in words:
        assert word in str(caught.value)


def test_metadata(mllb: bytes) -> None:
    header, data = parts(mllb)
    for metadata, words in (
        (None, "without teal.load and teal.version"),
        ({"teal.load": "mllb"}, "without teal.load and teal.version"),
        ({"teal.load": "mlp", "teal.version": "1"}, "teal.load: 'mlp', expected one of linnos linnos+1"),
        ({"teal.load": "mllb", "teal.version": "2"}, "teal.version: '2', this build reads version 1"),
        ({"teal.load": "mllb", "teal.version": "1", "teal.fast": "1"}, "teal.fast: unknown"),
        ({"teal.load": "kml", "teal.version": "1"}, "expected [15] (kml)"),
        ({"teal.load": "linnos", "teal.version": "1"}, "'b0': dtype float32, expected int64 (linnos)"),
    ):
        changed = {k: v for k, v in header.items() if k != "__metadata__"}
        if metadata is not None:
            changed["__metadata__"] = metadata
        refused(joined(changed, data), words)


def test_tensors(mllb: bytes) -> None:
    header, data = parts(mllb)
    entry = header["w1"]
    for changed, words in (
        ({**header, "w1": {**entry, "dtype": "F16"}}, ("do not hold its shape",)),
        ({**header, "w1": {**entry, "dtype": "F99"}}, ("dtype 'F99'",)),
        ({**header, "w1": {**entry, "shape": [1, 10]}}, ("shape [1, 10], expected [10, 1]",)),
        ({**header, "w1": {**entry, "shape": [2**63, 2**63]}}, ("do not hold its shape",)),
        ({**header, "w1": {**entry, "shape": [1] * 9}}, ("more than 8 numbers",)),
        ({**header, "w1": {**entry, "shape": [-10, 1]}}, ("expected a whole number",)),
        ({**header, "w1": {**entry, "shape": [10.0, 1]}}, ("header, byte",)),
        ({**header, "w1": {**entry, "data_offsets": [entry["data_offsets"][1], entry["data_offsets"][0]]}}, ("w1",)),
        ({**header, "w1": {**entry, "data_offsets": [0, 40]}}, ("no gap, no overlap",)),
        ({**header, "w1": {**entry, "data_offsets": [0, 2**64]}}, ("more than 64 bits",)),
        ({**header, "w1": {**entry, "more": 1}}, ("key 'more'",)),
        ({**header, "w1": {"dtype": "F32", "shape": [10, 1]}}, ("'w1' lacks",)),
        ({k: v for k, v in header.items() if k != "w1"}, ("cut off or added to",)),
        ({**header, "w2": {"dtype": "F32", "shape": [0], "data_offsets": [684, 684]}}, ("'w2' is not one of mllb's",)),
        ({("x" if k == "b0" else k): v for k, v in header.items()}, ("'x' in place 0, expected 'b0'",)),
    ):
        refused(joined(changed, data), *words)


def test_sizes(mllb: bytes) -> None:
    header, data = parts(mllb)
    refused(joined(header, data + b"\0"), "the tensors take 684 bytes, the file has 685 of data")
    refused(joined(header, data[:-1]), "the tensors take 684 bytes, the file has 683 of data")
    for cut in (b"", mllb[:7], mllb[:8], mllb[:100]):
        with pytest.raises(InvalidArgument):
            os.close(file.seal(cut))
    refused((2**64 - 1).to_bytes(8, "little") + mllb[8:], "not a safetensors file")
    refused(joined(json.dumps(header) + " " * (1 << 17), data), "not a safetensors file")
    odd = json.dumps(header).encode()
    odd += b" " * (-len(odd) % 8 + 4)
    refused(len(odd).to_bytes(8, "little") + odd + data, "expected a multiple of 8")


def test_twice_and_trailing(mllb: bytes) -> None:
    header, data = parts(mllb)
    text = json.dumps(header)
    refused(joined(text[:-1] + ', "w1": ' + json.dumps(header["w1"]) + "}", data), "key 'w1' for the second time")
    refused(joined(text + "{}", data), "something follows")
    refused(joined("[]", data), "expected '{'")
    refused(joined("{", data), "header, byte")
    refused(joined('{"a', data), "a string without an end")
    refused(joined('{"\\ud800": 1}', data), "a surrogate")
    refused(joined('{"\x01": 1}', data), "control character")
    refused(joined('{"\\q": 1}', data), "unknown escape")


@pytest.mark.parametrize("load", cases.FLOATS)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_not_finite(load: str, value: float) -> None:
    for name in (name for name in LOADS[load].tensors if name[0] != "u"):
        tensors = cases.weights(load)
        tensors[name].flat[-1] = value
        refused(file.pack(load, tensors), f"tensor '{name}': element {tensors[name].size - 1} is not finite")


def test_sums_of_kleio_stay_in_range() -> None:
    tensors = cases.weights("kleio")
    tensors["u1"][:, 7] = 3e38
    refused(file.pack("kleio", tensors), "tensor 'w1': the weights of one unit add up to more than 1e30")


def test_not_sealed(tmp_path: Path, mllb: bytes) -> None:
    path = tmp_path / "plain.safetensors"
    path.write_bytes(mllb)
    with path.open("rb") as plain, pytest.raises(InvalidArgument, match="not sealed against writing and shrinking"):
        _core.systems_file(plain.fileno())
    reader, writer = os.pipe()
    with pytest.raises(InvalidArgument, match="not a file with contents"):
        _core.systems_file(reader)
    os.close(reader)
    os.close(writer)


@settings(deadline=None, max_examples=200)
@given(st.data())
def test_a_changed_byte_is_refused_or_harmless(data: Any) -> None:
    """Bits of the header flipped, bytes cut out or put in: an error of ours, or a model that runs."""
    contents = bytearray(file.pack("mllb", cases.weights("mllb")))
    end = 8 + int.from_bytes(contents[:8], "little")
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, end - 1))
        match data.draw(st.sampled_from(["flip", "cut", "put"])):
            case "flip":
                contents[at] ^= 1 << data.draw(st.integers(0, 7))
            case "cut":
                del contents[at : at + data.draw(st.integers(1, 30))]
            case "put":
                contents[at:at] = data.draw(st.binary(min_size=1, max_size=9))
    try:
        fd = file.seal(bytes(contents))
    except InvalidArgument:
        return
    net = _core.SystemsNetwork(fd)
    os.close(fd)
    net.run(cases.inputs("mllb", 3), np.zeros((3, 1), np.float32), np.zeros(3, np.int32))


@settings(deadline=None)
@given(st.dictionaries(st.text(max_size=12), st.text(max_size=30), max_size=5))
def test_any_notes_of_the_author(notes: dict[str, str]) -> None:
    notes = {key: value for key, value in notes.items() if not key.startswith("teal.")}
    text = json.dumps({**notes}, ensure_ascii=False)
    contents = file.pack("mllb", cases.weights("mllb"), notes)
    if any(ord(c) > 0xFFFF for c in text):  # json writes these as surrogate pairs, which the reader does not take
        refused(contents, "a surrogate")
    else:
        assert file.view(contents).load.name == "mllb"


@pytest.mark.parametrize("name", ["linnos", "mllb", "kml"])
def test_models_that_come_with_teal(name: str) -> None:
    path = ROOT / "examples" / "systems" / "models" / f"{name}.safetensors"
    assert path.stat().st_size < 200_000
    assert file.view(path).load.name == name
