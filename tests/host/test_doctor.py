"""The verdicts of `teal doctor`, on machines made of files and on this one."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from teal import _core
from teal.host import doctor
from teal.host.doctor import Check, Status

CPU = "sys/devices/system/cpu"
THP = "sys/kernel/mm/transparent_hugepage"
HUGE = "sys/kernel/mm/hugepages/hugepages-2048kB"
CLOCKS = "sys/devices/system/clocksource/clocksource0"
CGROUP = {
    "proc/self/cgroup": "0::/\n",
    "proc/self/mountinfo": "29 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
}

# A quiet two-core server, run by an ordinary user. Also the list of every file that a check looks at.
GOOD = {
    **CGROUP,
    "proc/self/status": "Uid:\t1000\t1000\t1000\t1000\nCapEff:\t0000\nSeccomp:\t0\nCpus_allowed_list:\t0-1\n",
    "proc/self/limits": "Max locked memory         unlimited            unlimited            bytes\n"
    "Max open files            1024                 524288               files\n",
    "proc/meminfo": "MemTotal: 16000000 kB\nMemAvailable: 15000000 kB\nCommitLimit: 8000 kB\nCommitted_AS: 5952 kB\n",
    "proc/sys/vm/overcommit_memory": "0\n",
    "proc/sys/kernel/osrelease": "6.12.0-test\n",
    "proc/sys/kernel/yama/ptrace_scope": "1\n",
    "proc/sys/user/max_user_namespaces": "60000\n",
    "proc/sys/kernel/unprivileged_userns_clone": "1\n",
    "proc/sys/kernel/apparmor_restrict_unprivileged_userns": "0\n",
    "run/systemd/container": "\n",
    "sys/fs/cgroup/cpu.max": "max 100000\n",
    "sys/fs/cgroup/memory.max": "max\n",
    "sys/fs/cgroup/memory.current": "5\n",
    "sys/fs/cgroup/memory.stat": "inactive_file 2\n",
    f"{CPU}/online": "0-1\n",
    f"{CPU}/smt/active": "0\n",
    f"{CPU}/cpu0/cpufreq/scaling_governor": "performance\n",
    f"{CPU}/cpu1/cpufreq/scaling_governor": "performance\n",
    f"{CPU}/cpu0/topology/thread_siblings_list": "0\n",
    f"{CPU}/cpu1/topology/thread_siblings_list": "1\n",
    f"{THP}/shmem_enabled": "always within_size [advise] never deny force\n",
    f"{THP}/enabled": "always [madvise] never\n",
    f"{HUGE}/nr_hugepages": "8\n",
    f"{HUGE}/free_hugepages": "8\n",
    f"{HUGE}/nr_overcommit_hugepages": "0\n",
    f"{CLOCKS}/current_clocksource": "tsc\n",
    f"{CLOCKS}/available_clocksource": "tsc hpet acpi_pm\n",
}


def make(root: Path, changes: dict[str, str | None] | None = None) -> Path:
    """The good machine with some files changed; None takes one away."""
    for path, text in {**GOOD, **(changes or {})}.items():
        if text is not None:
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(text)
    return root


def cpu(**changes: Any) -> dict[str, Any]:
    names = ("x86-64-v2", "avx2", "avx512", "avx512_bf16", "avx512_vnni", "amx_bf16", "amx_int8")
    offered = changes.pop("offered", names)
    enabled = changes.pop("enabled", offered)
    features = {name: {"offered": name in offered, "enabled": name in enabled} for name in names}
    return {
        "architecture": "x86_64",
        "vendor": "GenuineIntel",
        "brand": "Some CPU",
        "features": features,
        "isa": "amx",
        "isa_widest": "amx",
        "isa_error": None,
        "tick_source": "tsc",
    } | changes


def test_good_machine_passes(tmp_path: Path) -> None:
    root = make(tmp_path)
    checks = [
        doctor.check_cpu(root, cpu(), 0),
        doctor.check_huge_pages(root, 0),
        doctor.check_clock(root, "tsc"),
        doctor.check_system_calls(root, dict.fromkeys(PROBES, 0)),
        doctor.check_peer_identity(root, 0),
        *(check(root) for check in FILE_CHECKS),
    ]
    assert [check for check in checks if check.status is not Status.PASS] == []
    assert all(check.fix is None for check in checks)


PROBES = ("memfd_seals", "memfd_huge", "futex_waitv", "pidfd_open", "robust_futex", "fd_passing", "peer_identity")
FILE_CHECKS = (
    doctor.check_cores,
    doctor.check_quota,
    doctor.check_governor,
    doctor.check_smt,
    doctor.check_thp,
    doctor.check_memlock,
    doctor.check_descriptors,
    doctor.check_memory,
    doctor.check_overcommit,
    doctor.check_ptrace,
    doctor.check_user_namespaces,
    doctor.check_container,
)


def test_empty_root_is_unknown_never_an_error(tmp_path: Path) -> None:
    checks = doctor.examine(tmp_path)
    assert not [check for check in checks if check.found.startswith("not examined")]
    by_name = {check.name: check for check in checks}
    for name in ("cores", "memory", "memlock", "overcommit", "user namespaces"):
        assert by_name[name].status is Status.CAUTION
        assert "unknown" in by_name[name].found
    assert by_name["jitter"].found == "not measured: no usable core is known"
    assert by_name["governor"].status is Status.PASS


GARBAGE = ("", "\n", "\t", "-1", "0-", "max", "9" * 24, "\0\xff\u2028", "[", "[]", "a:b:c\n::\n:", " - \n - x y z")


@pytest.mark.parametrize("path", sorted(GOOD))
def test_garbage_in_any_file_breaks_no_check(tmp_path: Path, path: str) -> None:
    for number, text in enumerate(GARBAGE):
        root = make(tmp_path / str(number), {path: text})
        checks = doctor.examine(root, quick=True)
        assert not [check for check in checks if check.found.startswith("not examined")]
    root = make(tmp_path / "folder", {path: None})
    (root / path).mkdir(parents=True)  # stands for any file that cannot be read, also by root
    assert not [check for check in doctor.examine(root, quick=True) if check.found.startswith("not examined")]


def test_cpu_without_the_baseline_fails(tmp_path: Path) -> None:
    check = doctor.check_cpu(tmp_path, cpu(offered=(), isa="v2", isa_widest="v2"))
    assert check.status is Status.FAIL
    assert "SIGILL" in check.why


def test_cpu_without_avx2_is_a_caution(tmp_path: Path) -> None:
    check = doctor.check_cpu(tmp_path, cpu(offered=("x86-64-v2",), isa="v2", isa_widest="v2"))
    assert check.status is Status.CAUTION
    assert "no AVX2" in check.found


def test_cpu_names_what_the_os_withholds(tmp_path: Path) -> None:
    features = cpu(enabled=("x86-64-v2", "avx2"), isa="avx2", isa_widest="avx2")
    check = doctor.check_cpu(tmp_path, features)
    assert check.status is Status.CAUTION
    withheld = "offered by the CPU but not enabled by the OS: avx512, avx512_bf16, avx512_vnni, amx_bf16, amx_int8"
    assert withheld in check.found


def test_cpu_reports_a_refused_amx(tmp_path: Path) -> None:
    check = doctor.check_cpu(tmp_path, cpu(), errno.ENOSPC)
    assert check.status is Status.CAUTION
    assert "refuses AMX to this process (ENOSPC)" in check.found


def test_cpu_reports_teal_isa(tmp_path: Path) -> None:
    lowered = doctor.check_cpu(tmp_path, cpu(isa="avx2"), 0)
    assert (lowered.status, lowered.fix) == (Status.CAUTION, "unset TEAL_ISA")
    wrong = doctor.check_cpu(tmp_path, cpu(isa="v2", isa_error="TEAL_ISA='sse9' cannot be honoured"), 0)
    assert (wrong.status, wrong.fix) == (Status.FAIL, "unset TEAL_ISA")
    assert "sse9" in wrong.found


def test_aarch64_needs_no_avx2(tmp_path: Path) -> None:
    features = cpu(architecture="aarch64", brand="", isa="armv8", isa_widest="armv8")
    features["features"] = {"armv8-a": {"offered": True, "enabled": True}, "avx2": {"offered": False, "enabled": False}}
    check = doctor.check_cpu(tmp_path, features)
    assert check.status is Status.PASS
    assert check.found.startswith("aarch64: armv8-a")


def caution(check: Check, found: str, fix: str | None) -> None:
    assert check.status is Status.CAUTION
    assert found in check.found
    assert check.fix == fix
    assert check.why.endswith(".")


def status(**changes: str) -> str:
    fields = {"Uid": "1000\t1000", "CapEff": "0", "Cpus_allowed_list": "0-1", "Seccomp": "0"} | changes
    return "".join(f"{name}:\t{value}\n" for name, value in fields.items())


def test_one_core_of_several(tmp_path: Path) -> None:
    root = make(tmp_path, {"proc/self/status": status(Cpus_allowed_list="1")})
    caution(doctor.check_cores(root), "1 usable (1) of 2 online", "taskset -cp 0-1 $$")


def test_one_core_in_all(tmp_path: Path) -> None:
    root = make(tmp_path, {"proc/self/status": status(Cpus_allowed_list="0"), f"{CPU}/online": "0"})
    caution(doctor.check_cores(root), "1 usable (0) of 1 online", None)


def test_quota_version_2(tmp_path: Path) -> None:
    root = make(tmp_path, {"sys/fs/cgroup/cpu.max": "150000 100000\n"})
    caution(doctor.check_quota(root), "1.50 cores", "echo max | sudo tee /sys/fs/cgroup/cpu.max")
    make(root, {"sys/fs/cgroup/cpu.max": "200000 100000\n"})
    assert doctor.check_quota(root).status is Status.PASS


def test_quota_version_1_as_root(tmp_path: Path) -> None:
    root = make(
        tmp_path,
        {
            "proc/self/status": status(Uid="0\t0"),
            "proc/self/cgroup": "3:cpu:/\n",
            "proc/self/mountinfo": "32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n",
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "100000\n",
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
        },
    )
    caution(doctor.check_quota(root), "1.00 cores", "echo -1 | tee /sys/fs/cgroup/cpu/cpu.cfs_quota_us")


def test_governor(tmp_path: Path) -> None:
    root = make(tmp_path, {f"{CPU}/cpu1/cpufreq/scaling_governor": "powersave\n"})
    fix = f"echo performance | sudo tee /{CPU}/cpu*/cpufreq/scaling_governor"
    caution(doctor.check_governor(root), "performance, powersave", fix)


def test_smt(tmp_path: Path) -> None:
    siblings = {f"{CPU}/cpu{core}/topology/thread_siblings_list": "0-1" for core in (0, 1)}
    root = make(tmp_path, {**siblings, f"{CPU}/smt/active": "1"})
    caution(doctor.check_smt(root), "share a core: 0-1", f"echo off | sudo tee /{CPU}/smt/control")


def test_thp(tmp_path: Path) -> None:
    root = make(tmp_path, {f"{THP}/shmem_enabled": "always within_size advise [never] deny force"})
    caution(doctor.check_thp(root), "shared memory: never", f"echo advise | sudo tee /{THP}/shmem_enabled")


def test_thp_not_in_this_kernel(tmp_path: Path) -> None:
    root = make(tmp_path, {f"{THP}/shmem_enabled": None})
    caution(doctor.check_thp(root), "no transparent huge pages", None)


def test_huge_pages(tmp_path: Path) -> None:
    root = make(tmp_path, {f"{HUGE}/free_hugepages": "0\n"})
    caution(doctor.check_huge_pages(root, 0), "0 of 8 free", "sudo sysctl vm.nr_hugepages=264")
    small = make(
        tmp_path / "small",
        {f"{HUGE}/free_hugepages": "0", f"{HUGE}/nr_hugepages": "0", "proc/meminfo": "MemAvailable: 1048576 kB\n"},
    )
    caution(doctor.check_huge_pages(small, 0), "0 of 0 free", "sudo sysctl vm.nr_hugepages=64")
    refused = doctor.check_huge_pages(make(tmp_path / "refused"), errno.ENOMEM)
    assert refused.status is Status.CAUTION
    assert "taking one fails (ENOMEM)" in refused.found


def test_memlock(tmp_path: Path) -> None:
    root = make(tmp_path, {"proc/self/limits": "Max locked memory    8388608   8388608   bytes\n"})
    caution(doctor.check_memlock(root), "8 MiB", "sudo prlimit --pid $$ --memlock=unlimited:unlimited")
    make(root, {"proc/self/status": status(CapEff="4000"), "proc/self/limits": GOOD["proc/self/limits"]})
    assert doctor.check_memlock(root).status is Status.PASS


def test_descriptors(tmp_path: Path) -> None:
    root = make(
        tmp_path, {"proc/self/limits": "Max open files            1024                 2048               files\n"}
    )
    caution(
        doctor.check_descriptors(root),
        "1024 may be open, 2048 once a host has raised it",
        "sudo prlimit --pid $$ --nofile=65536:65536",
    )
    make(root, {"proc/self/limits": "Max open files            1024                 524288               files\n"})
    assert doctor.check_descriptors(root).status is Status.PASS
    make(root, {"proc/self/limits": "Max open files            unlimited            unlimited            files\n"})
    assert doctor.check_descriptors(root).found == "inf may be open"


def test_memory(tmp_path: Path) -> None:
    low = make(tmp_path / "low", {"proc/meminfo": "MemTotal: 2000000 kB\nMemAvailable: 500000 kB\n"})
    caution(doctor.check_memory(low), "488 MiB available of 1.9 GiB", None)
    out = make(tmp_path / "out", {"proc/meminfo": "MemTotal: 2000000 kB\nMemAvailable: 5000 kB\n"})
    assert doctor.check_memory(out).status is Status.FAIL
    group = make(tmp_path / "group", {"sys/fs/cgroup/memory.max": "536870912", "sys/fs/cgroup/memory.current": "0"})
    caution(doctor.check_memory(group), "512 MiB free of the 512 MiB", "echo max | sudo tee /sys/fs/cgroup/memory.max")


def test_overcommit(tmp_path: Path) -> None:
    root = make(tmp_path, {"proc/sys/vm/overcommit_memory": "2\n"})
    caution(doctor.check_overcommit(root), "2 MiB left to commit", "sudo sysctl vm.overcommit_memory=0")


def test_clock(tmp_path: Path) -> None:
    root = make(tmp_path, {f"{CLOCKS}/current_clocksource": "hpet\n"})
    caution(doctor.check_clock(root, "tsc"), "kernel: hpet", f"echo tsc | sudo tee /{CLOCKS}/current_clocksource")
    make(root, {f"{CLOCKS}/current_clocksource": "hpet\n", f"{CLOCKS}/available_clocksource": "hpet acpi_pm\n"})
    caution(doctor.check_clock(root, "clock_gettime"), "ticks: clock_gettime", None)
    make(root, {f"{CLOCKS}/current_clocksource": "kvm-clock\n"})
    assert doctor.check_clock(root, "tsc").status is Status.PASS


def test_system_calls(tmp_path: Path) -> None:
    works = dict.fromkeys(PROBES, 0)
    root = make(tmp_path)
    waitv = doctor.check_system_calls(root, works | {"futex_waitv": errno.ENOSYS})
    caution(waitv, "Linux 6.12.0-test: futex_waitv fails (ENOSYS)", None)
    seals = doctor.check_system_calls(root, works | {"memfd_seals": errno.EPERM, "futex_waitv": errno.ENOSYS})
    assert seals.status is Status.FAIL
    assert "sealed memfd regions fails (EPERM), futex_waitv fails (ENOSYS)" in seals.found


def test_peer_identity(tmp_path: Path) -> None:
    assert doctor.check_peer_identity(tmp_path, errno.ENOPROTOOPT).status is Status.FAIL


def test_ptrace(tmp_path: Path) -> None:
    for scope, fix in (("2", "sudo sysctl kernel.yama.ptrace_scope=1"), ("3", None), ("9", None)):
        root = make(tmp_path, {"proc/sys/kernel/yama/ptrace_scope": scope})
        caution(doctor.check_ptrace(root), f"ptrace_scope {scope}", fix)


def test_user_namespaces(tmp_path: Path) -> None:
    for knob, value, allowing in (
        ("user.max_user_namespaces", "0", 15000),
        ("kernel.unprivileged_userns_clone", "0", 1),
        ("kernel.apparmor_restrict_unprivileged_userns", "1", 0),
    ):
        path = "proc/sys/" + knob.replace(".", "/")
        root = make(tmp_path, {path: value})
        caution(doctor.check_user_namespaces(root), f"{knob} = {value}", f"sudo sysctl {knob}={allowing}")
        make(root)
    root = make(
        tmp_path,
        {"proc/sys/kernel/unprivileged_userns_clone": "0", "proc/self/status": status(CapEff="200000")},
    )
    assert doctor.check_user_namespaces(root).status is Status.PASS


def test_container_is_named_and_passes(tmp_path: Path) -> None:
    root = make(tmp_path, {".dockerenv": "", "proc/self/status": status(Seccomp="2")})
    check = doctor.check_container(root)
    assert check.status is Status.PASS
    assert check.found == "in docker; system calls are filtered (seccomp)"


def test_onnxruntime(tmp_path: Path) -> None:
    class Engine:
        __version__ = "1.99"

    def missing(name: str) -> Any:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    def broken(name: str) -> Any:
        raise ImportError("libonnxruntime.so: cannot enable executable stack")

    assert doctor.check_onnxruntime(tmp_path, lambda _: Engine()).found == "1.99"
    check = doctor.check_onnxruntime(tmp_path, missing)
    assert check.status is Status.CAUTION
    assert check.fix is not None
    assert check.fix.endswith("-m pip install 'onnxruntime>=1.20'")
    check = doctor.check_onnxruntime(tmp_path, broken)
    assert check.status is Status.FAIL
    assert "executable stack" in check.found


def test_jitter_is_judged_per_second(tmp_path: Path) -> None:
    def measure(over_100us: int, lost_ms: float) -> Any:
        def measured(core: int, milliseconds: int) -> dict[str, float]:
            assert core == 1  # the last usable one
            return {
                "milliseconds": milliseconds, "over_5us": 400, "over_20us": 90,
                "over_100us": over_100us, "lost_ms": lost_ms, "max_us": 250.0,
            }  # fmt: skip

        return measured

    root = make(tmp_path)
    quiet = doctor.check_jitter(root, measure(3, 8.0))
    assert quiet.status is Status.PASS
    expected = "core 1, 1.0 s: 400 gaps over 5 us, 90 over 20, 3 over 100; 8.0 ms lost; longest 250 us"
    assert quiet.found == expected
    assert doctor.check_jitter(root, measure(200, 8.0)).status is Status.CAUTION
    assert doctor.check_jitter(root, measure(3, 100.0)).status is Status.CAUTION
    assert doctor.check_jitter(root, measure(25, 8.0), 2000).status is Status.PASS


def test_a_broken_check_hides_no_other(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def check_odd_thing(root: Path) -> Check:
        raise ZeroDivisionError("odd")

    monkeypatch.setattr(doctor, "CHECKS", (check_odd_thing, doctor.check_cores))
    first, second = doctor.examine(make(tmp_path), quick=True)
    assert (first.name, first.status) == ("odd thing", Status.CAUTION)
    assert first.found == "not examined: ZeroDivisionError: odd"
    assert second.status is Status.PASS


def test_worst() -> None:
    checks = tuple(Check("x", status, "", "") for status in (Status.PASS, Status.FAIL, Status.CAUTION))
    assert doctor.worst(checks) is Status.FAIL
    assert doctor.worst(checks[:1]) is Status.PASS
    assert doctor.worst(()) is Status.PASS


def test_this_machine() -> None:
    seen: list[str] = []
    checks = doctor.examine(progress=seen.append)
    assert [check for check in checks if check.found.startswith("not examined")] == []
    assert len({check.name for check in checks}) == len(checks) == len(doctor.CHECKS) + 1
    assert seen == ["jitter floor, one second"]
    assert all(check.found and check.why.endswith(".") for check in checks)
    by_name = {check.name: check for check in checks}
    assert by_name["cores"].found.startswith(f"{len(os.sched_getaffinity(0))} usable")
    assert by_name["system calls"].status is not Status.FAIL


def test_teal_isa_is_read_by_a_new_process() -> None:
    script = "import json, teal._core as c; print(json.dumps(c.cpu_features()))"

    def features(value: str) -> Any:
        environment = os.environ | {"TEAL_ISA": value}
        done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, check=True)
        return json.loads(done.stdout)

    wrong = features("sse9")
    assert "TEAL_ISA='sse9' cannot be honoured" in wrong["isa_error"]
    narrowest = {"x86_64": "v2", "aarch64": "armv8"}[wrong["architecture"]]
    assert wrong["isa"] == narrowest
    lowered = features(narrowest)
    assert (lowered["isa"], lowered["isa_error"]) == (narrowest, None)
    assert lowered["isa_widest"] == wrong["isa_widest"]


@pytest.mark.parametrize(
    ("walls", "status", "words"),
    [
        ({"filter": True, "landlock": 7, "missing": ""}, Status.PASS, "Landlock version 7"),
        ({"filter": True, "landlock": 0, "missing": "no Landlock: old"}, Status.CAUTION, "no Landlock"),
        ({"filter": False, "landlock": 0, "missing": "no filter: why"}, Status.CAUTION, "no filter of system calls"),
    ],
)
def test_what_agents_are_locked_in_with(walls: dict[str, Any], status: Status, words: str) -> None:
    check = doctor.check_agent_walls(offered=walls)
    assert check.status is status
    assert words in check.found
    assert walls["missing"] in check.found


@pytest.mark.parametrize(
    ("probed", "status", "fix"),
    [
        ({"available": True, "text": "KVM: API 12, ring 3 native", "reason": ""}, Status.PASS, None),
        (
            {"available": False, "text": "", "reason": "/dev/kvm: Permission denied (errno 13)"},
            Status.CAUTION,
            "usermod -aG kvm",
        ),
        (
            {"available": False, "text": "", "reason": "/dev/kvm: No such file or directory (errno 2)"},
            Status.PASS,
            None,
        ),
    ],
)
def test_kvm(probed: dict[str, Any], status: Status, fix: str | None) -> None:
    check = doctor.check_kvm(probed=probed)
    assert check.status is status
    assert (probed["text"] or probed["reason"]) in check.found
    assert (check.fix is None) if fix is None else (check.fix is not None and fix in check.fix)


def test_kvm_of_this_machine() -> None:
    probed = _core.kvm_probe()
    assert probed["available"] or probed["reason"]
    assert "\n" not in str(probed["text"])
