"""Programs and places through the binding: what compilers make is taken, and whatever is made of it is answered."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from teal import _core
from teal.duck import cc
from teal.errors import InvalidArgument, QuotaExceeded, VersionMismatch

EXAMPLES = Path(__file__).parents[2] / "examples" / "duck"
PAGE = 4096

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler here")


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """A few real programs, by the kind that they are."""
    folder = tmp_path_factory.mktemp("elf")
    kinds = {"teal": "hello.c"}
    if os.uname().machine == "x86_64":
        kinds |= {"duckinfo": "duckinfo.c", "duckinfo32": "duckinfo.c"}
    made = {}
    for abi, source in kinds.items():
        cc.compile_program(EXAMPLES / source, folder / abi, abi=abi)
        made[abi] = (folder / abi).read_bytes()
    return made


def linked(tmp_path: Path, *flags: str) -> bytes:
    """A freestanding program with data, .bss and text, linked as the flags say."""
    source = tmp_path / "linked.c"
    source.write_text(
        "int data[100] = {1}; int bss[9000]; const int table[9] = {7};\n"
        "void _start(void) { for (;;) data[bss[1]] += table[data[2]]; }\n"
    )
    target = tmp_path / "linked.elf"
    subprocess.run(
        ["cc", "-O1", "-ffreestanding", "-nostdlib", "-fno-stack-protector", *flags, str(source), "-o", str(target)],
        check=True,
        capture_output=True,
    )
    return target.read_bytes()


@pytest.mark.parametrize(
    "flags",
    [
        ("-static", "-no-pie"),
        ("-static", "-no-pie", "-Wl,-z,noseparate-code"),
        ("-static", "-no-pie", "-Wl,-z,noseparate-code,-z,relro,-z,now"),
        ("-static", "-no-pie", "-Wl,-z,max-page-size=0x200000"),
        ("-static", "-no-pie", "-Wl,-z,max-page-size=0x10000,-z,norelro"),
        ("-static-pie",),
        ("-static-pie", "-Wl,-z,noseparate-code"),
    ],
    ids=" ".join,
)
def test_what_linkers_make_is_taken(tmp_path: Path, flags: tuple[str, ...]) -> None:
    facts = _core.read_elf(linked(tmp_path, *flags), "linked").facts
    assert facts["position_independent"] == ("-static-pie" in flags)
    kinds = {protection for *_, protection in facts["ranges"]}
    assert "r-x" in kinds
    assert "rw-" in kinds
    assert not any("w" in kind and "x" in kind for kind in kinds)
    assert facts["memory_bytes"] >= 36_000 > facts["file_bytes"] / 2


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("-static", "-no-pie", "-Wl,-N"), "writable and executable"),
        (("-shared", "-fPIC"), "a shared library"),
        (("-pie", "-fPIE"), "dynamically linked"),
        (("-c",), "an object file has to be linked first"),
        (("-static", "-no-pie", "-Wl,-e,data"), "expected an address in an executable segment"),
    ],
)
def test_what_no_duck_can_run_is_refused(tmp_path: Path, flags: tuple[str, ...], words: str) -> None:
    with pytest.raises(InvalidArgument, match=words):
        _core.read_elf(linked(tmp_path, *flags), "linked")


def test_this_python_is_no_program() -> None:
    with pytest.raises(InvalidArgument, match="link it with -static"):
        _core.read_elf(Path(sys.executable).resolve().read_bytes(), "python")
    with pytest.raises(InvalidArgument, match="no ELF file"):
        _core.read_elf(Path(__file__).read_bytes(), "this")


def test_only_what_differs_is_written(programs: dict[str, bytes]) -> None:
    first = _core.read_elf(programs["teal"], "first")
    place = _core.ElfPlace(len(first.image))
    report = place.load(first)
    assert report["pages_written"] + report["pages_zeroed"] == len(first.image) // PAGE
    again = place.load(_core.read_elf(programs["teal"], "again"))
    assert again["known"]
    assert again["pages_written"] == again["pages_same"] == 0
    changed = bytearray(programs["teal"])
    at = programs["teal"].index(b"hello, ")
    changed[at] ^= 0x20
    report = place.load(_core.read_elf(changed, "changed"))
    assert report["pages_written"] == 1
    assert report["pages_same"] == len(first.image) // PAGE - 1
    assert os.pread(place.fileno(), len(first.image), 0) == _core.read_elf(changed, "changed").image
    with pytest.raises(QuotaExceeded, match="its place has room for 4096"):
        _core.ElfPlace(1).load(first)


def test_a_known_sha256_is_not_made_again(programs: dict[str, bytes]) -> None:
    facts = _core.read_elf(programs["teal"], "it", sha256=bytes(range(32))).facts
    assert facts["sha256"] == bytes(range(32))
    with pytest.raises(InvalidArgument, match="a SHA-256 of 3 bytes"):
        _core.read_elf(programs["teal"], "it", sha256=b"abc")


CHANGES = st.lists(
    st.tuples(
        st.one_of(st.integers(0, 0x300), st.integers(0, 1 << 16)),
        st.sampled_from((1, 2, 4, 8)),
        st.one_of(st.integers(-16, 16), st.sampled_from((PAGE, -PAGE, 1 << 31, 1 << 32, 1 << 47, 1 << 63, -1))),
    ),
    min_size=1,
    max_size=4,
)


@settings(max_examples=300, deadline=None)
@given(changes=CHANGES, cut=st.one_of(st.none(), st.integers(0, 1 << 16)), duckinfo=st.booleans(), data=st.data())
def test_any_change_is_answered(
    programs: dict[str, bytes],
    changes: list[tuple[int, int, int]],
    cut: int | None,
    duckinfo: bool,
    data: st.DataObject,
) -> None:
    """A changed file is taken as what program.hpp says a program is, or refused with a word about where."""
    file = bytearray(programs[data.draw(st.sampled_from(sorted(programs)))])
    for at, size, by in changes:
        at = at % len(file) // size * size
        value = int.from_bytes(file[at : at + size], "little") + by
        file[at : at + size] = (value % (1 << 8 * size)).to_bytes(size, "little")
    try:
        program = _core.read_elf(file[:cut], "changed", duckinfo=duckinfo, any_machine=True, most_bytes=1 << 24)
    except (InvalidArgument, VersionMismatch) as error:
        if not str(error).startswith("changed: "):
            pytest.fail(f"a refusal that does not say what it is about: {error}")
        return
    facts = program.facts
    end = 0
    for address, pages, file_pages, protection in facts["ranges"]:
        assert address >= end
        assert 0 <= file_pages <= pages <= (1 << 24) // PAGE
        assert not ("w" in protection and "x" in protection)
        end = address + pages * PAGE
    assert len(program.image) == sum(file_pages for _, _, file_pages, _ in facts["ranges"]) * PAGE
    place = _core.ElfPlace(max(PAGE, len(program.image)))
    place.load(program)
    assert os.pread(place.fileno(), len(program.image), 0) == program.image
