"""Whatever comes in by message, address, duration, name or path: an error of ours that says what was wrong, or a value.

Nothing but Teal's own errors (and msgspec's, which the listener turns into one) may come out of any of these doors.
"""

from __future__ import annotations

import array
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import teal
from teal import _core
from teal.host import address, duration, repository, wire
from teal.host.limits import Limits

quick = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])

NUMBERS = st.one_of(st.integers(-(1 << 63), (1 << 64) - 1), st.floats(), st.booleans(), st.none())
LEAVES = st.one_of(NUMBERS, st.text(max_size=20), st.binary(max_size=20))
TREES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=8), inner, max_size=4)),
    max_leaves=12,
)
DECODERS = {
    "envelope": wire.decode_envelope,
    "reply": wire.decode_reply,
    "order": wire.decode_order,
    "report": wire.decode_report,
}
TAGS = [kind.__struct_config__.tag for kind in wire.Message.__subclasses__()]
FIELDS = sorted({name for kind in wire.Message.__subclasses__() for name in kind.__struct_fields__})


def attempt(function: Callable[..., Any], *arguments: Any, **more: Any) -> tuple[Any, Exception | None]:
    """(value, None), or (None, the error)."""
    try:
        return function(*arguments, **more), None
    except (teal.TealError, msgspec.MsgspecError) as error:
        assert str(error)  # noqa: PT017
        return None, error


def decoded(decode: Callable[[bytes], Any], data: bytes) -> None:
    attempt(decode, data)


@pytest.mark.parametrize("name", DECODERS)
@quick
@given(data=st.binary(max_size=400))
def test_decoders_take_any_bytes(name: str, data: bytes) -> None:
    decoded(DECODERS[name], data)


@pytest.mark.parametrize("name", DECODERS)
@quick
@given(body=st.dictionaries(st.sampled_from(FIELDS), TREES, max_size=8), tag=st.sampled_from(TAGS), number=NUMBERS)
def test_decoders_take_any_fields(name: str, body: dict[str, Any], tag: str, number: Any) -> None:
    message = {"t": tag, **body}
    decoded(DECODERS[name], msgspec.msgpack.encode({"id": number, "body": message}))
    decoded(DECODERS[name], msgspec.msgpack.encode(message))


@pytest.mark.parametrize("name", DECODERS)
@quick
@given(cut=st.integers(0, 400), flip=st.integers(0, 400), bit=st.integers(0, 7))
def test_decoders_take_damaged_messages(name: str, cut: int, flip: int, bit: int) -> None:
    spec = wire.Spec("x", "float32", [1, "n", None])
    messages: dict[str, msgspec.Struct] = {
        "envelope": wire.Envelope(1, wire.Load("m", "a.onnx", options={"a": "b"}, has_file=True)),
        "reply": wire.Reply(7, {"inputs": [spec]}, wire.Failure("NotFound", "no")),
        "order": wire.LoadKernel(1, 2, "m", "onnx", "a.onnx", 3, {"a": "b"}, True),
        "report": wire.Loaded(1, 2, [spec], [spec], True, 0.5, wire.Failure("KernelFailed", "no")),
    }
    data = bytearray(wire.encode(messages[name]))
    DECODERS[name](bytes(data))
    data[flip % len(data)] ^= 1 << bit
    decoded(DECODERS[name], bytes(data))
    decoded(DECODERS[name], bytes(data[: cut % len(data)]))


def test_decoders_take_depth() -> None:
    for decode in DECODERS.values():
        for opener, close in ((b"\x91", b"\xc0"), (b"\x81\xa1t", b"\xc0")):
            with pytest.raises((msgspec.MsgspecError, RecursionError)):
                decode(opener * 60_000 + close)


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@quick
@given(
    datagrams=st.lists(
        st.tuples(st.one_of(st.binary(max_size=200), st.integers(0, 200_000).map(bytes)), st.integers(0, 12)),
        max_size=5,
    )
)
def test_receive_leaks_no_descriptor(datagrams: list[tuple[bytes, int]]) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs, open(os.devnull) as file:
        before = open_descriptors()
        for data, count in datagrams:
            fds = array.array("i", [file.fileno()] * count)
            theirs.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)] if count else [])
            datagram, error = attempt(wire.receive, ours)
            if error is not None:
                assert "longer than" in str(error)
            elif datagram is not None:
                assert len(datagram.data) == len(data)
                assert len(datagram.fds) == count
                datagram.close(keep=1)
                datagram.close()
        assert open_descriptors() <= before


def test_message_too_long_to_send() -> None:
    with pytest.raises(teal.InvalidArgument, match=rf"expected at most {wire.MAX_MESSAGE}"):
        wire.encode(wire.Lookup("x" * 200_000))
    text = wire.failure_of(teal.NotFound("\x01" * 1_000_000))
    assert len(wire.encode(wire.Reply(1, error=text))) <= wire.MAX_MESSAGE


@quick
@given(text=st.text(max_size=200))
def test_addresses(text: str) -> None:
    made, error = attempt(address.socket_address, text)
    assert "expected 1 to 100 bytes without NUL" in str(error) if error else 0 < len(made) <= 100
    name, error = attempt(address.default_address, text)
    assert "host name" in str(error) if error else name.endswith(f"/{text}")


@quick
@given(text=st.text(max_size=120))
def test_connecting_anywhere(text: str) -> None:
    host, error = attempt(teal.connect, text, timeout=0.05)
    assert host is None
    assert isinstance(error, (teal.NotFound, teal.InvalidArgument, teal.PeerDied))


@quick
@given(
    value=st.one_of(
        st.text(max_size=20), st.floats(), st.integers(), st.from_regex(r"\d{1,30}(\.\d{1,5})?(ns|us|ms|s|h)?")
    )
)
def test_durations(value: Any) -> None:
    ns, error = attempt(duration.nanoseconds, value, "$.idle")
    assert error.path == "$.idle" if isinstance(error, teal.InvalidArgument) else 0 <= ns <= 3600 * 10**9


@quick
@given(name=st.one_of(st.text(max_size=300), st.from_regex(r"[A-Za-z0-9._/-]{0,140}")))
def test_model_names(name: str) -> None:
    _, error = attempt(repository.check_name, name)
    if isinstance(error, teal.InvalidArgument):
        assert error.path == "$.name"
        assert len(str(error)) < 700
    else:
        assert 1 <= len(name) <= 128
        assert not {"/", "\0", " ", "\n"} & set(name)
        assert ".." not in name
        assert Path("/models", name).resolve().parent == Path("/models")


@quick
@given(source=st.one_of(st.text(max_size=100), st.from_regex(r"[a-z.:/]{0,30}(\.onnx|\.safetensors)?")))
def test_sources(source: str) -> None:
    kind, error = attempt(repository.kernel_kind, source)
    if isinstance(error, teal.InvalidArgument):
        assert error.path == "$.source"
    else:
        assert kind in ("onnx", "systems", "builtin", "function")


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """A repository with a good model and every way out of it that a folder can have."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "model.onnx").write_bytes(b"secret")
    folder = tmp_path / "models"
    for path in ("good", "versions/1", "versions/20", "versions/x", "empty"):
        (folder / path).mkdir(parents=True)
    for path in ("good", "versions/1", "versions/20", "versions/x"):
        (folder / path / "model.onnx").write_bytes(b"inside")
    (folder / "linked").symlink_to(outside)
    (folder / "linked-file").mkdir()
    (folder / "linked-file" / "model.onnx").symlink_to(outside / "model.onnx")
    (folder / "loop").symlink_to(folder / "loop")
    (folder / "folder").mkdir()
    (folder / "folder" / "model.onnx").mkdir()
    return folder


@quick
@example(path="loop/../linked")
@example(path="good/../loop/../linked-file")
@given(
    path=st.one_of(
        st.text(max_size=60),
        st.lists(
            st.sampled_from(["..", ".", "good", "linked", "linked-file", "model.onnx", "", "loop", "~"]), max_size=8
        ).map("/".join),
    )
)
def test_nothing_outside_the_repository(models: Path, path: str) -> None:
    for way in (path, "/" + path, path + "/model.onnx"):
        fd, error = attempt(lambda way=way: repository.open_file(repository.inside(models, way), 1000))
        if error is None:
            assert os.read(fd, 100) == b"inside", way
            os.close(fd)


def test_finding_in_the_repository(models: Path) -> None:
    assert repository.find(models, "good", None) == (models / "good" / "model.onnx", None)
    assert repository.find(models, "versions", None) == (models / "versions" / "20" / "model.onnx", 20)
    assert repository.find(models, "versions", 1)[1] == 1
    for name, number, words in [
        ("linked", None, "leaves the model repository"),
        ("linked-file", None, "leaves the model repository"),
        ("..", None, "model name"),
        ("good/../good", None, "model name"),
        ("missing", None, "no folder of that name"),
        ("empty", None, "neither empty/model.onnx nor"),
        ("versions", 7, r"there are \[1, 20\]"),
        ("versions", -1, "no version -1"),
        ("loop", None, "Symlink loop"),
    ]:
        with pytest.raises((teal.InvalidArgument, teal.NotFound), match=words):
            repository.find(models, name, number)


@pytest.mark.parametrize("kind", ["pipe", "directory", "device", "missing", "socket", "forbidden length", "NUL"])
def test_opening_what_is_no_file(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "thing.onnx"
    match kind:
        case "pipe":
            os.mkfifo(path)
        case "directory":
            path.mkdir()
        case "device":
            path = Path("/dev/zero")
        case "socket":
            with socket.socket(socket.AF_UNIX) as sock:
                sock.bind(str(path))
        case "forbidden length":
            path = Path("x" * 5000)
        case "NUL":
            path = Path("a\0b.onnx")
    with pytest.raises((teal.InvalidArgument, teal.NotFound)) as caught:
        repository.open_file(path, 1000)
    assert any(word in str(caught.value) for word in ("regular file", "No such", "4095 bytes", "No such device")), (
        caught.value
    )


@quick
@given(
    st.dictionaries(
        st.sampled_from(["bytes", "in_flight", "slots", "models", "clients", "model_bytes"]), NUMBERS, max_size=3
    )
)
def test_limits(given_limits: dict[str, Any]) -> None:
    made, error = attempt(Limits, **given_limits)
    if isinstance(error, teal.InvalidArgument):
        assert error.path in {f"$.limits.{name}" for name in given_limits}
    else:
        assert made.slots >= 1


@quick
@given(name=st.text(max_size=30), contents=st.binary(max_size=5000), limit=st.integers(1, 5000))
def test_sealing_a_file(name: str, contents: bytes, limit: int) -> None:
    with open(os.memfd_create("source"), "r+b") as file:
        file.write(contents)
        file.flush()
        before = open_descriptors()
        sealed, error = attempt(repository.seal, file.fileno(), name.replace("\0", ""), limit)
        if isinstance(error, teal.InvalidArgument):
            assert error.path == "$.source"
            assert not 0 < len(contents) <= limit
        else:
            assert os.pread(sealed.fd, 10_000, 0) == contents
            with pytest.raises(PermissionError):
                os.pwrite(sealed.fd, b"x", 0)
            os.close(sealed.fd)
        assert open_descriptors() <= before


@quick
@given(
    size=st.one_of(st.integers(-(1 << 63), 4095), st.integers(1 << 47, (1 << 64) - 1)),
    name=st.text(st.characters(min_codepoint=1, exclude_categories=["Cs"]), max_size=10),
)
def test_regions_and_dtypes(size: int, name: str) -> None:
    nbytes, error = attempt(_core.dtype_size, name)
    assert "is not one of Teal's" in str(error) if error else nbytes > 0
    with pytest.raises((teal.InvalidArgument, TypeError)):
        _core.make_region(size, 0, "small")
