"""The programs in examples/c and in docs/laika.md build with the line that they say, and answer."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
from capi_builds import ROOT, tool

import teal
from teal.cli import config

pytestmark = pytest.mark.xdist_group("capi")

EXAMPLES = ROOT / "examples" / "c"


def _build(source: Path, program: Path) -> Path:
    """With pkg-config, in a shell, as a person does."""
    tool("pkg-config")
    cc = tool("cc", "gcc", "clang")
    line = f"'{cc}' -Wall -Wextra -Werror '{source}' $(pkg-config --cflags --libs laika) -o '{program}'"
    environment = {**os.environ, "PKG_CONFIG_PATH": config.flags()["pkgconfig"][0]}
    done = subprocess.run(line, shell=True, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return program


def _says(host: teal.Host, *command: str | Path) -> str:
    environment = {**os.environ, "TEAL_HOST": host.address}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def digits() -> Path:
    pytest.importorskip("onnxruntime")
    return EXAMPLES / "digits.onnx"


@pytest.mark.parametrize("digit", [2, 7])
def test_image_in_class_out(host: teal.Host, tmp_path: Path, digits: Path, digit: int) -> None:
    program = _build(EXAMPLES / "digit.c", tmp_path / "digit")
    image = EXAMPLES / f"digit-{digit}.pgm"
    assert _says(host, program, digits, image).startswith(f"a {digit} (")
    # The same in colour, binary and eight times as large.
    rows = [[int(n) for n in line.split()] for line in image.read_text().splitlines()[4:]]
    large = tmp_path / "large.ppm"
    pixels = bytes(min(255, rows[y // 8][x // 8] * 16) for y in range(64) for x in range(64) for _ in range(3))
    large.write_bytes(b"P6\n# made larger\n64 64\n255\n" + pixels)
    assert _says(host, program, digits, large).startswith(f"a {digit} (")


@pytest.mark.parametrize(
    "image", [b"", b"P1\n1 1\n1", b"P5\n8 8\n255\nshort", b"P2\n99999 1\n1\n", b"P2\n2 2\n0\n1", b"P2 #"]
)
def test_what_is_no_image_is_refused(host: teal.Host, tmp_path: Path, digits: Path, image: bytes) -> None:
    program = _build(EXAMPLES / "digit.c", tmp_path / "digit")
    (tmp_path / "broken").write_bytes(image)
    environment = {**os.environ, "TEAL_HOST": host.address}
    command = [program, digits, tmp_path / "broken"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert "expected a PNM image" in done.stderr


def test_numbers_in_verdict_out(host: teal.Host, tmp_path: Path, digits: Path) -> None:
    program = _build(EXAMPLES / "classify.c", tmp_path / "classify")
    rows = (EXAMPLES / "digit-7.pgm").read_text().splitlines()[4:]
    numbers = [str(int(n) / 16) for row in rows for n in row.split()]
    assert re.match(r"class 7 of 10 \(", _says(host, program, digits, *numbers))


def test_the_program_in_the_page(host: teal.Host, tmp_path: Path) -> None:
    page = (ROOT / "docs" / "laika.md").read_text()
    source = tmp_path / "page.c"
    source.write_text(next(block for block in re.findall(r"```c\n(.*?)```", page, re.DOTALL) if "int main" in block))
    assert _says(host, _build(source, tmp_path / "page")) == "10\n"


def test_the_page_has_every_function_and_code() -> None:
    page = (ROOT / "docs" / "laika.md").read_text()
    header = (ROOT / "core" / "capi" / "include" / "laika.h").read_text()
    names = set(re.findall(r"^[a-z].*?\b(laika_\w+)\(", header, re.MULTILINE)) | set(
        re.findall(r"LAIKA_ERR_\w+", header)
    )
    assert {name for name in names if f"`{name}`" not in page} == set()
