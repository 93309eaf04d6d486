"""The C tests of liblaika: plain, under AddressSanitizer and UBSan, under valgrind; and what Python alone can see."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from capi_builds import Compile, tool

import teal

pytestmark = pytest.mark.xdist_group("capi")  # one build, and programs that want the cores

_ASAN = {
    "ASAN_OPTIONS": "detect_stack_use_after_return=1:detect_leaks=1:abort_on_error=0",
    "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1",
}
_PASSED = " passed, 0 failed"


def _run(program: Path, *arguments: str | Path, before: tuple[str, ...] = (), **environment: str) -> str:
    command = [*before, str(program), *map(str, arguments)]
    result = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=300, env={**os.environ, **environment}
    )
    said = f"{result.stdout[-3000:]}{result.stderr[-6000:]}"
    assert result.returncode == 0, f"{' '.join(command)}: exit status {result.returncode}\n{said}"
    assert _PASSED in result.stdout, said
    return result.stdout


@pytest.fixture
def onnx_files(onnx_model: Callable[..., Path]) -> tuple[Path, Path]:
    """Shapes that the inputs fix, and one that only the run can tell."""
    dynamic = onnx_model(
        "g (float[n, 3] x) => (float[n, 3] y, float s) { y = Add(x, x)  s = ReduceSum<keepdims=0>(x) }", "dynamic"
    )
    growing = onnx_model(
        "g (float[n] x) => (float[m] y) <float zero = {0}> { above = Greater(x, zero) "
        " y = Compress<axis=0>(x, above) }",
        "growing",
    )
    return dynamic, growing


@pytest.fixture
def string_files(onnx_model: Callable[..., Path]) -> tuple[Path, Path]:
    """Strings joined, with how many there are; and those of them that are wanted."""
    join = onnx_model(
        "g (string[n] a, string[n] b) => (string[n] y, int64 rows) <int64[1] at = {0}> "
        "{ y = StringConcat(a, b)  shape = Shape(a)  first = Gather(shape, at)  rows = ReduceSum<keepdims=0>(first) }",
        "join",
    )
    pick = onnx_model("g (string[n] x, bool[n] keep) => (string[m] y) { y = Compress<axis=0>(x, keep) }", "pick")
    return join, pick


@pytest.fixture(scope="module")
def two_pools() -> Iterator[teal.Host]:
    with teal.Host(pools={"second": {}}) as made:
        yield made


@pytest.fixture
def not_a_model(tmp_path: Path) -> Path:
    path = tmp_path / "broken.onnx"
    path.write_bytes(b"this is no model" * 100)
    return path


# ---- the programs ----------------------------------------------------------------------------------------------------


def test_calls(compiled: Compile, host: teal.Host, onnx_files: tuple[Path, Path]) -> None:
    _run(compiled("calls"), host.address, *onnx_files)


def test_misuse(compiled: Compile, host: teal.Host, not_a_model: Path) -> None:
    _run(compiled("misuse"), host.address, not_a_model)


@pytest.mark.parametrize("name", ["async", "events", "chains", "threads", "forks", "signals"])
def test_program(compiled: Compile, host: teal.Host, name: str) -> None:
    _run(compiled(name), host.address)


def test_strings(compiled: Compile, host: teal.Host, string_files: tuple[Path, Path]) -> None:
    _run(compiled("strings"), host.address, *string_files)


def test_strings_sanitized(sanitized: Compile, host: teal.Host, string_files: tuple[Path, Path]) -> None:
    _run(sanitized("strings"), host.address, *string_files, **_ASAN)


def test_pools(compiled: Compile, two_pools: teal.Host) -> None:
    _run(compiled("pools"), two_pools.address)


def test_pools_sanitized(sanitized: Compile, two_pools: teal.Host) -> None:
    _run(sanitized("pools"), two_pools.address, **_ASAN)


def test_calls_sanitized(sanitized: Compile, host: teal.Host, onnx_files: tuple[Path, Path]) -> None:
    _run(sanitized("calls"), host.address, *onnx_files, **_ASAN)


def test_misuse_sanitized(sanitized: Compile, host: teal.Host, not_a_model: Path) -> None:
    _run(sanitized("misuse"), host.address, not_a_model, **_ASAN)


@pytest.mark.parametrize("name", ["async", "events", "chains", "threads", "forks", "signals"])
def test_program_sanitized(sanitized: Compile, host: teal.Host, name: str) -> None:
    _run(sanitized(name), host.address, "300", **_ASAN)


@pytest.fixture
def valgrind() -> tuple[str, ...]:
    return (tool("valgrind"), "-q", "--error-exitcode=99", "--leak-check=full")  # what may be lost counts too


def test_calls_under_valgrind(
    compiled: Compile, host: teal.Host, onnx_files: tuple[Path, Path], valgrind: tuple[str, ...]
) -> None:
    _run(compiled("calls"), host.address, *onnx_files, before=valgrind)


def test_misuse_under_valgrind(
    compiled: Compile, host: teal.Host, not_a_model: Path, valgrind: tuple[str, ...]
) -> None:
    _run(compiled("misuse"), host.address, not_a_model, before=valgrind)


def test_strings_under_valgrind(
    compiled: Compile, host: teal.Host, string_files: tuple[Path, Path], valgrind: tuple[str, ...]
) -> None:
    _run(compiled("strings"), host.address, *string_files, before=valgrind)


@pytest.mark.parametrize("name", ["async", "events", "chains", "threads", "forks"])
def test_program_under_valgrind(compiled: Compile, host: teal.Host, name: str, valgrind: tuple[str, ...]) -> None:
    # In a forked child what only the stacks of the parent's other threads held is lost, as it must be.
    leaks = ("--leak-check=no",) if name == "forks" else ()
    _run(compiled(name), host.address, "50", before=(*valgrind, *leaks))


# ---- what a client leaves behind -------------------------------------------------------------------------------------


def _until(condition: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end, f"{what}: not within 20 s"
        time.sleep(0.01)


def _clients(host: teal.Host) -> set[int]:
    return {client.pid for client in host.statistics().clients}


def _loaded(host: teal.Host) -> set[str]:
    return {info.name for info in host.models()}


@pytest.mark.parametrize("how", ["exit", "abort"])
def test_a_process_that_leaves_leaves_nothing(compiled: Compile, host: teal.Host, mlp_path: Path, how: str) -> None:
    before = _clients(host), _loaded(host)
    process = subprocess.run(
        [compiled("leaves"), host.address, mlp_path, how], capture_output=True, text=True, check=False
    )
    assert process.returncode == (0 if how == "exit" else -signal.SIGABRT), process.stderr
    _until(lambda: (_clients(host), _loaded(host)) == before, "its session and models are still there")


def test_persistent_stays(compiled: Compile, host: teal.Host, mlp_path: Path) -> None:
    before = _loaded(host)
    _run(compiled("leaves"), host.address, mlp_path, "persistent")
    _until(lambda: len(_loaded(host)) == len(before) + 1, "the other model is still there")
    (name,) = _loaded(host) - before
    assert re.fullmatch(r"mlp-[0-9a-f]{16}", name)
    _run(compiled("leaves"), host.address, mlp_path, "exit")  # the same file: the same model, and it stays
    assert name in _loaded(host)
    assert len(host.model(name).inputs) == 1
    host.unload(name)


def test_a_model_that_others_loaded_stays(compiled: Compile, host: teal.Host) -> None:
    host.load("builtin-sleep", "builtin:sleep")  # the name that liblaika gives it
    _run(compiled("async"), host.address)
    assert "builtin-sleep" in _loaded(host)
    host.unload("builtin-sleep")


@pytest.fixture
def doomed() -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A host of our own in another process, and its address."""
    name = f"capi-{uuid.uuid4().hex[:12]}"
    command = [sys.executable, "-c", "from teal.cli import main; main()", "serve", "--name", name]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout is not None
    line = process.stdout.readline()
    assert "ready" in line, line
    yield process, name
    process.kill()
    process.wait()
    process.stdout.close()


@pytest.mark.parametrize("build", ["compiled", "sanitized"])
def test_the_host_dies_in_the_middle_of_a_call(
    request: pytest.FixtureRequest, build: str, doomed: tuple[subprocess.Popen[str], str]
) -> None:
    program = request.getfixturevalue(build)("dies")
    host, name = doomed
    client = subprocess.Popen(
        [program, name], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, **_ASAN}
    )
    assert client.stdout is not None
    assert client.stdout.readline() == "waiting\n"
    host.kill()
    host.wait()
    out, error = client.communicate(timeout=60)
    assert client.returncode == 0, error
    assert _PASSED in out
