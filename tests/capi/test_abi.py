"""What liblaika shows to linkers and to other languages."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
from capi_builds import HERE, ROOT, run, tool

import teal
from teal.cli import config

pytestmark = pytest.mark.xdist_group("capi")

HEADER = ROOT / "core" / "capi" / "include" / "laika.h"
MAP = ROOT / "core" / "capi" / "liblaika.map"


def _library() -> Path:
    return config.root() / "lib" / "liblaika.so"


def _declared() -> set[str]:
    return set(re.findall(r"^[a-z].*?\b(laika_\w+)\(", HEADER.read_text(), re.MULTILINE))


def test_exported_symbols() -> None:
    """Exactly the functions of the header, all in one version of the ABI."""
    lines = run(tool("nm"), "-D", "--defined-only", _library()).splitlines()
    symbols = {line.split()[-1] for line in lines}
    assert symbols - {"LAIKA_1"} - {"LAIKA_1@@LAIKA_1"} == {f"{name}@@LAIKA_1" for name in _declared()}
    assert {line.strip(" ;") for line in MAP.read_text().splitlines() if "laika_" in line} == _declared()
    assert {"laika_init", "laika_infer", "laika_wait", "laika_strerror"} <= _declared()


def test_it_needs_libc_only() -> None:
    found = re.findall(r"NEEDED.*\[(.*?)\]", run(tool("readelf"), "-d", _library()))
    assert found
    assert {re.sub(r"\.so.*", "", name) for name in found} <= {
        "libc",
        "libm",
        "libpthread",
        "ld-linux-x86-64",
        "ld-linux-aarch64",
    }


def test_the_installed_header_is_this_one() -> None:
    assert (config.root() / "include" / "laika.h").read_bytes() == HEADER.read_bytes()


def test_pkg_config_says_what_teal_config_says() -> None:
    environment = {**os.environ, "PKG_CONFIG_PATH": config.flags()["pkgconfig"][0]}
    command = [tool("pkg-config"), "--cflags", "--libs", "laika"]
    said = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.split()
    paths = [re.sub(r"^(-I|-L|-Wl,-rpath,)", "", part) for part in said if "/" in part]
    assert {Path(path).resolve() for path in paths} == {config.root() / "include", config.root() / "lib"}
    assert "-llaika" in said


def _answers(program: Path, host: teal.Host) -> None:
    assert "1 passed, 0 failed" in run(program, host.address)


@pytest.mark.parametrize("standard", ["c++11", "c++20"])
def test_cpp(host: teal.Host, tmp_path: Path, standard: str) -> None:
    program = tmp_path / "speaks"
    flags = config.flags()
    strict = (f"-std={standard}", "-Wall", "-Wextra", "-Wpedantic", "-Werror")
    libraries = (*flags["cflags"], *flags["libs"])
    run(tool("c++", "g++"), *strict, HERE / "speaks.cpp", *libraries, "-o", program)
    _answers(program, host)


def test_rust(host: teal.Host, tmp_path: Path) -> None:
    rustc = tool("rustc")
    lib = config.root() / "lib"
    program = tmp_path / "speaks"
    libraries = ("-L", lib, "-l", "laika", "-C", f"link-arg=-Wl,-rpath,{lib}")
    run(rustc, "--edition=2021", HERE / "speaks.rs", *libraries, "-o", program)
    _answers(program, host)


def test_go(host: teal.Host, tmp_path: Path) -> None:
    go = tool("go")
    program = tmp_path / "speaks"
    flags = config.flags()
    environment = {
        **os.environ, "CGO_ENABLED": "1", "CGO_CFLAGS": " ".join(flags["cflags"]), "GOCACHE": str(tmp_path / "cache"),
        "CGO_LDFLAGS": " ".join(flags["libs"]), "CGO_LDFLAGS_ALLOW": "-Wl,-rpath.*",
    }  # fmt: skip
    subprocess.run([go, "build", "-o", program, HERE / "speaks.go"], env=environment, check=True)
    _answers(program, host)
