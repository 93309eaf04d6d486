"""Every Python block of README.md and docs/*.md runs.

The blocks of a page are one program, in their order, in a process of its own. A block under ``<!-- file: NAME -->`` is
written to that file beside the program instead; one under ``<!-- not run: REASON -->`` is left out.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
_BLOCK = re.compile(r"(?:^<!-- (file|not run): (.+?) -->\n)?^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# What a page takes for granted.
_BEFORE = {
    "ownership.md": "import teal, numpy as np\nhost = teal.Host()\nmodel = host.load('sum', 'builtin:sum')\n"
    "x, batch = np.full(3, 2, np.float32), [np.zeros(3, np.float32)] * 5\n",
    "systems.md": f"import os\nos.symlink({str(ROOT / 'examples')!r}, 'examples')\n",
}
_AFTER = {"ownership.md": "assert float(out) == 6\nhost.close()\n"}


@dataclass(frozen=True)
class Block:
    mark: str
    argument: str
    code: str
    line: int


def blocks(page: Path) -> list[Block]:
    text = page.read_text()
    return [Block(m[1] or "", m[2] or "", m[3], text.count("\n", 0, m.start(3)) + 1) for m in _BLOCK.finditer(text)]


def program(page: Path) -> str:
    """The page's program; errors name the page's own lines."""
    parts = [_BEFORE.get(page.name, "")]
    for block in blocks(page):
        if not block.mark:
            padded = "\n" * (block.line - 1) + block.code
            parts.append(f"exec(compile({padded!r}, {str(page)!r}, 'exec'))\n")
    return "".join([*parts, _AFTER.get(page.name, "")])


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page)], ids=lambda page: page.name)
def test_page_runs(page: Path, tmp_path: Path) -> None:
    for block in blocks(page):
        if block.mark == "file":
            (tmp_path / block.argument).write_text(block.code)
    script = tmp_path / "page.py"
    script.write_text(program(page))
    environment = {**os.environ, "PYTHONIOENCODING": "utf-8"}
    environment.pop("TEAL_HOST", None)  # else the pages talk to somebody else's host
    ran = subprocess.run(
        [sys.executable, script], cwd=tmp_path, env=environment, capture_output=True, encoding="utf-8", check=False
    )
    assert ran.returncode == 0, ran.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target, anchor in re.findall(r"\]\((?!https?:)([^)#]*)(?:#([^)]*))?\)", page.read_text()):
        linked = page if not target else page.parent / target
        assert linked.exists(), f"{page.name}: {target} does not exist"
        if anchor:
            titles = re.findall(r"^#+ (.+)$", linked.read_text(), re.MULTILINE)
            slugs = {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}
            assert anchor in slugs, f"{page.name}: {linked.name} has no heading #{anchor}"


def test_the_guide_is_short_and_lines_fit() -> None:
    assert len((ROOT / "docs" / "guide.md").read_text().splitlines()) <= 165
    for name in ("guide.md", "promises.md", "features.md", "errors.md"):
        for number, line in enumerate((ROOT / "docs" / name).read_text().splitlines(), 1):
            assert len(line) <= 140 or line.startswith("### "), f"{name}:{number} has {len(line)} characters"


def test_commands_exist() -> None:
    """What the pages tell people to type."""
    from teal.cli import _COMMANDS

    for page in PAGES:
        for line in re.findall(r"^```console\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL):
            for command in re.findall(r"\bteal ([a-z]+)", line):
                assert command in _COMMANDS, f"{page.name}: teal {command}"
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for page in PAGES:
        for target in re.findall(r"`make ([a-z-]+)`", page.read_text()):
            assert target in targets, f"{page.name}: make {target}"
