"""The public names: one door for each, typed, documented, and the texts that show them are true."""

from __future__ import annotations

import ast
import inspect
import pickle
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import teal
from teal import errors

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "teal"


def test_all_is_what_there_is() -> None:
    shown = [name for name in dir(teal) if not name.startswith("_")]
    there = {name for name in shown if not isinstance(getattr(teal, name), ModuleType)}
    assert there | {"__version__"} == set(teal.__all__)
    assert len(teal.__all__) == len(set(teal.__all__))


def test_imported_again_after_it_was_taken_out_of_sys_modules() -> None:
    """As module reloaders do. What was made before goes on, and errors are those of the module that is there."""
    code = """
import sys, teal
old = teal.Tensor
with teal.Host() as host:
    model = host.load("echo", "builtin:identity")
    for name in [name for name in sys.modules if name.split(".")[0] == "teal"]:
        del sys.modules[name]
    import teal as again
    assert again is not teal and again.Tensor is old
    with again.connect(host.address) as other:
        assert other.model("echo")(model([1, 2])[0])[0].numpy().tolist() == [1, 2]
        try:
            other.empty((1,) * 9)
        except again.TealError:
            print("fine")
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout) == (0, "fine\n"), ran.stderr


def test_type_checkers_are_told_where_names_come_from() -> None:
    tree = ast.parse((SOURCE / "__init__.py").read_text("utf-8"))
    told = {
        alias.name: node.module
        for block in tree.body
        if isinstance(block, ast.If)
        for node in ast.walk(block)
        if isinstance(node, ast.ImportFrom) and node.module != "teal"
        for alias in node.names
    }
    assert told == {name: teal._HOMES.get(name, "teal.errors") for name in set(teal.__all__) - {"__version__"}}


@pytest.mark.parametrize(
    ("how", "what", "not_there"),
    [
        ([], "teal", {"asyncio", "subprocess", "teal.duck.duck", "teal.host.daemon", "teal.host.agent_view"}),
        (["-X", "teal=inside"], "teal.host.worker", {"asyncio", "numpy", "subprocess", "teal.host.model"}),
        (["-X", "teal=inside"], "teal.agents.process", {"asyncio", "numpy", "teal.host.host", "onnxruntime"}),
    ],
)
def test_nobody_waits_for_what_is_not_needed(how: list[str], what: str, not_there: set[str]) -> None:
    program = f"import sys, {what}; print(*sys.modules)"
    run = subprocess.run([sys.executable, *how, "-c", program], capture_output=True, text=True, check=True)
    modules = set(run.stdout.split())
    assert what in modules
    assert not modules & not_there


def test_whatever_is_asked_for_comes() -> None:
    program = "import teal; [getattr(teal, name) for name in dir(teal)]; print(teal.duck.Group, teal.memory.leaks())"
    for how in ([], ["-X", "teal=inside"]):
        run = subprocess.run([sys.executable, *how, "-c", program], capture_output=True, text=True, check=False)
        assert run.stdout == "<class 'teal.duck.group.Group'> []\n", run.stderr
    with pytest.raises(AttributeError, match="module 'teal' has no attribute 'Hots'"):
        teal.Hots  # noqa: B018


def re_exported(tree: ast.Module) -> Iterator[tuple[str, bool]]:
    """(name, defined here) of each name that a module lists in __all__ or imports `as` itself."""
    defined = {node.name for node in tree.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    for node in tree.body:
        if isinstance(node, ast.ImportFrom):
            yield from ((alias.name, False) for alias in node.names if alias.asname == alias.name)
        targets = node.targets if isinstance(node, ast.Assign) else []
        if any(isinstance(target, ast.Name) and target.id == "__all__" for target in targets):
            yield from ((name, name in defined) for name in ast.literal_eval(node.value))  # type: ignore[attr-defined]


def test_each_name_has_one_door() -> None:
    for path in SOURCE.rglob("*.py"):
        if path == SOURCE / "__init__.py":
            continue
        for name, defined in re_exported(ast.parse(path.read_text("utf-8"))):
            assert defined or name not in teal.__all__, f"{path} re-exports teal.{name}"


def test_submodules_are_no_second_door() -> None:
    """`teal` shows the packages it is made of, and nothing that it imported for itself."""
    modules = {name for name, value in vars(teal).items() if isinstance(value, ModuleType) and name[0] != "_"}
    inside = {path.stem for path in SOURCE.iterdir() if path.is_dir() or path.suffix == ".py"}
    assert modules <= inside


def test_everything_public_is_documented() -> None:
    for name in set(teal.__all__) - {"__version__"}:
        value = getattr(teal, name)
        assert inspect.getdoc(value), name
        if inspect.isclass(value) and value.__module__ != "teal._core":
            for attribute, member in vars(value).items():
                if not attribute.startswith("_") and (inspect.isfunction(member) or isinstance(member, property)):
                    assert inspect.getdoc(member), f"{name}.{attribute}"


def test_public_functions_are_annotated() -> None:
    for name in set(teal.__all__) - {"__version__"}:
        value = getattr(teal, name)
        if value.__module__ == "teal._core":
            continue
        members = (
            [value]
            if inspect.isfunction(value)
            else [m for a, m in vars(value).items() if inspect.isfunction(m) and not a.startswith("_")]
        )
        for member in members:
            hints = inspect.signature(member)
            assert hints.return_annotation is not inspect.Signature.empty, member
            for parameter in hints.parameters.values():
                assert parameter.name == "self" or parameter.annotation is not parameter.empty, (member, parameter)


def test_the_error_tree() -> None:
    tree = inspect.getdoc(errors) or ""
    for name in errors.__all__:
        error = getattr(teal, name)
        assert issubclass(error, teal.TealError)
        assert re.search(rf"^(├── |└── )?{name}\b", tree, re.M), f"{name} is not in the tree that errors.py draws"
        if name != "TealError":
            made = errors.from_core(name, "who: what happened")
            assert type(made) is error
            assert "what happened" in str(made)
    assert type(errors.from_core("Nonsense", "x")) is teal.InternalError
    for error, builtin in (
        (teal.InvalidArgument, ValueError),
        (teal.NotFound, LookupError),
        (teal.DeadlineExceeded, TimeoutError),
        (teal.PeerDied, ConnectionError),
    ):
        assert issubclass(error, builtin)


def test_errors_carry_their_parts() -> None:
    invalid = errors.from_core("InvalidArgument", "$.inputs[0].shape[1]: 3, expected 4")
    assert isinstance(invalid, teal.InvalidArgument)
    assert (invalid.path, str(invalid)) == ("$.inputs[0].shape[1]", "$.inputs[0].shape[1]: 3, expected 4")
    assert teal.InvalidArgument("without a path").path is None
    died = errors.from_core("PeerDied", "worker: signal 11 SIGSEGV")
    assert isinstance(died, teal.PeerDied)
    assert (died.who, died.how) == ("worker", "signal 11 SIGSEGV")
    cancelled = teal.Cancelled("m", source="unload", reason="by force")
    assert (cancelled.source, cancelled.reason, str(cancelled)) == ("unload", "by force", "m: by unload: by force")
    failed = teal.KernelFailed("out of range", model="m")
    assert (failed.status, str(failed)) == ("out of range", "m: out of range")


def test_stubs_are_those_of_the_extension(tmp_path: Path) -> None:
    pytest.importorskip("nanobind")
    made = tmp_path / "_core.pyi"
    patterns = ROOT / "core" / "bindings" / "stubs.pat"
    command = [sys.executable, "-m", "nanobind.stubgen", "-q", "-p", patterns, "-m", "teal._core", "-o", made]
    subprocess.run(command, check=True)
    assert made.read_text() == (SOURCE / "_core.pyi").read_text(), "run `make stubs` and look at what changed"


def test_versions_agree() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert teal.__version__ == project["version"]
    assert (
        f"## {project['version']}" in (ROOT / "CHANGELOG.md").read_text()
        or "## Unreleased" in (ROOT / "CHANGELOG.md").read_text()
    )
    assert (SOURCE / "py.typed").exists()


def test_import_brings_no_engine() -> None:
    """What a client does not need is not loaded: attaching is a matter of milliseconds."""
    heavy = ("onnxruntime", "torch", "onnx", "rich", "click", "tokenizers")
    program = f"import sys, teal; print([name for name in {heavy!r} if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout == "[]\n"


# ---- the texts -----------------------------------------------------------------------------------------------------


def blocks(path: Path) -> list[Any]:
    found = re.findall(r"^```python\n(.*?)^```", path.read_text("utf-8"), re.M | re.S)
    return [pytest.param(path, block, id=f"{path.name}-{i}") for i, block in enumerate(found)]


BLOCKS = blocks(ROOT / "README.md")


@pytest.mark.parametrize(("path", "block"), BLOCKS)
def test_code_blocks_print_what_they_say(path: Path, block: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A comment behind print() says, up to a semicolon, what is printed. (tests/docs runs the blocks of all pages.)"""
    exec(compile(block, str(path), "exec"), {})
    said = [
        line.rpartition("# ")[2].partition(";")[0] for line in block.splitlines() if "print(" in line and "# " in line
    ]
    assert capsys.readouterr().out.splitlines()[: len(said)] == said


def test_readme_is_short_and_its_links_lead_somewhere() -> None:
    text = (ROOT / "README.md").read_text("utf-8")
    assert text.count("\n") <= 120
    assert any(block.values[0].name == "README.md" for block in BLOCKS)


def test_errors_come_home_from_other_processes() -> None:
    """Pools of processes pickle them: message, class and what they say of themselves stay."""
    for kind, given, more in (
        (teal.Cancelled, {"source": "host", "reason": "because"}, {"source": "host", "reason": "because"}),
        (teal.PeerDied, {"who": "worker", "how": "signal 9"}, {"who": "worker", "how": "signal 9"}),
        (teal.InvalidArgument, {"message": "no", "path": "$.x"}, {"path": "$.x"}),
        (teal.KernelFailed, {"status": "bad", "model": "m"}, {"status": "bad"}),
    ):
        error = kind(**given)  # type: ignore[arg-type]
        back = pickle.loads(pickle.dumps(error))
        assert (type(back), str(back), vars(back)) == (kind, str(error), more)
    for name in errors.__all__:
        error = getattr(teal, name)("words")
        assert str(pickle.loads(pickle.dumps(error))) == str(error)
