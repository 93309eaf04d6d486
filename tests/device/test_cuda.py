"""The CUDA device without a GPU: its sources compile, and it calls a driver that has no GPU (fake_cuda.cpp) rightly."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from teal import device
from teal.device import cuda, source
from teal.errors import KernelFailed, NotFound

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = Path(__file__).with_name("hardware_cuda.py")


@pytest.fixture
def compiler() -> None:
    pytest.importorskip("cuda.bindings", reason="cuda-bindings is not installed")
    from cuda.bindings import nvrtc

    try:
        nvrtc.nvrtcVersion()
    except RuntimeError as error:
        pytest.skip(f"no NVRTC here: {error}")


def run_script(*arguments: str, **variables: str) -> dict:
    environment = os.environ | variables | {"PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-W", "ignore", str(SCRIPT), "--seconds", "200", "--calls", "500", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return dict(json.loads(done.stdout))


@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize("architecture", ["sm_80", "sm_90"])
@pytest.mark.parametrize("name", [source.IDENTITY, source.SCALE])
def test_every_source_compiles_for_gpus(name: str, architecture: str) -> None:
    assert cuda.compile_source(source.text(name), architecture, source.MOST_SCRATCH)[:4] == b"\x7fELF"


@pytest.mark.usefixtures("compiler")
def test_a_task_that_does_not_compile_is_said_in_the_compilers_words() -> None:
    with pytest.raises(KernelFailed, match=r'task\(2\): error: identifier "nonsense" is undefined'):
        cuda.compile_source("TEAL_TASK void teal_task() {\n nonsense; }", "sm_90")


def test_no_gpu_is_said_and_how_to_get_the_bindings() -> None:
    (found,) = [each for each in device.devices() if each.name.startswith("cuda")]
    if found.available:
        pytest.skip("there is a GPU here: run tests/device/hardware_cuda.py")
    assert "no CUDA driver" in found.what or "teal-runtime[cuda]" in found.what
    with pytest.raises(NotFound):
        device.open("cuda:0")


@pytest.mark.slow
def test_the_driver_is_called_rightly(tmp_path: Path) -> None:
    pytest.importorskip("cuda.bindings", reason="cuda-bindings is not installed")
    compiler = shutil.which("c++")
    assert compiler is not None
    core = ROOT / "core"
    sources = [path for folder in ("device", "cpu", "base") for path in sorted(core.glob(f"{folder}/*.cpp"))]
    options = ["-std=c++20", "-O0", "-shared", "-fPIC", "-lpthread", f"-I{core}", f"-I{ROOT}/src/teal/device/source"]
    sources += [SCRIPT.with_name("fake_cuda.cpp"), core / "queue/wait.cpp"]
    subprocess.run([compiler, *options, *map(str, sources), "-o", str(tmp_path / "libcuda.so.1")], check=True)
    found = run_script("--fake", LD_LIBRARY_PATH=str(tmp_path))
    assert found["devices"][-1] == "Found(name='cuda:0', what='no GPU at all', available=True)"
    assert {name: check["ok"] for name, check in found["checks"].items()}.keys() >= {
        "import",
        "resident",
        "lost",
        "hostile",
    }
    assert "resident, from C" in found["rows"]
    assert any("712" in message for message in found["checks"]["refusals"]["found"]["messages"])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["opencl:pocl", "opencl:intel"])
def test_the_hardware_script_on_a_cpu_driver(name: str) -> None:
    """With what only a process of its own can try: a kernel that hangs is noticed, and its client is told."""
    try:
        device.open(name).close()
    except (NotFound, KernelFailed) as error:
        pytest.skip(f"no {name} here: {str(error).splitlines()[0][:200]}")
    found = run_script("--device", name)
    assert "resident kernel is lost: did not react within 0.7 s" in found["checks"]["lost"]["found"]["message"]
