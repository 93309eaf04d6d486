"""Two hosts and two users on one machine: each his own; a stranger gets in only when the owner said so."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
import watch
from crash_host import CrashHost, unused_name
from nursery import Nursery

import teal

STRANGER = 54_321  # a user number that nobody has

as_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")

Outcome = tuple[str, object]  # error's name and its message, or "" and the result


@pytest.fixture
def as_user(nursery: Nursery, tmp_path: Path) -> Callable[..., list[Outcome]]:
    """What comes of each act (see nursery.stranger) done by a process of that user."""

    def act(uid: int, address: str, acts: list[str], argument: str = "") -> list[Outcome]:
        output = tmp_path / f"outcome-{uid}"
        child = nursery.start("stranger", uid=uid, address=address, acts=acts, argument=argument, output=str(output))
        watch.until(child.ended, "the stranger's end")
        return [(kind, what) for kind, what in json.loads(output.read_text())]

    return act


def test_two_hosts_side_by_side(hosts: Callable[..., CrashHost]) -> None:
    one, other = hosts(), hosts()
    with teal.connect(one.address) as a, teal.connect(other.address) as b:
        a.load("m", "builtin:identity")
        assert float(a.model("m")(3.0)[0].numpy()) == 3
        with pytest.raises(teal.NotFound, match="'m' is not loaded"):
            b.model("m")
        b.load("m", "crash_kernels:square")
        assert float(b.model("m")(np.array([3.0]))[0].numpy()[0]) == 9
        assert float(a.model("m")(3.0)[0].numpy()) == 3
        one.kill()
        assert float(b.model("m")(np.array([3.0]))[0].numpy()[0]) == 9


@as_root
def test_stranger_is_refused(hosts: Callable[..., CrashHost], as_user: Callable[..., list[Outcome]]) -> None:
    host = hosts()
    [(kind, message)] = as_user(STRANGER, host.address, ["attach"])
    assert kind == "NotFound"
    assert (
        message == f"user {STRANGER} may not use this host; its owner can allow it: teal serve --allow-user {STRANGER}"
    )
    with teal.connect(host.address) as attached:
        assert len(attached.statistics().clients) <= 1


@as_root
@pytest.mark.parametrize("kind", ["abstract", "path"])
def test_stranger_who_was_let_in(
    kind: str,
    hosts: Callable[..., CrashHost],
    as_user: Callable[..., list[Outcome]],
    tmp_path: Path,
    model_file: Path,
) -> None:
    """He calls and loads models; what would run code as the owner, or end the host, is the owner's."""
    options = {}
    if kind == "path":
        readable(tmp_path)
        options["address"] = str(tmp_path / "teal.sock")
    host = hosts(allowed_uids=[STRANGER], **options)
    with teal.connect(host.address) as attached:
        attached.load("identity", "builtin:identity")
        told = as_user(STRANGER, host.address, ["attach", "call", "load", "function", "stop", "call"])
        assert told[0] == ("", "in")
        assert told[1] == ("", 3.0)
        assert told[2] == ("", "theirs")
        assert told[3][0] == "InvalidArgument"
        assert "runs any code as the host's user, so only that user may load one" in str(told[3][1])
        assert told[4] == ("InvalidArgument", f"user {STRANGER} may use this host, and only its owner may stop it")
        assert told[5] == ("", 3.0)
        [(other, _)] = as_user(STRANGER + 1, host.address, ["attach"])
        assert other == "NotFound"
        copy = tmp_path / "affine.onnx"
        copy.write_bytes(model_file.read_bytes())
        copy.chmod(0o644)
        if kind == "path":
            assert as_user(STRANGER, host.address, ["attach", "onnx"], str(copy))[1] == ("", 7.0)


@as_root
def test_stranger_may_change_only_what_he_loaded(
    hosts: Callable[..., CrashHost], as_user: Callable[..., list[Outcome]]
) -> None:
    host = hosts(allowed_uids=[STRANGER, STRANGER + 1])
    with teal.connect(host.address) as attached:
        assert attached.load("identity", "builtin:identity").info.uid == os.getuid()
        told = as_user(STRANGER, host.address, ["attach", "reload", "pin", "unload", "force", "call"])
        refused = (
            f"'identity' was loaded by user {os.getuid()}; only that user and the host's owner may replace or unload it"
        )
        assert told[1:] == [("InvalidArgument", refused)] * 4 + [("", 3.0)]
        told = as_user(STRANGER, host.address, ["attach", "load", "load again", "unload theirs", "load"])
        assert told[1:] == [("", "theirs"), ("", 2), ("", None), ("", "theirs")]
        told = as_user(STRANGER + 1, host.address, ["attach", "unload theirs", "load"])
        assert [kind for kind, _ in told[1:]] == ["InvalidArgument"] * 2
        assert {(info.name, info.uid) for info in attached.models()} == {
            ("identity", os.getuid()), ("theirs", STRANGER),
        }  # fmt: skip
        attached.load("theirs", "builtin:sum")
        attached.unload("theirs")  # the owner may


@as_root
def test_stranger_may_look_at_agents_and_no_more(
    hosts: Callable[..., CrashHost], as_user: Callable[..., list[Outcome]]
) -> None:
    host = hosts(allowed_uids=[STRANGER])
    with teal.connect(host.address) as attached:
        attached.agents.start("default", "shinjuku")
        orders = ["start agent", "upgrade agent", "set agent", "stop agent", "trace"]
        told = as_user(STRANGER, host.address, ["attach", "look at agents", *orders])
        assert told[1] == ("", "online")
        said = f"user {STRANGER} may use this host, and only its owner may direct its agents"
        assert told[2:] == [("InvalidArgument", said)] * len(orders)
        assert attached.agents["default"].policies == ("shinjuku",)


@as_root
def test_stranger_does_not_read_with_the_owners_eyes(
    hosts: Callable[..., CrashHost], as_user: Callable[..., list[Outcome]], tmp_path: Path
) -> None:
    """A model's weights may be in a file beside it: which the worker would open, and the stranger may not."""
    weights = onnx.TensorProto(name="w", data_type=onnx.TensorProto.UINT8, data_location=onnx.TensorProto.EXTERNAL)
    weights.dims[:] = [6]
    weights.external_data.add(key="location", value="secret")
    output = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.UINT8, [6])
    graph = onnx.helper.make_graph([onnx.helper.make_node("Identity", ["w"], ["y"])], "g", [], [output], [weights])
    model = onnx.helper.make_model(graph, ir_version=8, opset_imports=[onnx.helper.make_opsetid("", 17)])
    readable(tmp_path)
    (tmp_path / "thief.onnx").write_bytes(model.SerializeToString())
    (tmp_path / "thief.onnx").chmod(0o644)
    (tmp_path / "secret").write_bytes(b"secret")
    (tmp_path / "secret").chmod(0o600)
    host = hosts(allowed_uids=[STRANGER], cwd=tmp_path)
    with teal.connect(host.address) as attached:
        assert bytes(attached.load("mine", tmp_path / "thief.onnx")()[0].numpy()) == b"secret"
        told = as_user(STRANGER, host.address, ["attach", "thief"], str(tmp_path / "thief.onnx"))
        assert told[1][0] == "InvalidArgument"
        assert "external data" in str(told[1][1]).lower()


def readable(folder: Path) -> None:
    """Lets other users into the test's own folder."""
    for path in (folder, *list(folder.parents)[:3]):
        if path != Path("/tmp") and path.is_relative_to("/tmp"):
            path.chmod(0o755)


@as_root
def test_two_users_with_the_same_host_name(
    hosts: Callable[..., CrashHost], as_user: Callable[..., list[Outcome]]
) -> None:
    """A host name belongs to a user: two users' "default" do not meet."""
    name = unused_name()
    mine = hosts(name)
    try:
        theirs = hosts(name, uid=STRANGER, environment={"HOME": "/nonexistent"})
    except (RuntimeError, PermissionError):
        pytest.skip("another user cannot run this installation")
    assert mine.address != theirs.address
    with teal.connect(mine.address) as attached:
        attached.load("mine", "builtin:identity")
        [(kind, _)] = as_user(STRANGER, mine.address, ["attach"])
        assert kind == "NotFound"
        assert as_user(STRANGER, theirs.address, ["attach", "load"])[1] == ("", "theirs")
        assert [info.name for info in attached.models()] == ["mine"]


@as_root
def test_stranger_who_squats_on_our_name(nursery: Nursery, tmp_path: Path) -> None:
    """Anybody may bind an abstract name first. Our client does not talk to him, and our host says who is there."""
    name = unused_name()
    address = f"@teal/{os.getuid()}/{name}"
    output = tmp_path / "outcome"
    nursery.start("stranger", uid=STRANGER, address=address, acts=["squat"], argument="", output=str(output))
    watch.until(output.exists, "the squatter")
    with pytest.raises(teal.NotFound, match=rf"belongs to user {STRANGER}, not to you"):
        watch.until(lambda: not isinstance(reach(address), teal.NotFound), "the squatter")
    with pytest.raises(teal.Busy, match=rf"process \d+ of user {STRANGER}"):
        teal.Host(name)


def reach(address: str) -> object:
    try:
        return teal.connect(address)
    except teal.NotFound as error:
        if "no host listens" in str(error):
            return error
        raise
