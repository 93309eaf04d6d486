"""`teal duck cc`: each kind of program is compiled, is what a duck takes, and runs in one."""

from __future__ import annotations

import json
import os
import shutil
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import teal
from teal import _core
from teal.cli.duck_cc import command
from teal.duck import cc
from teal.errors import InvalidArgument, KernelFailed, NotFound

EXAMPLES = Path(__file__).parents[2] / "examples" / "duck"

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler here")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("programs")


@pytest.fixture(scope="module")
def duck() -> Iterator[teal.Duck]:
    if not os.path.exists(Path(_core.__file__).parent / "duck" / "bin" / "teal-box"):
        pytest.skip("this Teal was built without teal-box")
    with teal.duck.Server(None, cache=False) as server, server.connect() as duck:
        yield duck


def made(folder: Path, source: str | Path, name: str, **options: object) -> str:
    if isinstance(source, str):
        source_file = folder / name
        source_file.write_text(source)
        source = source_file
    target = folder / f"{name}.elf"
    cc.compile_program(source, target, **options)  # type: ignore[arg-type]
    return str(target)


def rustc() -> str | None:
    return shutil.which("rustc") or shutil.which(os.path.expanduser("~/.cargo/bin/rustc"))


# ---- what is made ----------------------------------------------------------------------------------------------------


def test_facts_of_a_resident_program(folder: Path) -> None:
    done = cc.compile_program(EXAMPLES / "hello.c", folder / "facts.elf", level="3", flags=["-Wall", "-Werror"])
    facts = _core.read_elf((folder / "facts.elf").read_bytes(), "facts.elf").facts
    assert (done.abi, done.language, done.resident) == ("teal", "c", True)
    assert facts["resident"]
    assert not facts["position_independent"]
    assert not facts["executable_stack"]
    assert done.sha256 == facts["sha256"].hex()
    assert done.nbytes == (folder / "facts.elf").stat().st_size < 20_000
    assert all("w" not in protection or "x" not in protection for *_, protection in facts["ranges"])


def test_by_itself_it_says_where_it_belongs(folder: Path) -> None:
    said = subprocess.run([made(folder, EXAMPLES / "hello.c", "alone.c")], capture_output=True, text=True, check=False)
    assert said.returncode == 125
    assert "teal duck run" in said.stderr


def test_for_another_machine(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if shutil.which("aarch64-linux-gnu-gcc") is None:
        pytest.skip("no compiler for aarch64 here")
    monkeypatch.setenv("CC", "aarch64-linux-gnu-gcc")
    done = cc.compile_program(EXAMPLES / "gemv.c", folder / "arm.elf", level="3")
    assert (done.machine, done.resident) == ("aarch64", True)
    if os.uname().machine != "aarch64":
        with pytest.raises(InvalidArgument, match="a program for aarch64, which this machine cannot run"):
            _core.read_elf((folder / "arm.elf").read_bytes(), "arm.elf")
    if (qemu := shutil.which("qemu-aarch64")) is not None:
        said = subprocess.run([qemu, str(folder / "arm.elf")], capture_output=True, text=True, check=False)
        assert said.returncode == 125
        assert "teal duck run" in said.stderr


@pytest.mark.parametrize(
    ("abi", "machine", "base"), [("duckinfo", "x86-64", 0x400000), ("duckinfo32", "i386", 0x8048000)]
)
def test_duckinfo(folder: Path, abi: str, machine: str, base: int) -> None:
    if os.uname().machine != "x86_64":
        pytest.skip("DuckInfo programs are for x86")
    done = cc.compile_program(EXAMPLES / "duckinfo.c", folder / f"{abi}.elf", abi=abi)
    facts = _core.read_elf((folder / f"{abi}.elf").read_bytes(), "it", duckinfo=True).facts
    assert (done.machine, facts["low"], done.resident, facts["abi"]) == (machine, base, False, "duckinfo")


def test_an_ordinary_program(folder: Path) -> None:
    if subprocess.run(["cc", "-print-file-name=libc.a"], capture_output=True, text=True, check=False).stdout[:1] != "/":
        pytest.skip("no static libc here")
    target = made(folder, EXAMPLES / "classic.c", "classic.c", abi="linux")
    said = subprocess.run([target], input="1 2 3 4", capture_output=True, text=True, check=False)
    assert said.stdout == "10\n"


def test_the_old_program_stays_when_the_new_one_does_not_compile(folder: Path) -> None:
    target = Path(made(folder, EXAMPLES / "hello.c", "kept.c"))
    before = target.read_bytes()
    broken = folder / "broken.c"
    broken.write_text("#include <duck.h>\nint64_t duck_call(")
    with pytest.raises(InvalidArgument, match=r"broken.c does not compile: .*broken.c:2"):
        cc.compile_program(broken, target)
    nothing = folder / "nothing.c"
    nothing.write_text("int unused;")
    with pytest.raises(InvalidArgument, match="duck_call"):
        cc.compile_program(nothing, target)
    assert target.read_bytes() == before
    assert [path.name for path in folder.glob(".kept*")] == []


def test_refusals(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = EXAMPLES / "hello.c"
    for sources, options, words in (
        ([], {}, "no source was given"),
        (["prog.f90"], {}, "expected a file that ends in .c"),
        ([source], {"abi": "dos"}, "abi 'dos'"),
        ([source], {"level": "9"}, "optimisation '9'"),
        ([source, EXAMPLES / "histogram.rs"], {}, "several sources"),
        ([EXAMPLES / "histogram.rs"], {"libc": True}, "libc is for resident programs"),
        ([source], {"abi": "linux", "libc": True}, "libc is for resident programs"),
    ):
        with pytest.raises(InvalidArgument, match=words):
            cc.compile_program(sources, folder / "x.elf", **options)  # type: ignore[arg-type]
    with pytest.raises(NotFound, match="no such file"):
        cc.compile_program(folder / "missing.c", folder / "x.elf")
    with pytest.raises(InvalidArgument, match="cannot be written"):
        cc.compile_program(source, folder / "no" / "x.elf")
    monkeypatch.setenv("CC", "no-such-compiler -O9")
    with pytest.raises(NotFound, match=r"\$CC is 'no-such-compiler -O9', and no such compiler is here"):
        cc.compile_program(source, folder / "x.elf")
    monkeypatch.delenv("CC")
    monkeypatch.setenv("PATH", str(folder))
    with pytest.raises(NotFound, match="no C compiler is installed: apt-get install gcc"):
        cc.compile_program(source, folder / "x.elf")


def test_on_the_command_line(folder: Path) -> None:
    target = folder / "typed.elf"
    words = [str(EXAMPLES / "gemv.c"), "-o", str(target), "-O", "3", "--json", "--", "-DNOTHING=1", "-Wall"]
    done = CliRunner().invoke(command, words)
    assert done.exit_code == 0, done.output
    said = json.loads(done.output)
    assert said["path"] == str(target)
    assert any("-DNOTHING=1 -Wall" in line for line in said["commands"])
    done = CliRunner().invoke(command, [str(EXAMPLES / "hello.c"), "-o", str(target)])
    assert "resident" in done.output
    assert CliRunner().invoke(command, []).exit_code == 2
    assert "teal duck cc gemv.c" in CliRunner().invoke(command, ["--help"]).output


# ---- what runs -------------------------------------------------------------------------------------------------------


def test_gemv_on_two_cores(folder: Path, duck: teal.Duck) -> None:
    weights = np.random.default_rng(1).standard_normal((45, 130), np.float32)
    x = np.random.default_rng(2).standard_normal(130, np.float32)
    with duck.open(made(folder, EXAMPLES / "gemv.c", "gemv.c", level="3"), cores=2) as gemv:
        gemv.map(weights)
        y = np.frombuffer(bytes(memoryview(gemv.call(x))), np.float32)
        np.testing.assert_allclose(y, weights @ x, rtol=1e-4, atol=1e-4)
        with pytest.raises(KernelFailed):
            gemv.call(b"123")


def test_matmul(folder: Path, duck: teal.Duck) -> None:
    a = np.random.default_rng(1).standard_normal((9, 33), np.float32)
    b = np.random.default_rng(2).standard_normal((33, 70), np.float32)
    with duck.open(made(folder, EXAMPLES / "matmul.c", "matmul.c", level="3"), cores=2) as matmul:
        matmul.map(np.concatenate([a.ravel(), b.ravel()]))
        c = np.frombuffer(bytes(memoryview(matmul.call(np.array([9, 33, 70], np.uint32)))), np.float32)
        np.testing.assert_allclose(c.reshape(9, 70), a @ b, rtol=1e-4, atol=1e-4)


def test_sort_and_hash(folder: Path, duck: teal.Duck) -> None:
    numbers = np.random.default_rng(3).integers(0, 1 << 32, 5_001, np.uint32)
    with duck.open(made(folder, EXAMPLES / "sort.c", "sort.c"), cores=2) as sort:
        sort.map(numbers)
        assert (np.frombuffer(bytes(memoryview(sort.call())), np.uint32) == np.sort(numbers)).all()
    with duck.open(made(folder, EXAMPLES / "hash.c", "hash.c")) as fnv:
        assert bytes(memoryview(fnv.call(b"hello"))) == struct.pack("<Q", 0xA430D84680AABD0B)


CXX = """
#include <duck.h>
struct Counter {
    long n;
    explicit Counter(long start) : n(start) {}
    virtual ~Counter() = default;
    virtual long next() { return ++n; }
};
static Counter counter(41);                                   // a constructor that runs before duck_init
static thread_local long mine = 7, others;
int64_t duck_call(const duck_t *duck, const void *, uint64_t, uint32_t core) {
    static const long first = counter.next();
    static_cast<long *>(duck->ob)[core] = first * 100 + mine++ * 10 + others++;
    return 8 * duck->cores;
}
"""


def test_cxx_and_variables_of_each_core(folder: Path, duck: teal.Duck) -> None:
    with duck.open(made(folder, CXX, "counter.cpp", flags=["-Wall", "-Wextra", "-Werror"]), cores=1) as session:
        first, second = (np.frombuffer(bytes(memoryview(session.call())), np.int64).tolist() for _ in range(2))
        assert (first, second) == ([4270], [4281])


WITH_LIBC = """
#include <duck.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
int64_t duck_call(const duck_t *duck, const void *args, uint64_t bytes, uint32_t core) {
    (void)args, (void)core;
    char *text = malloc(64);
    snprintf(text, 64, "%d bytes, %.5f", (int)bytes, 4 * atan(bytes / 3.0));
    const int n = snprintf(duck->ob, duck->ob_bytes, "%s", text);
    free(text);
    return n;
}
"""


def test_a_program_with_a_libc(folder: Path, duck: teal.Duck) -> None:
    if subprocess.run(["cc", "-print-file-name=libc.a"], capture_output=True, text=True, check=False).stdout[:1] != "/":
        pytest.skip("no static libc here")
    with duck.open(made(folder, WITH_LIBC, "libc.c", libc=True, flags=["-lm"])) as session:
        assert bytes(memoryview(session.call(b"abc"))) == b"3 bytes, 3.14159"


@pytest.mark.skipif(rustc() is None, reason="no rustc here")
def test_rust(folder: Path, duck: teal.Duck) -> None:
    data = np.random.default_rng(4).integers(0, 256, 10_007, np.uint8)
    with duck.open(made(folder, EXAMPLES / "histogram.rs", "histogram.rs", level="3"), cores=2) as histogram:
        histogram.map(data)
        counts = np.frombuffer(bytes(memoryview(histogram.call())), np.uint64)
        assert (counts == np.bincount(data, minlength=256)).all()


@pytest.mark.skipif(rustc() is None, reason="no rustc here")
def test_an_ordinary_program_in_rust_is_judged(folder: Path, duck: teal.Duck) -> None:
    """Rust's runtime looks at its three descriptors before main(), and aborts when it cannot."""
    source = folder / "add.rs"
    source.write_text("""use std::io::Read;
fn main() {
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text).unwrap();
    println!("{}", text.split_whitespace().map(|word| word.parse::<i64>().unwrap()).sum::<i64>());
}
""")
    made = cc.compile_program(source, folder / "add.elf", abi="linux")
    record = duck.judge(made.path, stdin=b"1 2 39", time="5s")
    assert (record["status"], record["stdout"], record["stderr"]) == ("Run Finished", b"42\n", b"")
