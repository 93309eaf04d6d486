"""`teal infer`: inputs as typed and from files, filled inputs, outputs as text, JSON and files, times."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

Teal = Callable[[str], Any]


@pytest.fixture
def toy(teal: Teal, name: str) -> Callable[[str], str]:
    """Loads a function of toys.py; its name in the host."""

    def load(function: str) -> str:
        teal(f"load {name} toys:{function} --json").json  # noqa: B018 - it checks the status
        return name

    return load


def values(said: Any) -> Any:
    return said.json["outputs"][0]["values"]


def test_values_as_typed(teal: Teal) -> None:
    assert teal("infer echo x=5").out == "y  int64[]\n  5\n"
    assert teal("infer echo 'x=[[1.5, 2], [3, 4]]' --dtype x=float32").out.startswith(
        "y  float32[2, 2]\n  [[1.5 2. ]\n"
    )
    assert values(teal("infer sum 'x=[1, 2.5]' --json")) == [3.5]
    assert teal("infer echo x=[] --dtype x=float32 --json").json["outputs"][0] == {
        "name": "y", "dtype": "float32", "shape": [0], "values": [], "truncated": False,
    }  # fmt: skip
    assert values(teal("infer echo 'x=[true, false]' --json")) == [True, False]
    assert values(teal("infer echo 'x=[NaN, Infinity, -Infinity, 0.5]' --json")) == [
        "NaN",
        "Infinity",
        "-Infinity",
        0.5,
    ]
    assert values(teal("infer echo x=[1,2] --dtype x=complex64 --json")) == [[1.0, 0.0], [2.0, 0.0]]


def test_files(teal: Teal, tmp_path: Path) -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    np.save(tmp_path / "a.npy", np.asfortranarray(array))
    (tmp_path / "a.json").write_text(json.dumps(array.tolist()))
    from_npy = teal(f"infer echo x=@{tmp_path}/a.npy --json --out {tmp_path}/saved").json
    assert from_npy["outputs"][0]["shape"] == [2, 3]
    assert from_npy["outputs"][0]["values"] == [0, 1, 2, 3, 4, 5]
    assert from_npy["saved"] == [{"output": "y", "file": f"{tmp_path}/saved/y.npy", "dtype": "float32"}]
    assert np.array_equal(np.load(tmp_path / "saved/y.npy"), array)
    assert teal(f"infer echo x=@{tmp_path}/a.json --json").json["outputs"][0]["dtype"] == "float64"
    assert teal(f"infer echo x=@{tmp_path}/a.npy --dtype x=float16 --json").json["outputs"][0]["dtype"] == "float16"


def test_strings_and_names_of_files(teal: Teal, toy: Callable[[str], str], tmp_path: Path) -> None:
    model = toy("repeat")
    said = teal(f"""infer {model} 'text=["añb", "", "x"]' times=2 --json --out {tmp_path}/out""").json
    texts, lengths = said["outputs"]
    assert texts["values"] == ["añbañb", "", "xx"]
    assert (texts["dtype"], texts["encoding"]) == ("BYTES", "utf-8")
    assert lengths["values"] == [8, 0, 2]
    files = [Path(one["file"]) for one in said["saved"]]
    assert [file.name for file in files] == ["a_b_0.json", "_a_b_0.npy"]  # nothing leaves the folder
    assert {file.parent for file in files} == {tmp_path / "out"}
    assert json.loads(files[0].read_text())["values"] == texts["values"]
    (tmp_path / "raw.json").write_text('["a"]')
    assert "utf-8" in teal(f"infer {model} text=@{tmp_path}/raw.json times=1 --json").out
    assert "rank 0" in teal(f"infer {model} text=plain times=1").err  # the text itself: a scalar
    shown = teal(rf"""infer {model} 'text=["\u001b[31m"]' times=1""").out
    assert "\x1b" not in shown
    assert "\\x1b[31m" in shown


def test_a_file_as_one_string(teal: Teal, name: str, tmp_path: Path) -> None:
    (tmp_path / "raw.bin").write_bytes(b"\xff\0[")
    teal(f"load {name} toys:size")
    assert values(teal(f"infer {name} text=@{tmp_path}/raw.bin --json")) == [3]
    assert values(teal(f"infer {name} text=hello --json")) == [5]
    assert values(teal(f"""infer {name} 'text="@x"' --json""")) == [2]


def test_dtypes_that_numpy_lacks(teal: Teal, toy: Callable[[str], str], tmp_path: Path) -> None:
    model = toy("narrow")
    said = teal(f"infer {model} x=[1,2.5] --json --out {tmp_path}").json
    assert said["outputs"][0]["dtype"] == "bfloat16"
    assert said["outputs"][0]["values"] == [1.0, 2.5]
    assert said["saved"][0]["dtype"] == "float32"
    assert np.load(tmp_path / "y.npy").tolist() == [1.0, 2.5]
    assert values(teal("infer echo x=[1,2.5] --dtype x=bfloat16 --json")) == [1.0, 2.5]


def test_fill(teal: Teal, toy: Callable[[str], str], mlp: Path, name: str) -> None:
    model = toy("total")
    line = f"infer {model} --fill ones --dim rows=3 --shape free=4 --json"
    assert values(teal(line)) == [3 * 2 + 1 + 4]
    assert values(teal(f"infer {model} flag=[false] --fill ones --dim rows=3 --shape free=0 --json")) == [6]
    assert values(teal(line.replace("ones", "zeros"))) == [0]
    assert values(teal(line.replace("ones", "random"))) == values(teal(line.replace("ones", "random")))
    teal(f"load {name}-onnx {mlp}")
    assert teal(f"infer {name}-onnx --fill random --dim batch=5 --json").json["outputs"][0]["shape"] == [5, 8]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("infer none x=1", "model 'none' is not loaded; loaded are ["),
        ("infer echo --version 9 x=1", "has no version 9"),
        ("infer echo", "give x=VALUE, or --fill zeros"),
        ("infer echo 5", "expected NAME=VALUE"),
        ("infer echo x=1 x=2", "'x' is given twice"),
        ("infer echo z=1", "INPUT=VALUE z: 'echo' has the inputs ['x']"),
        ("infer echo x=words", "is not JSON"),
        ("infer echo x=[1,[2]]", "not an array"),
        ("infer echo x={}", "expected numbers"),
        ("infer echo x=null", "expected numbers"),
        ("infer echo 'x=[\"a\", 1]'", "expected strings"),
        ("infer echo x=1 --dtype x=float31", "dtype 'float31', expected one of"),
        ("infer echo x=1 --dtype y=float32", "--dtype y: "),
        ("infer echo x=1 --dim n=1", "no input to be filled has it"),
        ("infer echo x=1 --shape x=2", "has a value already"),
        ("infer echo --fill ones", "give --shape x=2,3"),
        ("infer echo --fill ones --shape x=2", "give --dtype x=float32"),
        ("infer echo --fill ones --shape x=-2", "expected a number, 0 or more"),
        ("infer echo --fill ones --dtype x=int8 --shape x=9223372036854775808", "expected a number"),
        ("infer echo --fill ones --dtype x=int8 --shape x=922337203685477580,99", "cannot make an input"),
        ("infer sum x=1e300", "does not fit float32"),
        ("infer sleep microseconds=1.5", "float64 does not convert to int64 without loss"),
        ("infer sleep microseconds=9223372036854775808", "does not fit int64"),
        ("infer sleep microseconds=[1]", "$.inputs[0].shape: rank 1"),
        ("infer sleep microseconds=-1", "KernelFailed: sleep: "),
        ("infer sleep microseconds=1 --deadline never", "expected a duration"),
        ("infer sleep microseconds=300000 --deadline 5ms", "DeadlineExceeded: "),
        ("infer sleep microseconds=1 --deadline 0s", "DeadlineExceeded: "),
        ("infer echo x=1 --priority 9999999999", "not in the range"),
        ("infer echo x=1 --repeat 0", "not in the range"),
        ("infer echo x=@/no/such.npy", "/no/such.npy: No such file"),
        ("infer echo x=@/dev", "expected a name that ends in .npy or .json"),
        ("infer echo x=1 --out /dev/null/x", "/dev/null"),
    ],
)
def test_one_line_that_says_what_is_wrong(teal: Teal, arguments: str, said: str) -> None:
    result = teal(f"{arguments} --json")
    assert result.status in (1, 2)
    assert result.out == ""
    assert said in result.err


def test_files_that_lie(teal: Teal, tmp_path: Path) -> None:
    np.save(tmp_path / "good.npy", np.zeros(100))
    whole = (tmp_path / "good.npy").read_bytes()
    np.save(tmp_path / "objects.npy", np.array([{}], object), allow_pickle=True)
    for file, contents in {
        "cut.npy": whole[:300],
        "head.npy": whole[:20],
        "empty.npy": b"",
        "noise.npy": b"\x93NUMPY\x01\x00\xff\xff" + b"x" * 300,
        "huge.npy": whole.replace(b"(100,), ", b"(1<<62,)"),
        "bad.json": b"[1,",
        "latin.json": b'"\xff"',
        "deep.json": b"[" * 200_000,
    }.items():
        (tmp_path / file).write_bytes(contents)
    for file in sorted(tmp_path.iterdir()):
        if file.name != "good.npy":
            said = teal(f"infer echo x=@{file}")
            assert (said.status, said.out) == (1, ""), file
            assert said.err.startswith("InvalidArgument: $.x: "), (file, said.err)
            assert "\n" not in said.err


def test_what_a_kernel_says_is_not_obeyed(teal: Teal, toy: Callable[[str], str]) -> None:
    said = teal(f"infer {toy('fails')} x=1")
    assert said.status == 1
    assert "ValueError" in said.err
    assert "[bold]markup[/bold]" in said.err


def test_limit(teal: Teal) -> None:
    found = teal("infer echo x=[[1,2],[3,4]] --json --limit 3").json["outputs"][0]
    assert (found["values"], found["shape"], found["truncated"]) == ([1, 2, 3], [2, 2], True)
    assert "..." in teal("infer echo --fill ones --dtype x=int8 --shape x=1000").out


def test_repeat(teal: Teal, name: str, mlp: Path) -> None:
    teal(f"load {name} {mlp}")
    found = teal(f"infer {name} --fill random --dim batch=1 --repeat 50 --json --deadline 30s --priority 3").json
    timing = found["timing"]
    assert timing["calls"] == 50
    assert 0 < timing["p50_us"] <= timing["p99_us"] <= timing["p999_us"] <= timing["max_us"]
    assert timing["stages"]["wake"]["count"] == timing["stages"]["total"]["count"] == 50
    for stage in ("queue", "run"):  # counted by the worker after it has answered, so that the ends are not exact
        assert 45 <= timing["stages"][stage]["count"] <= 52
    lines = teal("infer echo x=1 --repeat 3").out.splitlines()
    assert lines[-6].split() == ["count", "p50", "p99", "max"]
    assert [line.split()[0] for line in lines[-5:]] == ["call", "queue", "run", "wake", "total"]


def test_ctrl_c_ends_a_wait(serve: Any, started: Any, until_inside: Any) -> None:
    host = serve("--load", "sleep=builtin:sleep")
    process = started("infer", "sleep", "microseconds=60000000", "--host", host.name)
    until_inside(host.name, process)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate()
    assert process.returncode == 1
    assert "Aborted" in err
