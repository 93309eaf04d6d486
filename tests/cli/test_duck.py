"""`teal duck …` and `teal judge` as they are typed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

import teal
from teal import _core
from teal.cli import duck as duck_group
from teal.cli import group

PROGRAM = Path(_core.__file__).parent / "duck" / "bin" / "selftest.elf"


def typed(*words: str | Path, stdin: bytes = b"") -> Result:
    return CliRunner().invoke(group, [*map(str, words)], input=stdin)


def said(*words: str | Path, stdin: bytes = b"") -> Any:
    result = typed(*words, "--json", stdin=stdin)
    assert result.exit_code == 0, f"{result.exception}\n{result.output}"
    return json.loads(result.stdout)


@pytest.fixture(scope="module")
def name() -> Iterator[str]:
    """A duck of its own, as `teal duck serve` makes it; stopped by `teal duck stop`."""
    name = f"cli-{os.getpid()}"
    command = [sys.executable, "-c", "from teal.cli import main; main()", "duck", "serve", "--name", name, "--json"]
    with subprocess.Popen([*command, "--memory", "1G"], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        ready = json.loads(process.stdout.readline())
        assert ready["pid"] == process.pid
        yield name
        if process.poll() is None:
            stopped = said("duck", "stop", "--duck", name)
            assert stopped["process_gone"]
        assert process.wait(20) == 0


def test_every_command_has_help_with_an_example_and_json() -> None:
    for command in duck_group._COMMANDS:
        said_of_it = typed("duck", command, "--help").output
        assert f"teal duck {command}" in said_of_it.partition("Example")[2], command
        assert "--json" in said_of_it, command
    assert "teal judge" in typed("judge", "--help").output.partition("Example")[2]


def test_run(name: str) -> None:
    result = typed("duck", "run", PROGRAM, "--duck", name, stdin=b"e there and back")
    assert (result.exit_code, result.stdout_bytes) == (0, b"e there and back")
    found = said("duck", "run", PROGRAM, "--duck", name, "--calls", "10", "--cores", "2", stdin=b"m")
    assert (found["bytes"], found["calls"]) == (8, 10)
    assert found["p50_us"] > 0


def test_run_with_an_input_buffer(name: str, tmp_path: Path) -> None:
    (tmp_path / "ib").write_bytes(b"\x02" * 5000)
    result = typed("duck", "run", PROGRAM, "--duck", name, "--ib", tmp_path / "ib", stdin=b"s")
    assert result.stdout_bytes == (10_000).to_bytes(8, "little")


def test_run_makes_a_duck_where_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEAL_DUCK", f"@teal-nobody-{os.getpid()}")
    result = typed("duck", "run", PROGRAM, stdin=b"e alone")
    assert (result.exit_code, result.stdout_bytes) == (0, b"e alone")
    missing = typed("duck", "run", PROGRAM, "--duck", f"nobody-{os.getpid()}", stdin=b"e")
    assert isinstance(missing.exception, teal.NotFound)


def test_the_environment_names_a_duck(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEAL_DUCK", name)
    assert typed("duck", "run", PROGRAM, stdin=b"e named").stdout_bytes == b"e named"
    with teal.duck.Server(None, cache=False, memory=1 << 30, listen="127.0.0.1:0") as server:
        monkeypatch.setenv("TEAL_DUCK", str(server.listening))
        with teal.Duck() as duck:
            assert duck.address == server.listening


def test_what_programs_do_is_an_error(name: str) -> None:
    with pytest.raises(teal.PeerDied, match="SIGSEGV"):
        CliRunner().invoke(group, ["duck", "run", str(PROGRAM), "--duck", name], input=b"x", catch_exceptions=False)


def test_questions(name: str) -> None:
    with teal.Duck(name) as duck, duck.open(PROGRAM, name="listed") as session:
        session.call(b"lfrom the program\n")
        (row,) = [one for one in said("duck", "ls", "--duck", name)["sessions"] if one["name"] == "listed"]
        assert row["pid"] == session.pid
        assert "listed" in typed("duck", "ls", "--duck", name).output
        assert "from the program" in typed("duck", "log", "--duck", name).output
    info = said("duck", "info", "--duck", name)
    assert {"cpu_model", "microcode", "temperature", "cores", "isa"} <= set(info["vitals"])
    assert "seccomp" in typed("duck", "info", "--duck", name).output
    stat = said("duck", "stat", "--duck", name)
    assert stat["sessions"]["opened"] >= 1
    assert "opened" in typed("duck", "stat", "--duck", name).output
    log = said("duck", "log", "--duck", name)
    assert said("duck", "log", "--duck", name, "--from", str(log["end"]))["start"] >= log["end"]
    ping = said("duck", "ping", "--duck", name, "-n", "3")
    assert 0 < ping["min_us"] <= ping["p50_us"] <= ping["max_us"]
    assert "3 round trips" in typed("duck", "ping", "--duck", name, "-n", "3").output


def test_selftest(name: str) -> None:
    found = said("duck", "selftest", "--duck", name)
    assert found["passed"]
    assert {one["outcome"] for one in found["results"]} <= {"PASS", "CAUTION"}
    assert all(one["fix"] or one["outcome"] == "PASS" or "guard" in one["name"] for one in found["results"])
    assert "PASS" in typed("duck", "selftest", "--duck", name).output


def test_key(tmp_path: Path) -> None:
    file = tmp_path / "key"
    with open(file, "wb") as out:
        file.chmod(0o644)  # as a usual umask makes it
        subprocess.run(
            [sys.executable, "-c", "from teal.cli import main; main()", "duck", "key"], stdout=out, check=True
        )
    assert file.stat().st_mode & 0o777 == 0o600
    from teal.duck.key import read_key

    assert len(read_key(file)) == 32


def test_it_does_not_listen_without_a_key() -> None:
    with pytest.raises(teal.InvalidArgument, match="there is no key"):
        CliRunner().invoke(group, ["duck", "serve", "--name", f"no-{os.getpid()}", "--listen", "0.0.0.0:0"],
                           catch_exceptions=False)  # fmt: skip


def test_judge(name: str, tmp_path: Path) -> None:
    source = tmp_path / "cat.c"
    source.write_text(
        "#include <stdio.h>\nint main(void) { int c; while ((c = getchar()) != EOF) putchar(c); return 3; }\n"
    )
    from teal.duck import cc

    try:
        cc.compile_program(source, tmp_path / "cat.elf", abi="linux")
    except (teal.NotFound, teal.InvalidArgument) as error:
        pytest.skip(f"no static C library here: {str(error).splitlines()[0]}")
    (tmp_path / "in").write_text("some text")
    record = said("judge", tmp_path / "cat.elf", "--duck", name, "--stdin", tmp_path / "in", "--runs", "3")
    assert (record["status"], record["return-code"], record["stdout"]) == ("Run Finished", 3, "some text")
    assert record["spread"]["runs"] == 3
    assert record["trap-num"] == 255
    result = typed("duck", "run", tmp_path / "cat.elf", "--duck", name, stdin=b"typed")
    assert (result.exit_code, result.stdout_bytes) == (3, b"typed")


ENDS = """#include <stdio.h>
#include <stdlib.h>
int main(void) {
    const int what = getchar();
    if (what == 's') *(volatile int *)16 = 1;
    if (what == 'a') abort();
    if (what == 'm') return malloc(1 << 20) == NULL || malloc(300 << 20) == NULL ? 9 : 0;
    if (what == 'o') for (long i = 0; i < 40 << 20; ++i) putchar('o');
    return 0;
}
"""


@pytest.fixture(scope="module")
def ends(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An ordinary program that ends in many ways."""
    from teal.duck import cc

    folder = tmp_path_factory.mktemp("ends")
    (folder / "ends.c").write_text(ENDS)
    try:
        cc.compile_program(folder / "ends.c", folder / "ends.elf", abi="linux", level="0")
    except (teal.NotFound, teal.InvalidArgument) as error:
        pytest.skip(f"no static C library here: {str(error).splitlines()[0]}")
    return folder / "ends.elf"


def test_how_an_ordinary_program_ended(name: str, ends: Path, tmp_path: Path) -> None:
    result = typed("duck", "run", ends, "--duck", name, stdin=b"s")
    assert (result.exit_code, result.stdout_bytes) == (1, b"")
    assert "Runtime Error: SIGSEGV at 0x" in result.stderr
    assert "which used address 0x10" in result.stderr
    assert "Runtime Error: SIGABRT at 0x" in typed("duck", "run", ends, "--duck", name, stdin=b"a").stderr
    (tmp_path / "in").write_bytes(b"s")
    assert typed("judge", ends, "--duck", name, "--stdin", tmp_path / "in").output.startswith("Runtime Error: SIGSEGV")
    result = typed("duck", "run", ends, "--duck", name, stdin=b"o")
    assert (result.exit_code, len(result.stdout_bytes)) == (1, 32 << 20)
    assert "stdout was cut after 33554432 bytes" in result.stderr


def test_options_of_ordinary_and_resident_programs(name: str, ends: Path) -> None:
    assert typed("duck", "run", ends, "--duck", name, stdin=b"m").exit_code == 9
    assert typed("duck", "run", ends, "--duck", name, "--memory", "400M", stdin=b"m").exit_code == 0
    assert typed("duck", "run", PROGRAM, "--duck", name, "--memory", "1M", stdin=b"e").stdout_bytes == b"e"
    with pytest.raises(teal.QuotaExceeded, match=r"a run of \d+ bytes with its outputs"):
        CliRunner().invoke(group, ["judge", str(ends), "--duck", name, "--memory", "1T"], catch_exceptions=False)
    for option in ("--cores", "--calls", "--ob"):
        refused = typed("duck", "run", ends, "--duck", name, option, "2")
        assert refused.exit_code == 2
        assert f"{option} is for resident programs" in refused.stderr
    assert "--ib is for resident" in typed("duck", "run", ends, "--duck", name, "--ib", ends).stderr


@pytest.mark.parametrize("limit", ["0", "0s", "501s"])
def test_a_time_limit_that_is_none(name: str, limit: str) -> None:
    refused = typed("judge", PROGRAM, "--duck", name, "--time", limit).exception
    assert isinstance(refused, teal.InvalidArgument)
    assert str(refused) == f"$.time: '{limit}', expected more than nothing, and at most 500s"


def test_a_lazy_group_knows_its_commands() -> None:
    assert isinstance(duck_group.command, click.Group)
    assert typed("duck", "nonsense").exit_code == 2


def test_a_judged_program_that_cannot_be_loaded_is_named(name: str, tmp_path: Path) -> None:
    script = tmp_path / "script.sh"
    script.write_text("#!/bin/sh\n")
    result = typed("judge", script, "--duck", name)
    assert isinstance(result.exception, teal.InvalidArgument)
    assert str(result.exception).startswith("script.sh: no ELF file")


def test_counters_are_drawn_as_lines(name: str) -> None:
    lines = typed("duck", "stat", "--duck", name).output.splitlines()
    assert not [line for line in lines if "{" in line]
    assert any(line.startswith("    boxes_made") for line in lines)
