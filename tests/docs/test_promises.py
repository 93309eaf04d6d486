"""docs/promises.md: gapless numbers, tests that exist, bars that are judged. One of the promises is held here."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from teal.bench.call import PROMISES as BARS

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "promises.md"
PENDING = "**test pending**"
_REFERENCE = re.compile(r"`([\w./-]+\.\w+)::(\w+)`")
_PROMISE = re.compile(r"^\*\*(\d+)\. (.*?)(?=^\*\*\d+\. |^## |\Z)", re.MULTILINE | re.DOTALL)


@cache
def promises() -> list[tuple[int, str]]:
    return [(int(match[1]), match[2]) for match in _PROMISE.finditer(PAGE.read_text())]


@cache
def defined_in(path: Path) -> frozenset[str]:
    if path.suffix == ".py":
        tree = ast.parse(path.read_text())
        return frozenset(
            node.name for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        )
    return frozenset(re.findall(r"^void (test_\w+)\(", path.read_text(), re.MULTILINE))


def test_numbers_have_no_gap() -> None:
    assert [number for number, _ in promises()] == list(range(1, len(promises()) + 1))
    assert len(promises()) > 20


@pytest.mark.parametrize(("number", "text"), promises(), ids=lambda value: str(value) if isinstance(value, int) else "")
def test_is_held_by_tests_that_exist(number: int, text: str) -> None:
    references = _REFERENCE.findall(text)
    assert references or PENDING in text, f"promise {number} names no test"
    for name, test in references:
        path = ROOT / name
        assert path.exists(), f"promise {number}: {name} does not exist"
        assert test.startswith("test_"), f"promise {number}: {test} is no test"
        assert test in defined_in(path), f"promise {number}: {name} has no {test}"


def test_bars_are_those_that_are_judged() -> None:
    text = PAGE.read_text()
    table = re.findall(r"\| `(call\.[\w.]+)` \| ([\d.]+) (\S+) ", text)
    assert {bar: (float(limit), unit) for bar, limit, unit in table} == {
        bar: (promise.limit, promise.unit) for bar, promise in BARS.items()
    }
    assert set(re.findall(r"`(call\.[\w.]+)`", text)) == set(BARS)


def test_other_pages_mean_these_numbers() -> None:
    headlines = {number: text.partition("**")[0] for number, text in promises()}
    assert headlines[9].startswith("A worker that an engine bug kills fails what it was running, and is replaced")
    for page in ("ownership.md", "design.md", "features.md", "guide.md"):
        for number in re.findall(r"\bpromise (\d+)", (ROOT / "docs" / page).read_text()):
            assert int(number) in headlines, f"{page}: promise {number}"


def test_no_pickle_no_port_no_name() -> None:
    """Outside the benches (whose rivals listen on ports), the demo's HTTP rival, and ducks: where they were told to."""
    unwelcome = {"pickle", "marshal", "shelve", "dill", "cloudpickle", "multiprocessing"}
    for path in sorted((ROOT / "src" / "teal").rglob("*.py")):
        if "bench" in path.parts or path.name == "http.py":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            imported = [alias.name for alias in node.names] if isinstance(node, (ast.Import, ast.ImportFrom)) else []
            if isinstance(node, ast.ImportFrom):
                imported.append(node.module or "")
            assert not unwelcome & {name.partition(".")[0] for name in imported}, f"{path}:{getattr(node, 'lineno', 0)}"
            if isinstance(node, ast.Attribute):
                ports = () if path.parent.name == "duck" else ("AF_INET", "AF_INET6")
                assert node.attr not in (*ports, "allow_pickle"), f"{path}:{node.lineno}"
    for path in sorted((ROOT / "core").rglob("*.[ch]pp")):
        if "tests" not in path.parts:
            ports = "" if path.parent.name in ("duck", "bench") else "|AF_INET6?"
            assert not re.search(rf"\b(shm_open|sem_open{ports})\b", path.read_text()), path
