"""Facts from /proc and /sys, on machines made of files."""

from __future__ import annotations

from pathlib import Path

import pytest

from teal.host import machine


def put(root: Path, files: dict[str, str]) -> Path:
    for path, text in files.items():
        target = root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
    return root


V1_MOUNTS = """\
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime shared:3 - cgroup cgroup rw,memory
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
"""
V2_MOUNT = "29 23 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n"


@pytest.mark.parametrize(
    ("text", "cores"),
    [
        ("0", (0,)),
        ("0-3", (0, 1, 2, 3)),
        ("0-1,4,8-9\n", (0, 1, 4, 8, 9)),
        ("3,1,1", (1, 3)),
        ("", None),
        (None, None),
        ("3-1", None),
        ("-1", None),
        ("a-b", None),
        ("0,,1", None),
        ("0-4000000000", None),
        ("0-" + "9" * 5000, None),
        ("٣", None),
    ],
)
def test_parse_cores(text: str | None, cores: tuple[int, ...] | None) -> None:
    assert machine.parse_cores(text) == cores


def test_format_cores_is_the_inverse() -> None:
    for text in ("0", "0-3", "0-1,4,8-9", "5,7,9"):
        cores = machine.parse_cores(text)
        assert cores is not None
        assert machine.format_cores(cores) == text
    assert machine.format_cores(()) == ""


@pytest.mark.parametrize("text", [None, "", "max", "1.5", "0x10", "--1", "-", "1 2", "9" * 22, "²"])
def test_to_int_refuses(text: str | None) -> None:
    assert machine.to_int(text) is None


def test_read_text_tolerates_what_is_not_a_file(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "bytes").write_bytes(b"\xff\x00\xfe")
    assert machine.read_text(tmp_path, "missing/file") is None
    assert machine.read_text(tmp_path, "folder") is None
    assert machine.read_text(tmp_path, "loop") is None
    assert machine.read_text(tmp_path, "bytes") == "\ufffd\x00\ufffd"


def test_read_choice(tmp_path: Path) -> None:
    put(tmp_path, {"a": "always [madvise] never\n", "b": "performance\n", "c": "one two\n", "d": ""})
    found = [machine.read_choice(tmp_path, name) for name in ("a", "b", "c", "d", "e")]
    assert found == ["madvise", "performance", None, None, None]


def test_no_control_groups(tmp_path: Path) -> None:
    assert machine.control_groups(tmp_path, "cpu") == ()
    assert machine.cpu_quota(tmp_path) is None
    assert machine.memory_limit(tmp_path) is None


def test_version_2_takes_the_tightest_ancestor(tmp_path: Path) -> None:
    put(
        tmp_path,
        {
            "proc/self/cgroup": "0::/user.slice/app.scope\n",
            "proc/self/mountinfo": V2_MOUNT,
            "sys/fs/cgroup/user.slice/app.scope/cpu.max": "max 100000\n",
            "sys/fs/cgroup/user.slice/cpu.max": "150000 100000\n",
            "sys/fs/cgroup/user.slice/app.scope/memory.max": "4000000000\n",
            "sys/fs/cgroup/user.slice/app.scope/memory.current": "1000000000\n",
            "sys/fs/cgroup/user.slice/memory.max": "2000000000\n",
            "sys/fs/cgroup/user.slice/memory.current": "1500000000\n",
            "sys/fs/cgroup/user.slice/memory.stat": "anon 5\ninactive_file 300000000\n",
        },
    )
    assert machine.cpu_quota(tmp_path) == machine.Quota(1.5, 2, "/sys/fs/cgroup/user.slice/cpu.max")
    limit = machine.memory_limit(tmp_path)
    assert limit == machine.MemoryLimit(2_000_000_000, 800_000_000, 2, "/sys/fs/cgroup/user.slice/memory.max")


def test_version_1_beside_version_2(tmp_path: Path) -> None:
    put(
        tmp_path,
        {
            "proc/self/cgroup": "4:memory:/jobs/a b\n3:cpu,cpuacct:/jobs\n0::/\n",
            "proc/self/mountinfo": V1_MOUNTS,
            "sys/fs/cgroup/cpu,cpuacct/jobs/cpu.cfs_quota_us": "50000\n",
            "sys/fs/cgroup/cpu,cpuacct/jobs/cpu.cfs_period_us": "100000\n",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "-1\n",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
            "sys/fs/cgroup/memory/jobs/a b/memory.limit_in_bytes": "1073741824\n",
            "sys/fs/cgroup/memory/jobs/a b/memory.usage_in_bytes": "2073741824\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
        },
    )
    assert machine.cpu_quota(tmp_path) == machine.Quota(0.5, 1, "/sys/fs/cgroup/cpu,cpuacct/jobs/cpu.cfs_quota_us")
    limit = machine.memory_limit(tmp_path)
    assert limit is not None
    assert (limit.limit, limit.free, limit.version) == (1 << 30, 0, 1)


def test_group_seen_from_a_container(tmp_path: Path) -> None:
    """The membership names a path of the outside; the mount shows only what lies below it."""
    inside = V2_MOUNT.replace(" / /sys", " /docker/0123 /sys")
    put(
        tmp_path,
        {
            "proc/self/cgroup": "0::/docker/0123/job\n",
            "proc/self/mountinfo": inside,
            "sys/fs/cgroup/job/cpu.max": "25000 100000",
        },
    )
    assert machine.cpu_quota(tmp_path) == machine.Quota(0.25, 2, "/sys/fs/cgroup/job/cpu.max")
    for elsewhere in ("0::/docker/01234/job\n", "0::/../../other\n", "0::/docker/0123/../../job\n"):
        put(tmp_path, {"proc/self/cgroup": elsewhere, "sys/fs/cgroup/cpu.max": "75000 100000"})
        assert machine.cpu_quota(tmp_path) == machine.Quota(0.75, 2, "/sys/fs/cgroup/cpu.max")


def test_mount_point_with_a_space(tmp_path: Path) -> None:
    put(
        tmp_path,
        {
            "proc/self/cgroup": "0::/\n",
            "proc/self/mountinfo": "29 23 0:26 / /odd\\040place rw - cgroup2 none rw\n",
            "odd place/cpu.max": "100000 100000",
        },
    )
    assert machine.cpu_quota(tmp_path) == machine.Quota(1.0, 2, "/odd place/cpu.max")


@pytest.mark.parametrize("text", ["", "max", "max 0", "0 0", "-5 100000", "1e5 100000", "100000", "\0\0"])
def test_odd_quota_is_no_quota(tmp_path: Path, text: str) -> None:
    put(
        tmp_path,
        {"proc/self/cgroup": "0::/\n", "proc/self/mountinfo": V2_MOUNT, "sys/fs/cgroup/cpu.max": text},
    )
    assert machine.cpu_quota(tmp_path) is None


def test_locked_memory_limit(tmp_path: Path) -> None:
    line = "Max locked memory         {}              {}              bytes     \n"
    for soft, expected in (("8388608", 8388608), ("unlimited", float("inf")), ("odd", None), ("", None)):
        put(tmp_path, {"proc/self/limits": "Limit  Soft  Hard\n" + line.format(soft, soft)})
        assert machine.locked_memory_limit(tmp_path) == expected


def test_capabilities_and_identity(tmp_path: Path) -> None:
    put(tmp_path, {"proc/self/status": "Name:\tx\nUid:\t0\t1000\t0\t0\nCapEff:\t0000000000004000\n"})
    assert machine.has_capability(tmp_path, machine.CAP_IPC_LOCK)
    assert not machine.has_capability(tmp_path, machine.CAP_SYS_ADMIN)
    assert not machine.is_root(tmp_path)  # the effective uid counts
    put(tmp_path, {"proc/self/status": "Uid:\t1000\t0\t0\t0\nCapEff:\tnonsense\n"})
    assert machine.is_root(tmp_path)
    assert not machine.has_capability(tmp_path, machine.CAP_IPC_LOCK)


def test_memory_info_takes_only_sizes(tmp_path: Path) -> None:
    put(tmp_path, {"proc/meminfo": "MemTotal:  2 kB\nHugePages_Total:  7\nOdd\nBad: x kB\n:\n"})
    assert machine.memory_info(tmp_path) == {"MemTotal": 2048}


@pytest.mark.parametrize(
    ("files", "kind"),
    [
        ({}, None),
        ({".dockerenv": ""}, "docker"),
        ({"run/.containerenv": ""}, "podman"),
        ({"run/systemd/container": "systemd-nspawn\n"}, "systemd-nspawn"),
        ({"proc/self/cgroup": "0::/kubepods/besteffort/pod1\n"}, "kubepods"),
        ({"proc/self/cgroup": "0::/user.slice\n"}, None),
    ],
)
def test_container_name(tmp_path: Path, files: dict[str, str], kind: str | None) -> None:
    assert machine.container_name(put(tmp_path, files)) == kind
