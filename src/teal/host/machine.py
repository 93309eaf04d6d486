"""Facts about this machine, read from /proc and /sys.

Theory of operation. These files are an interface of good will: in containers they are missing, masked, empty or
unreadable, and in old or odd kernels they hold what nobody documented. So every function here takes the root directory
to read under (tests describe other machines with a directory of files), returns None for what it cannot find or cannot
make sense of, and never raises for what a file holds. It states facts; `doctor` judges them.

Control groups exist in two versions, often both at once: a limit is looked up in version 1 when that version has the
controller, else in version 2, from the group of this process up to the mount point, because the tightest ancestor wins.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

ROOT = Path("/")

_LARGEST_READ = 1 << 18  # /proc files of interest are small; a wrong path must not fill the memory
_LARGEST_CORE = 1 << 16
_UNLIMITED_V1 = 1 << 60  # version 1 spells "no limit" as 2^63 rounded down to a page

CAP_IPC_LOCK = 14
CAP_SYS_ADMIN = 21


def read_text(root: Path, path: str) -> str | None:
    """The contents of a file, stripped, or None when it is missing or unreadable. Undecodable bytes become U+FFFD."""
    try:
        with (root / path.lstrip("/")).open("rb") as file:
            return file.read(_LARGEST_READ).decode("utf-8", "replace").strip()
    except OSError:
        return None


def to_int(text: str | None) -> int | None:
    """A plain decimal number of at most 20 digits, or None."""
    if text is None or len(text) > 21 or not text.isascii() or not text.removeprefix("-").isdigit():
        return None
    return int(text)


def read_int(root: Path, path: str) -> int | None:
    return to_int(read_text(root, path))


def read_choice(root: Path, path: str) -> str | None:
    """The chosen word of a file such as `always [madvise] never`; without brackets, the only word."""
    words = (read_text(root, path) or "").split()
    for word in words:
        if word.startswith("[") and word.endswith("]"):
            return word[1:-1]
    return words[0] if len(words) == 1 else None


def parse_cores(text: str | None) -> tuple[int, ...] | None:
    """`0-3,7` as (0, 1, 2, 3, 7); None when it is not such a list."""
    cores: set[int] = set()
    for part in (text or "").split(","):
        first, dash, last = part.strip().partition("-")
        low = to_int(first)
        high = to_int(last) if dash else low
        if low is None or high is None or not 0 <= low <= high <= _LARGEST_CORE:
            return None
        cores.update(range(low, high + 1))
    return tuple(sorted(cores))


def format_cores(cores: tuple[int, ...]) -> str:
    """(0, 1, 2, 3, 7) as `0-3,7`."""
    runs: list[list[int]] = []
    for core in cores:
        if runs and core == runs[-1][1] + 1:
            runs[-1][1] = core
        else:
            runs.append([core, core])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in runs)


def status_field(root: Path, name: str) -> str | None:
    """One line of /proc/self/status, without its name."""
    for line in (read_text(root, "proc/self/status") or "").splitlines():
        key, _, value = line.partition(":")
        if key == name:
            return value.strip()
    return None


def allowed_cores(root: Path = ROOT) -> tuple[int, ...] | None:
    """The cores that cpuset and affinity leave to this process."""
    return parse_cores(status_field(root, "Cpus_allowed_list"))


def online_cores(root: Path = ROOT) -> tuple[int, ...] | None:
    return parse_cores(read_text(root, "sys/devices/system/cpu/online"))


def siblings(root: Path, core: int) -> tuple[int, ...] | None:
    """The hardware threads that share the core with `core`, itself included."""
    return parse_cores(read_text(root, f"sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list"))


def is_root(root: Path = ROOT) -> bool:
    effective = (status_field(root, "Uid") or "").split()[1:2]
    return effective == ["0"]


def has_capability(root: Path, number: int) -> bool:
    try:
        return int(status_field(root, "CapEff") or "0", 16) >> number & 1 == 1
    except ValueError:
        return False


def memory_info(root: Path = ROOT) -> dict[str, int]:
    """/proc/meminfo in bytes; lines without a unit (counts of pages) are left out."""
    sizes: dict[str, int] = {}
    for line in (read_text(root, "proc/meminfo") or "").splitlines():
        name, _, rest = line.partition(":")
        words = rest.split()
        if len(words) == 2 and words[1] == "kB" and (kilobytes := to_int(words[0])) is not None:
            sizes[name] = kilobytes * 1024
    return sizes


def locked_memory_limit(root: Path = ROOT) -> float | None:
    """The soft RLIMIT_MEMLOCK in bytes; infinity when unlimited."""
    return _limits(root, "Max locked memory")[0]


def descriptor_limits(root: Path = ROOT) -> tuple[float | None, float | None]:
    """The soft and the hard RLIMIT_NOFILE."""
    return _limits(root, "Max open files")


def _limits(root: Path, name: str) -> tuple[float | None, float | None]:
    for line in (read_text(root, "proc/self/limits") or "").splitlines():
        if line.startswith(name):
            words = [*line.removeprefix(name).split()[:2], "", ""]
            soft, hard = (float("inf") if word == "unlimited" else to_int(word) for word in words[:2])
            return soft, hard
    return None, None


@dataclass(frozen=True, slots=True)
class Group:
    """One control group that binds this process: its version and its directory, as an absolute path under the root."""

    version: int
    path: str


def control_groups(root: Path, controller: str) -> tuple[Group, ...]:
    """The groups whose `controller` limits bind this process, innermost first; empty when there are none to see."""
    membership: dict[str, str] = {}
    for line in (read_text(root, "proc/self/cgroup") or "").splitlines():
        _, separator, rest = line.partition(":")
        names, colon, path = rest.partition(":")
        if separator and colon:
            for name in names.split(","):
                membership[name] = path
    for version, key in ((1, controller), (2, "")):
        if key in membership and (mount := _mount(root, version, controller)) is not None:
            return tuple(Group(version, path) for path in _ancestors(membership[key], *mount))
    return ()


def _mount(root: Path, version: int, controller: str) -> tuple[str, str] | None:
    """(root within the hierarchy, mount point) of the control group file system; see proc(5), mountinfo."""
    for line in (read_text(root, "proc/self/mountinfo") or "").splitlines():
        mount, separator, source = line.partition(" - ")
        fields = mount.split()
        kind = source.split()
        if not separator or len(fields) < 5 or len(kind) < 3:
            continue
        if version == 2 and kind[0] != "cgroup2":
            continue
        if version == 1 and (kind[0] != "cgroup" or controller not in kind[2].split(",")):
            continue
        return _unescape(fields[3]), _unescape(fields[4])
    return None


def _unescape(path: str) -> str:
    for code, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        path = path.replace(code, character)
    return path


def _ancestors(path: str, mount_root: str, mount_point: str) -> list[str]:
    """Directories from the group up to the mount point; only the latter when the group lies outside the mount."""
    inside = path == mount_root or path.startswith(mount_root.rstrip("/") + "/")
    parts = [part for part in path[len(mount_root) :].split("/") if part] if inside else []
    if ".." in parts:
        parts = []
    return ["/".join([mount_point.rstrip("/"), *parts[:depth]]) for depth in range(len(parts), -1, -1)]


@dataclass(frozen=True, slots=True)
class Quota:
    """The tightest CPU quota: `cores` of CPU time per unit of time, and the file that says so."""

    cores: float
    version: int
    path: str


def cpu_quota(root: Path = ROOT) -> Quota | None:
    tightest: Quota | None = None
    for group in control_groups(root, "cpu"):
        if group.version == 2:
            path = f"{group.path}/cpu.max"
            limit, _, length = (read_text(root, path) or "").partition(" ")
            quota, period = to_int(limit), to_int(length.strip())
        else:
            path = f"{group.path}/cpu.cfs_quota_us"
            quota, period = read_int(root, path), read_int(root, f"{group.path}/cpu.cfs_period_us")
        if quota is None or period is None or quota <= 0 or period <= 0:
            continue
        if tightest is None or quota / period < tightest.cores:
            tightest = Quota(quota / period, group.version, path)
    return tightest


@dataclass(frozen=True, slots=True)
class MemoryLimit:
    """The tightest memory limit: bytes, the bytes still free under it (page cache counts as free), and the file."""

    limit: int
    free: int
    version: int
    path: str


def memory_limit(root: Path = ROOT) -> MemoryLimit | None:
    tightest: MemoryLimit | None = None
    for group in control_groups(root, "memory"):
        limit_name, used_name, cache_name = (
            ("memory.max", "memory.current", "inactive_file")
            if group.version == 2
            else ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        )
        path = f"{group.path}/{limit_name}"
        limit = read_int(root, path)
        if limit is None or not 0 <= limit < _UNLIMITED_V1:
            continue
        used = max(0, (read_int(root, f"{group.path}/{used_name}") or 0) - _statistic(root, group, cache_name))
        free = max(0, limit - used)
        if tightest is None or free < tightest.free:
            tightest = MemoryLimit(limit, free, group.version, path)
    return tightest


def _statistic(root: Path, group: Group, name: str) -> int:
    for line in (read_text(root, f"{group.path}/memory.stat") or "").splitlines():
        key, _, value = line.partition(" ")
        if key == name:
            return max(0, to_int(value.strip()) or 0)
    return 0


def container_name(root: Path = ROOT) -> str | None:
    """What kind of container this is, by the traces they leave; None when there are none."""
    for path, name in ((".dockerenv", "docker"), ("run/.containerenv", "podman")):
        try:
            if (root / path).exists():
                return name
        except OSError:
            continue
    marker = (read_text(root, "run/systemd/container") or "").split()
    if marker:
        return marker[0][:40]
    groups = read_text(root, "proc/self/cgroup") or ""
    return next((name for name in ("kubepods", "docker", "libpod", "lxc") if f"/{name}" in groups), None)
