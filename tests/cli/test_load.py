"""`teal load`, `teal unload`, `teal ls`: on a running host, with good files, bad files and bad names."""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Teal = Callable[[str], Any]
Typed = Callable[[Any], Any]


def test_load_shows_the_signature(teal: Teal, name: str, mlp: Path) -> None:
    said = teal(f"load {name} {mlp} --threads 1 --option session.intra_op.allow_spinning=0")
    assert said.status == 0
    first, *rest = said.out.splitlines()
    assert first.startswith(f"{name} version 1: onnx (fp32, threads 1), 18.5 KiB, loaded in ")
    assert rest == ["  in   x float32[batch, 64]", "  out  y float32[batch, 8]"]
    assert said.err == ""


def test_load_again_replaces_and_a_version_stays(teal: Teal, name: str, mlp: Path) -> None:
    assert teal(f"load {name} {mlp} --json").json["version"] == 1
    second = teal(f"load {name} {mlp} --json").json
    assert (second["version"], second["current"], second["pinned"]) == (2, True, False)
    pinned = teal(f"load {name} {mlp} --version 7 --no-idempotent --json").json
    assert (pinned["version"], pinned["pinned"], pinned["idempotent"]) == (7, True, False)
    (x,) = pinned["inputs"]
    assert (x["name"], x["dtype"], x["shape"], x["optional"]) == ("x", "float32", ["batch", 64], False)
    assert len(pinned["digest"]) == 64
    assert "version 7 of" in teal(f"load {name} {mlp} --version 7").err
    assert {m["version"] for m in teal("ls --json").json["models"] if m["name"] == name} >= {7}


def test_unload(teal: Teal, name: str) -> None:
    for version in (1, 2, 3):
        teal(f"load {name} builtin:identity --version {version}")
    assert teal(f"unload {name} --version 2").out == f"unloaded {name} version 2\n"
    assert [one["version"] for one in teal(f"unload {name} --force --json").json["unloaded"]] == [1, 3]
    gone = teal(f"unload {name}")
    assert (gone.status, gone.out) == (1, "")
    assert gone.err.startswith(f"NotFound: model '{name}' is not loaded")
    assert "has no version 9" in teal("unload echo --version 9").err


def test_ls(teal: Teal, typed: Typed, name: str, mlp: Path, serve: Any) -> None:
    digest = teal(f"load {name} {mlp} --json").json["digest"]
    lines = teal("ls").out.splitlines()
    assert lines[0].split() == ["name", "version", "kernel", "pool", "preempted", "size", "digest", "signature"]
    (line,) = (line for line in lines if line.startswith(name))
    for part in ("1*", "onnx", "default", "18.5 KiB", digest[:12], "x float32[batch, 64] → y float32[batch, 8]"):
        assert part in line
    empty = serve()
    assert typed(["ls", "--host", empty.name]).out == "no models are loaded; load one with `teal load NAME SOURCE`\n"
    assert typed(["ls", "--json", "--host", empty.name]).json["models"] == []


def test_rollback(teal: Teal, name: str, mlp: Path) -> None:
    assert teal(f"rollback {name}").err.startswith(f"NotFound: model '{name}' is not loaded")
    teal(f"load {name} {mlp}")
    assert f"an earlier version of '{name}'" in teal(f"rollback {name}").err
    teal(f"load {name} {mlp}")
    assert teal(f"rollback {name}").out == f"{name} is version 1 again (was 2)\n"
    assert teal(f"rollback {name} --json").json == {"name": name, "version": 2, "was": 1}
    assert "version 7 of" in teal(f"rollback {name} --version 7").err


def test_a_budget_of_memory(serve: Any, typed: Typed, mlp: Path) -> None:
    host = serve("--memory", "200M", "--spares", "1", "--keep", "2", "--pool", "p:memory=1G,keep=0,spares=0").name
    assert typed(["load", "m", str(mlp), "--host", host]).status == 0
    (model,) = typed(["ls", "--json", "--host", host]).json["models"]
    assert (model["parked"], model["kept"]) == (False, [])
    pools = {pool["name"]: pool for pool in typed(["stat", "--once", "--json", "--host", host]).json["pools"]}
    assert (pools["default"]["memory"], pools["p"]["memory"]) == (200 << 20, 1 << 30)
    assert 0 < pools["default"]["memory_used"] <= 200 << 20


@pytest.mark.parametrize("bad", ["..", ".", "", "../x", "a/b", "a\0b", "x" * 300, "-", "é", "a b", "a..b"])
def test_bad_names(typed: Typed, shared: str, bad: str) -> None:
    for command in (["load", "--", bad, "builtin:identity"], ["unload", "--", bad], ["infer", "--", bad, "x=1"]):
        said = typed([command[0], "--host", shared, *command[1:]])
        assert (said.status, said.out) == (1, "")
        assert said.err.startswith("InvalidArgument: $.name: model name ")
        assert len(said.err) < 400


def test_bad_files(teal: Teal, typed: Typed, shared: str, name: str, tmp_path: Path, mlp: Path) -> None:
    whole = mlp.read_bytes()
    (tmp_path / "cut.onnx").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "noise.onnx").write_bytes(b"\x08\xff" * 999)
    (tmp_path / "empty.onnx").touch()
    (tmp_path / "folder.onnx").mkdir()
    (tmp_path / "link.onnx").symlink_to("link.onnx")
    for file in ("cut", "noise", "empty", "folder"):
        said = teal(f"load {name} {tmp_path}/{file}.onnx")
        assert (said.status, said.out) == (1, "")
        assert said.err.startswith("InvalidArgument: ")
    for file in ("none", "link"):
        said = teal(f"load {name} {tmp_path}/{file}.onnx")
        assert said.err.startswith(f"NotFound: {tmp_path}/{file}.onnx: ")
    said = typed(["load", name, f"{tmp_path}/a\0b.onnx", "--host", shared])
    assert said.status == 1
    assert "NUL" in said.err
    assert "is not loaded" in teal(f"infer {name}").err  # nothing of all that is left
    assert teal("infer sum x=[1,2] --json").json["outputs"][0]["values"] == [3.0]  # and the host is well


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("builtin:none", "builtin kernel 'none'; there are ['identity'"),
        ("words", "expected a path ending in .onnx"),
        ("builtin:sum --kernel gpu", "expected onnx, openvino, torch, systems, elf, function or builtin"),
        ("no_such_module:f", "No module named 'no_such_module'"),
        ("toys:none", "toys has no 'none'"),
        ("", "this host has no model repository"),
        ("builtin:sum --version 0", "$.version"),
        ("builtin:sum --threads 0", "$.threads"),
        ("builtin:sum --option nonsense", "expected NAME=VALUE"),
        ("builtin:sum --option a=1 --option a=2", "given twice"),
    ],
)
def test_what_cannot_be_loaded(teal: Teal, name: str, arguments: str, said: str) -> None:
    result = teal(f"load {name} {arguments} --json")
    assert result.status in (1, 2)
    assert result.out == ""
    assert said in result.err


def test_no_host(typed: Typed, name: str, tmp_path: Path) -> None:
    for address in (name, f"@teal/none/{name}", str(tmp_path / "none.sock")):
        for command in ("ls", "stat", "stop", "infer x", "unload x", "load x builtin:sum"):
            said = typed([*command.split(), "--host", address])
            assert (said.status, said.out) == (1, "")
            assert said.err.startswith("NotFound: no host listens at ")
            assert "teal serve" in said.err
    assert "expected 1 to 64 letters" in typed(["ls", "--host", "a b"]).err


@pytest.mark.skipif(os.getuid() != 0, reason="needs another user")
def test_a_stranger_who_took_our_name_gets_nothing(typed: Typed, name: str) -> None:
    ready, told = os.pipe()
    child = os.fork()
    if child == 0:
        os.setuid(65534)
        stranger = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        stranger.bind(f"\0teal/0/{name}")
        stranger.listen()
        os.write(told, b".")
        signal.pause()
        os._exit(0)
    try:
        os.read(ready, 1)
        said = typed(["ls", "--host", name])
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(ready)
        os.close(told)
    assert said.status == 1
    assert "belongs to user 65534, not to you" in said.err


def test_one_line_and_status_1(started: Any, name: str) -> None:
    process = started("ls", "--host", name)
    out, err = process.communicate()
    assert (process.returncode, out) == (1, "")
    assert err.startswith("teal: NotFound: no host listens at ")
    assert err.count("\n") == 1


def test_a_device_that_is_not_there_is_said(teal: Teal, name: str) -> None:
    mllb = Path(__file__).parents[2] / "examples" / "systems" / "models" / "mllb.safetensors"
    said = teal(f"load {name} {mllb} --device opencl:nope")
    assert said.status == 0
    assert "opencl:nope" in said.out.splitlines()[1]
    assert teal(f"load {name} {mllb} --device opencl:nope --json").json["note"]


def test_an_engine_and_its_precision(teal: Teal, name: str, mlp: Path) -> None:
    pytest.importorskip("openvino")
    said = teal(f"load {name} {mlp} --kernel openvino --precision fp32 --threads 1 --json")
    assert said.status == 0
    info = json.loads(said.out)
    assert (info["kernel"], info["precision"], info["threads"]) == ("openvino", "fp32", 1)
    assert info["engine"].startswith("openvino ")
    assert "openvino (fp32, threads 1)" in teal(f"load {name} {mlp} --kernel openvino --threads 1").out
    assert "--precision" in teal("load --help").out
