"""Weights that cannot be changed: digests at the load, files looked at anew, and what becomes of somebody who tries."""

from __future__ import annotations

import hashlib
import logging
import os
from pathlib import Path

import numpy as np
import pytest
from tests.conftest import Load, unique

import teal
from teal.host import repository as files

MLLB = Path(__file__).parents[2] / "examples" / "systems" / "models" / "mllb.safetensors"
X = np.ones((1, 15), np.float32)


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_what_is_resident_is_what_was_loaded(host: teal.Host, load: Load, mlp_path: Path) -> None:
    model, other = load(mlp_path), load("builtin:identity")
    found = {each.name: each for each in host.verify()}
    assert found[model.name].ok
    assert found[model.name].found == found[model.name].digest == sha256(mlp_path) == model.info.digest
    assert found[model.name].sealed
    assert found[other.name].ok
    assert found[other.name].found is None
    assert [each.name for each in host.verify(model.name)] == [model.name]
    with pytest.raises(teal.NotFound):
        host.verify("nothing-of-that-name")
    with pytest.raises(teal.NotFound):
        host.verify(model.name, 99)


def test_digest_asked_for_at_the_load(host: teal.Host, load: Load, mlp_path: Path) -> None:
    assert load(mlp_path, digest=sha256(mlp_path).upper()).info.digest == sha256(mlp_path)
    with pytest.raises(teal.InvalidArgument, match=r"\$\.digest: .*its SHA-256 is [0-9a-f]{64}, expected 0000"):
        load(mlp_path, digest="0" * 64)
    with pytest.raises(teal.InvalidArgument, match="expected a SHA-256: 64 hexadecimal digits"):
        load(mlp_path, digest="abc")
    with pytest.raises(teal.InvalidArgument, match="no file whose SHA-256"):
        load("builtin:identity", digest="0" * 64)
    with pytest.raises(teal.InvalidArgument, match=r"\$\.digest"):
        load(mlp_path, digest=3)


def test_repository_with_digests_beside_its_files(tmp_path: Path, mlp_path: Path) -> None:
    folder = tmp_path / "mlp"
    folder.mkdir()
    file, note = folder / "model.onnx", folder / "model.onnx.sha256"
    file.write_bytes(mlp_path.read_bytes())
    note.write_text(f"{sha256(file)}  model.onnx\n")
    with teal.Host(unique(), repository=tmp_path) as host:
        assert host.load("mlp").version == 1
        note.write_text("0" * 64 + "  model.onnx\n")
        with pytest.raises(teal.InvalidArgument, match=r"\$\.source: .*model\.onnx: its SHA-256 is"):
            host.load("mlp")
        note.write_text("what is this")
        with pytest.raises(teal.InvalidArgument, match="as sha256sum writes it"):
            host.load("mlp")
        assert host.model("mlp").version == 1  # the one before goes on


def test_a_file_that_is_changed_later_changes_nothing(host: teal.Host, load: Load, tmp_path: Path) -> None:
    copy = tmp_path / "mllb.safetensors"
    copy.write_bytes(MLLB.read_bytes())
    model = load(copy)
    before = model(X)[0].numpy().copy()
    with copy.open("r+b") as file:
        file.seek(-64, os.SEEK_END)
        file.write(bytes(64))
    assert np.array_equal(model(X)[0], before)
    assert host.verify(model.name)[0].ok


@pytest.mark.parametrize("how", [0, 1])
def test_writing_to_resident_weights_is_refused(host: teal.Host, how: int) -> None:
    model, attacker = host.load("victim", MLLB), host.load("tamper", "toy_kernels:tamper")
    before = model(X)[0].numpy().copy()
    with pytest.raises(teal.KernelFailed, match="PermissionError"):
        attacker(np.int64(how))
    assert np.array_equal(model(X)[0], before)
    assert host.verify("victim")[0].ok
    host.unload("victim")
    host.unload("tamper")


def test_writing_into_mapped_weights_faults_and_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "teal.host"), teal.Host(unique()) as host:
        model, attacker = host.load("victim", MLLB), host.load("tamper", "toy_kernels:tamper")
        before = model(X)[0].numpy().copy()
        with pytest.raises(teal.PeerDied, match="signal 11 SIGSEGV while it ran 'tamper'"):
            attacker(np.int64(2))
        assert np.array_equal(model(X)[0], before)
        assert host.verify("victim")[0].ok
    assert any("SIGSEGV" in record.getMessage() for record in caplog.records)


def test_digest_of_a_descriptor(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * 10_000_000)
    fd = os.open(path, os.O_RDONLY)
    try:
        assert files.digest_of(fd) == sha256(path)
    finally:
        os.close(fd)
    sealed = files.seal(os.open(path, os.O_RDONLY), "x", 1 << 30)
    assert sealed.fd is not None
    assert files.is_sealed(sealed.fd)
    assert files.digest_of(sealed.fd) == sealed.digest
    os.close(sealed.fd)
