"""docs/errors.md has a heading for every message, and none for a message that no longer exists.

Messages are taken from the source: calls of the error classes in Python (with ``ast``), and what the core throws or
reports (with a regular expression). What is computed becomes ``…``; the rest is the constant text that a heading must
have. A template of nearly nothing but ``…`` says somebody else's words: such headings are listed in ``_OTHERS``.
"""

from __future__ import annotations

import ast
import functools
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import teal
from teal import errors

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "errors.md"
CLASSES = frozenset(errors.__all__)
USAGE = frozenset({"UsageError", "BadParameter"})
FOREIGN = "Errors that are not Teal's"
_FOREIGN = frozenset({"TimeoutError", "BufferError"})
# Headings whose words are the system's, NumPy's, or made by somebody else in the core.
_OTHERS = frozenset(
    {
        "setting an array element with a sequence…",
        "… is not an array in CPU memory (NumPy array, torch CPU tensor, buffer or DLPack producer of a known dtype)",
        "TEAL_ISA=… cannot be honoured: on this machine it may be one of …",
        "…: No such file or directory",
        "…: No space left on device",
        "…: by …: …",
        "…: …: …",
    }
)


@dataclass(frozen=True)
class Message:
    kind: str  # class, "usage", FOREIGN, or "" for a message that reaches its reader in several classes
    template: str
    place: str


# ---- headings --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Entry:
    kind: str
    heading: str
    line: int
    body: tuple[str, ...]  # shared by headings that follow each other


def _plain(heading: str) -> str:
    inside = re.fullmatch(r"(`+)(.*)\1", heading.strip())
    assert inside is not None, f"{heading!r}: expected the message in backticks"
    return inside[2].strip() if len(inside[1]) > 1 else inside[2]


def _entries() -> list[Entry]:
    found: list[Entry] = []
    kind, waiting, body = "", [], []  # type: str, list[tuple[str, int]], list[str]

    def close() -> None:
        found.extend(Entry(kind, heading, line, tuple(body)) for heading, line in waiting)
        waiting.clear()
        body.clear()

    for number, line in enumerate(PAGE.read_text().splitlines(), 1):
        if line.startswith("## "):
            close()
            kind = line[3:].split(" · ")[0]
            kind = "usage" if kind.startswith("Usage errors") else kind
        elif line.startswith("### "):
            if body:
                close()
            waiting.append((_plain(line[4:]), number))
        elif line.strip() and waiting:
            body.append(line)
    close()
    return found


ENTRIES = _entries()


@functools.cache
def _pattern(template: str) -> re.Pattern[str]:
    return re.compile(".*".join(re.escape(piece) for piece in template.split("…")), re.DOTALL)


@functools.cache
def _weight(template: str) -> int:
    return sum(c.isalnum() for c in template)


def covers(heading: str, template: str) -> bool:
    """Is the heading that message, or one that says a little less of it?"""
    if heading == template:
        return True
    return bool(_pattern(heading).fullmatch(template)) and _weight(heading) >= 0.75 * _weight(template)


# ---- messages of the Python side -------------------------------------------------------------------------------------


def _texts(node: ast.expr, local: dict[str, ast.expr]) -> list[str]:
    """What a message expression may say."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return [node.value]
    if isinstance(node, ast.JoinedStr):
        return ["".join(_piece(value, local) for value in node.values)]
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return [a + b for a in _texts(node.left, local) for b in _texts(node.right, local)]
    if isinstance(node, ast.BoolOp):
        return [text for value in node.values for text in _texts(value, local)]
    return ["…"]


def _piece(node: ast.expr, local: dict[str, ast.expr]) -> str:
    if isinstance(node, ast.FormattedValue) and isinstance(node.value, ast.Name):
        known = local.get(node.value.id)  # complaint = f"…" a few lines above
        return _texts(known, {})[0] if isinstance(known, ast.JoinedStr) else "…"
    return _texts(node, local)[0]


def _name(function: ast.expr) -> str:
    return function.id if isinstance(function, ast.Name) else getattr(function, "attr", "")


def _message(call: ast.Call) -> tuple[str, list[ast.expr]] | None:
    """(class, parts of the message) of a call that makes an error, or hands one on by name."""
    name = _name(call.func)
    given = {keyword.arg: keyword.value for keyword in call.keywords}
    if name in CLASSES and call.args and name != "Cancelled":
        return name, call.args[:2] if name == "PeerDied" else call.args[:1]
    if name in ("Failure", "_refuse"):  # (…, class, message)
        *_, kind, text = [*call.args, given.get("message")] if "message" in given else [None, *call.args]
        if isinstance(kind, ast.Constant) and text is not None:
            return str(kind.value), [text]
    if name in USAGE and call.args:
        return "usage", call.args[:1]
    return (FOREIGN, call.args[:1]) if name in _FOREIGN else None


def _python_messages() -> Iterator[Message]:
    for path in sorted((ROOT / "src" / "teal").rglob("*.py")):
        if path.name == "errors.py" or "bench" in path.parts:
            continue
        tree = ast.parse(path.read_text())
        local: dict[str, ast.expr] = {
            target.id: node.value
            for node in ast.walk(tree)
            if isinstance(node, ast.Assign)
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and (made := _message(node)):
                texts = [""]
                for part in made[1]:
                    texts = [f"{a}: {b}" if a else b for a in texts for b in _texts(part, local)]
                place = f"{path.relative_to(ROOT)}:{node.lineno}"
                yield from (Message(made[0], re.sub("…+", "…", text), place) for text in texts)


# ---- messages of the core --------------------------------------------------------------------------------------------

_SITES = {
    r"\bError\(Code::(\w+),\s*": None,  # the class is in the match
    r"\b(?:fail)\(error,\s*": "InvalidArgument",
    r"\brefuse\(error,[^,]*,\s*": "InvalidArgument",
    r"\brun\.message = ": "",
    r"\bPyErr_(?:SetString|Format)\(PyExc_BufferError,\s*": FOREIGN,
    r"\bnb::(?:buffer_error|value_error)\(": FOREIGN,
}
_STRINGS = re.compile(r'"((?:[^"\\]|\\.)*)"')


def _split(text: str, start: int) -> list[str]:
    """The parts, between ``+``, of the C++ expression that begins there."""
    parts: list[str] = []
    part, depth, at = "", 0, start
    while True:
        if string := _STRINGS.match(text, at):
            part += string[0]
            at = string.end()
            continue
        c = text[at]
        if depth == 0 and c in ");,":
            return [*parts, part]
        depth += (c in "([{") - (c in ")]}")
        if c == "+" and depth == 0:
            parts.append(part)
            part = ""
        else:
            part += c
        at += 1


def _constant(part: str) -> str:
    part = part.strip()
    if system := re.match(r'system_message\("([^"]*)"', part):
        return f"{system[1]}: … (errno …)"
    rest = _STRINGS.sub("", part).replace("std::string()", "").strip()
    return "".join(_STRINGS.findall(part)).replace('\\"', '"').replace("%s", "…") if not rest else "…"


def _core_messages() -> Iterator[Message]:
    for path in sorted((ROOT / "core").rglob("*.[ch]pp")):
        if "tests" in path.parts:
            continue
        text = path.read_text()
        for site, kind in _SITES.items():
            for found in re.finditer(site, text):
                template = re.sub("…+", "…", "".join(_constant(part) for part in _split(text, found.end())))
                if kind is not None:  # their own path in front; errors made in Python have none yet
                    template = re.sub(r"^(\$\S*|…): ", "", template)
                code = found[1].title().replace("_", "") if kind is None else kind
                yield Message(code, template, f"{path.relative_to(ROOT)}:{text.count(chr(10), 0, found.start()) + 1}")


MESSAGES = [message for message in (*_python_messages(), *_core_messages()) if _weight(message.template) >= 3]


def test_the_messages_are_found() -> None:
    by_class = defaultdict(set)
    for message in MESSAGES:
        by_class[message.kind].add(message.template)
    assert CLASSES - set(by_class) <= {"Cancelled"}
    assert len(by_class["InvalidArgument"]) > 100
    assert (
        "region of … bytes: only … bytes are available on this machine; free memory or ask for less"
        in by_class["QuotaExceeded"]
    )
    assert "… does not convert to …: it makes …" in by_class["InvalidArgument"]


def test_every_message_has_a_heading() -> None:
    headings = defaultdict(list)
    for entry in ENTRIES:
        headings[entry.kind].append(entry.heading)
        headings[""].append(entry.heading)
    missing = [
        f"{message.place}: under {message.kind or 'any class'}: ### `{message.template}`"
        for message in MESSAGES
        if not any(covers(heading, message.template) for heading in headings[message.kind])
    ]
    assert not missing, "docs/errors.md needs headings:\n" + "\n".join(missing)


def test_every_heading_is_a_message() -> None:
    stale = [
        f"{PAGE.name}:{entry.line}: {entry.heading}"
        for entry in ENTRIES
        if entry.heading not in _OTHERS
        and not any(m.kind in (entry.kind, "") and covers(entry.heading, m.template) for m in MESSAGES)
        and not (entry.kind == FOREIGN and entry.heading in (PAGE.parents[1] / "core/bindings/tensor.cpp").read_text())
    ]
    assert not stale, "no such message any more:\n" + "\n".join(stale)


def test_every_heading_says_what_to_do_in_three_lines() -> None:
    for entry in ENTRIES:
        assert 1 <= len(entry.body) <= 3, f"{PAGE.name}:{entry.line}"
        assert "**Do**" in " ".join(entry.body), f"{PAGE.name}:{entry.line}"
    assert len({(entry.kind, entry.heading) for entry in ENTRIES}) == len(ENTRIES)


def test_reason_codes() -> None:
    source = (ROOT / "core" / "queue" / "request.hpp").read_text()
    codes = re.findall(r"^    (\w+) = (\d+),", source[source.index("enum class Reason") :], re.MULTILINE)
    rows = re.findall(r"^\| (\d+) \| (\w+) \|", PAGE.read_text(), re.MULTILINE)
    assert len(codes) > 10
    assert rows == [(number, name) for name, number in codes]


def test_every_class_has_its_place() -> None:
    text = PAGE.read_text()
    for name in CLASSES:
        assert re.search(rf"^(├── |└── )?{name}\b", text, re.MULTILINE), f"{name} is not in the tree"
        assert re.search(rf"^## {name}\b", text, re.MULTILINE), f"{name} has no section"


_ADVICE = re.compile(
    r"expected|expects|it has|there are|needs|\bgive|; |\bat most|\b(is|are) loaded|(out|in)puts are|this host has"
    r"|\bask |\buse |pip install|elsewhere in this call|its signature says|is declared as|must "
    r"|the most this host takes|has room for"
)
# Without: the system's or the engine's own words follow, or what is wrong is all that can be said.
_WITHOUT_ADVICE = frozenset(
    {
        "a mapping whose keys are not all names of inputs",
        "a number is out of range: …",
        "cannot listen at …: …",
        "control message longer than … bytes, or with more than … descriptors",
        "input … is missing",
        "message not understood: …",
        "message … is not for a host",
        "model file of … bytes: no memory for it (…)",
        "model file of … bytes: only … bytes of memory are available",
        "no room for … bytes in this client's shared memory",
        "output … is …, not one of Teal's dtypes",
        "output … is …: …",
        "path with a NUL byte",
        "reading the file of …: …",
        "the answer could not be sent: …",
        "the descriptor of … is not a regular file",
        "the file of … is empty",
        "the file shrank from … to … bytes while it was read",
        "the function returned None for output …",
        "the message should have come with a file descriptor",
        "this connection has a session with pool … already",
        "… does not convert to …: a number is out of its range",
        "… does not convert to …: it makes …",
        "… does not convert to …: …",
        "… does not say what it takes: wrap it, with a @teal.signature",
        "… does not take the inputs of its @teal.signature: …",
        "… is not UTF-8, in which names and paths travel",
        "… is not one of Teal's dtypes",
        "… is not text that UTF-8 can hold: …",
        "…: an output does not fit this client's quota of … bytes (Limits.bytes)",
        "…: is the model's own folder",
        "…: leaves the model repository …",
        "…: not a folder",
        "…: not a model onnxruntime can load: …",
        "…: not a regular file",
        "…: the request was malformed",
    }
)


# Without the value: it is a mapping or a message that would not fit, or there is none.
_WITHOUT_VALUE = frozenset(
    {
        (
            "a function kernel runs any code as the host's user, so only that user may load one; "
            "ask the host's owner to load it"
        ),
        "a mapping whose keys are not all names of inputs",
        "a systems load has no options and runs in one thread; leave options= and threads= out",
        "a systems load needs its file",
        "strings cannot be received in place; leave it out",
        "not finite; leave such observations out",
        "read-only memory cannot receive an output; give a writable tensor",
        "an ONNX kernel needs its file",
        "no source given, and this host has no model repository (teal serve --repository DIR)",
        "path with a NUL byte",
        "pool name: expected 1 to 128 letters, digits, '.', '_' or '-', starting with a letter or digit, without '..'",
        "strings cannot be filled in place; pass them to the call",
        "the first message must be hello",
        "the message should have come with a file descriptor",
        "the model file's descriptor must come with the message",
    }
)


def test_every_message_says_what_was_expected_or_what_to_do() -> None:
    """Of those that say what is wrong with what a caller gave, or with a limit; and the value itself is in it."""
    mine = [
        message
        for message in MESSAGES
        if message.kind in ("InvalidArgument", "QuotaExceeded")
        and message.place.startswith(("src/teal/host", "src/teal/kernel"))
    ]
    assert len(mine) > 80
    silent = {message.template for message in mine if not _ADVICE.search(message.template)}
    assert silent <= _WITHOUT_ADVICE  # a new message should not need to be here
    vague = [m.place for m in mine if "…" not in m.template and m.template not in _WITHOUT_VALUE]
    assert not vague


# ---- for real --------------------------------------------------------------------------------------------------------


def look_up(error: BaseException) -> str:
    """The heading that a person finds who searches for this message: the one with most of its words."""
    message = str(error).removeprefix(f"{getattr(error, 'path', None)}: ")
    shown = [message, message.partition(": ")[2]] if isinstance(error, teal.KernelFailed) else [message]
    headings = [entry.heading for entry in ENTRIES if entry.kind == type(error).__name__]
    matching = [heading for heading in headings if any(_pattern(heading).fullmatch(text) for text in shown)]
    return max(matching, key=_weight, default=f"nothing for {message!r}")


KERNELS = """
import os
def leave(x): os._exit(3)
class Unwilling:
    def __init__(self): raise RuntimeError("no weights")
    def __call__(self, x): return x
"""


@pytest.fixture(scope="module")
def provoked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[teal.Host]:
    folder = tmp_path_factory.mktemp("kernels")
    (folder / "unlucky.py").write_text(KERNELS)
    sys.path.insert(0, str(folder))
    try:
        with teal.Host(limits=teal.Limits(bytes=1 << 20, slots=8)) as host:
            for name in ("sum", "sleep", "identity"):
                host.load(name, f"builtin:{name}")
            host.load("leave", "unlucky:leave")
            yield host
    finally:
        sys.path.remove(str(folder))


def _busy_release(host: teal.Host) -> None:
    tensor = host.empty((3,))
    view = tensor.numpy()
    try:
        tensor.release()
    finally:
        del view  # the traceback keeps what is in this frame


def _cancelled(host: teal.Host) -> None:
    future = host.model("sleep").submit(50_000)
    future.cancel()
    future.result()


def _released(host: teal.Host) -> None:
    tensor = host.empty((3,))
    tensor.release()
    tensor.numpy()


def _too_many(host: teal.Host) -> None:
    kept: list[teal.Outputs] = []
    try:
        while True:
            kept.append(host.model("sum")(np.ones(4, np.float32)))
    finally:
        kept.clear()  # the traceback keeps the list


_NAME_RULE = (
    "model name …: expected 1 to 128 letters, digits, '.', '_' or '-', starting with a letter or digit, without '..'"
)
PROVOCATIONS: list[tuple[str, Callable[[teal.Host], Any]]] = [
    ("…, input … expects …", lambda host: host.model("sum")(np.ones(3))),
    ("input … is missing; the inputs are …", lambda host: host.model("sum")()),
    ("…: not inputs of …; it has …", lambda host: host.model("sum")(y=1.0)),
    ("… does not convert to …: it makes …", lambda host: host.model("sleep")(0.5)),
    ("give its shape, as in …=(1, 3)", lambda host: host.model("sum").new_inputs()),
    ("…, expected seconds from now", lambda host: host.model("sum")(1.0, deadline=float("inf"))),
    (
        _NAME_RULE,
        lambda host: host.load("../../etc", "builtin:sum"),
    ),
    ("…: No such file or directory", lambda host: host.load("m", "no-such-file.onnx")),
    (
        "function …: …; the worker imports it, so it must be on the worker's path",
        lambda host: host.load("m", "no_such_module:f"),
    ),
    ("model … is not loaded; loaded are …", lambda host: host.model("nobody")),
    (
        "no host listens at … (…); start one with `teal serve`, or embed a teal.Host()",
        lambda host: teal.connect("@teal/0/no such host"),
    ),
    (
        "… more bytes of shared memory: this client has … of its …; release tensors, or raise Limits.bytes",
        lambda host: host.empty((1 << 22,), "uint8"),
    ),
    ("all … slots of this session are on loan; release tensors, or raise Limits.slots", _too_many),
    ("…: the deadline passed before the answer came", lambda host: host.model("sleep")(200_000, deadline=0.01)),
    ("…: by …: …", _cancelled),
    ("worker: … while it ran …", lambda host: host.model("leave")(0)),
    ("tensor is released", _released),
    ("… views of this tensor are still in use; drop them first", _busy_release),
    (
        "a host listens at … already…; use it with teal.connect(), or give --name another name",
        lambda host: teal.Host(host.address.rpartition("/")[2]),
    ),
    ("… microseconds, expected 0 to 60000000", lambda host: host.model("sleep")(-1)),
    ("making an instance of …: …: …", lambda host: host.load("m", "unlucky:Unwilling")),
]


@pytest.mark.parametrize(("heading", "provoke"), PROVOCATIONS, ids=[heading[:40] for heading, _ in PROVOCATIONS])
def test_a_message_leads_to_its_heading(heading: str, provoke: Callable[[teal.Host], Any], provoked: teal.Host) -> None:
    with pytest.raises(teal.TealError) as caught:
        provoke(provoked)
    assert look_up(caught.value) == heading


def test_another_build_is_refused_with_both_versions(provoked: teal.Host) -> None:
    from teal import _core
    from teal.host import address, wire

    sock, _ = address.connect(provoked.address)
    with sock:
        wire.send(sock, wire.Envelope(1, wire.Hello(wire.PROTOCOL, _core.ABI_VERSION + 1, "9.9.9", 1)))
        datagram = wire.receive(sock)
        assert datagram is not None
        with pytest.raises(teal.VersionMismatch, match=r"0\.1\.0.*9\.9\.9") as caught:
            wire.body_of(wire.decode_reply(datagram.data), datagram)
    assert look_up(caught.value).startswith("this host is Teal …")


def test_a_closed_host_and_a_usage_error() -> None:
    from click.testing import CliRunner

    from teal.cli import group

    with teal.Host() as host:
        model = host.load("sum", "builtin:sum")
    with pytest.raises(teal.Closed) as caught:
        model(1.0)
    assert look_up(caught.value) == "the connection to the host is closed"
    said = CliRunner().invoke(group, ["serve", "--name", "a", "--listen", "b"])
    assert said.exit_code == 2
    assert any(entry.heading in said.output for entry in ENTRIES if entry.kind == "usage")
