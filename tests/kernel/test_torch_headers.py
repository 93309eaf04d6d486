"""Precompiled headers of torch's compiler: in whose folder, and what becomes of those that harm."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")

from teal.errors import KernelFailed
from teal.kernel import torch_compile, torch_headers
from teal.kernel.protocol import Source

# In a process of its own: torch works the folder out once.
KEEP = """
import sys, tempfile
from teal.kernel import torch_headers
torch_headers._try_instructions = lambda folder: None  # takes half a minute; test_torch.py looks at what is kept
before = tempfile.gettempdir()
kept = torch_headers.keep(sys.argv[1])
assert tempfile.gettempdir() == before
from torch._inductor import codecache
print(kept, codecache._HEADER_DIR.startswith(sys.argv[1]))
"""


def kept(folder: str) -> str:
    return subprocess.run([sys.executable, "-c", KEEP, folder], capture_output=True, text=True, check=True).stdout


def test_they_lie_in_a_folder_of_ours(tmp_path: Path) -> None:
    folder = tmp_path / "headers"
    assert kept(str(folder)) == "True True\n"
    assert folder.stat().st_mode & 0o777 == 0o700


def test_a_folder_that_others_may_change_is_not_used(tmp_path: Path) -> None:
    folder = tmp_path / "headers"
    folder.mkdir()
    folder.chmod(0o777)
    assert kept(str(folder)) == "False False\n"
    assert not list(folder.iterdir())


def test_without_a_folder_there_are_none() -> None:
    assert not torch_headers.keep("")


def test_too_many_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "headers" / "old").mkdir(parents=True, mode=0o700)
    (tmp_path / "headers").chmod(0o700)
    (tmp_path / "headers" / "old" / "torch.gch").write_bytes(bytes(100))
    monkeypatch.setattr(torch_headers, "_MOST_BYTES", 99)
    monkeypatch.setattr(torch_headers, "_try_instructions", lambda folder: None)
    torch_headers.keep(str(tmp_path / "headers"))
    assert not (tmp_path / "headers" / "old").exists()
    assert (tmp_path / "headers").is_dir()


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Where torch tried instructions out: it makes a library there each time."""
    from torch._inductor import cpu_vec_isa

    folders: list[Path] = []

    def valid_vec_isa_list() -> list[Any]:
        folder = Path(os.environ["TORCHINDUCTOR_CACHE_DIR"])
        folders.append(folder)
        folder.mkdir(exist_ok=True)
        (folder / f"{len(folders)}.so").touch()
        return []

    monkeypatch.setattr(cpu_vec_isa, "valid_vec_isa_list", valid_vec_isa_list)
    return folders


def test_what_was_not_tried_to_the_end_is_tried_anew(tmp_path: Path, tried: list[Path]) -> None:
    before = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    torch_headers._try_instructions(tmp_path / "instructions")
    (folder,) = tried
    assert (folder / "1.so").exists()
    torch_headers._try_instructions(tmp_path / "instructions")
    assert tried == [folder, folder]
    assert (folder / "1.so").exists()
    (folder / "complete").unlink()  # as if it had been killed
    torch_headers._try_instructions(tmp_path / "instructions")
    assert [path.name for path in sorted(folder.iterdir())] == ["3.so", "complete"]
    assert os.environ.get("TORCHINDUCTOR_CACHE_DIR") == before


def test_nothing_is_tried_where_nothing_may_run(
    tmp_path: Path, tried: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "statvfs", lambda path: SimpleNamespace(f_flag=os.ST_NOEXEC))
    torch_headers._try_instructions(tmp_path / "instructions")
    assert not tried


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Any:
    """``runs(with_headers, without)``: how the compiler ends; returns the list of what it was run with."""

    def runs(*statuses: int, says: bytes = b"InductorError: CppCompileError: damaged") -> list[str]:
        left, seen = list(statuses), []

        def run(_source: Source, _name: str, out: int, headers: str) -> subprocess.CompletedProcess[bytes]:
            seen.append(headers)
            os.write(out, b"library" if left[0] == 0 else b"half of a library")
            return subprocess.CompletedProcess([], left.pop(0), b"", says)

        monkeypatch.setattr(torch_compile, "_run", run)
        return seen

    return runs


def test_damaged_ones_go_and_the_program_is_compiled_without(tmp_path: Path, runs: Any) -> None:
    headers = tmp_path / "headers"
    headers.mkdir()
    seen = runs(1, 0)
    out = torch_compile._compiled(Source("m", "m.pt2", 0, headers=str(headers)), "m")
    try:
        assert os.pread(out, 100, 0) == b"library"
    finally:
        os.close(out)
    assert seen == [str(headers), ""]
    assert not headers.exists()


def test_what_does_not_compile_without_them_either_fails(tmp_path: Path, runs: Any) -> None:
    seen = runs(1, 1)
    with pytest.raises(KernelFailed, match=r"m\.pt2: torch does not compile it: .*damaged"):
        torch_compile._compiled(Source("m", "m.pt2", 0, headers=str(tmp_path)), "m")
    assert len(seen) == 2


def test_what_torch_itself_refuses_is_not_tried_again(tmp_path: Path, runs: Any) -> None:
    seen = runs(1, says=b"LoweringException: no such operator")
    with pytest.raises(KernelFailed, match="no such operator"):
        torch_compile._compiled(Source("m", "m.pt2", 0, headers=str(tmp_path)), "m")
    assert len(seen) == 1
    assert tmp_path.exists()
