"""Is this machine fit to run Teal, and what would make it fitter?

Theory of operation. Each check looks at one thing and returns a `Check`: PASS, CAUTION (works, but slower, less
isolated or less predictable than it could be) or FAIL (something does not work), what was found, why it matters, and
the command that fixes it, if there is one. A check finds out by using the thing where it can (system calls, AMX
permission, onnxruntime) and by reading /proc and /sys otherwise; what cannot be read is said to be unknown, never
guessed. `examine` runs them all and changes nothing.

Every check takes the root directory under which /proc and /sys lie. What the core measures can be passed in, for tests.
"""

from __future__ import annotations

import errno
import importlib
import shlex
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from teal import _core
from teal.host import machine
from teal.host.machine import ROOT

_MIB = 1 << 20
_GIB = 1 << 30
_CPUS = "/sys/devices/system/cpu"
_CLOCKS = "/sys/devices/system/clocksource/clocksource0"
_THP = "/sys/kernel/mm/transparent_hugepage"
_HUGE = "/sys/kernel/mm/hugepages/hugepages-2048kB"


class Status(StrEnum):
    PASS = "PASS"
    CAUTION = "CAUTION"
    FAIL = "FAIL"


@dataclass(frozen=True, slots=True)
class Check:
    name: str
    status: Status
    found: str
    why: str
    fix: str | None = None  # a shell command, to be run as it stands


Progress = Callable[[str], None]  # told what is about to be measured, before anything that takes longer than a blink


def examine(root: Path = ROOT, *, quick: bool = False, progress: Progress | None = None) -> tuple[Check, ...]:
    """Runs all checks in order; `quick` leaves out the jitter measurement, which takes a second.

    Raises nothing: a check that breaks is reported as a CAUTION that names the exception.
    """
    found = [_guarded(check, root) for check in CHECKS]
    if not quick:
        if progress is not None:
            progress("jitter floor, one second")
        found.append(_guarded(check_jitter, root))
    return tuple(found)


def worst(checks: tuple[Check, ...]) -> Status:
    order = list(Status)
    return max((check.status for check in checks), key=order.index, default=Status.PASS)


def _guarded(check: Callable[[Path], Check], root: Path) -> Check:
    name = check.__name__.removeprefix("check_").replace("_", " ")
    try:
        return check(root)
    except Exception as error:  # one odd machine file must not hide the other answers
        found = f"not examined: {type(error).__name__}: {error}"
        return Check(name, Status.CAUTION, found, "This check itself failed, which is a bug of Teal: please report it.")


def _write(root: Path, value: str, path: str) -> str:
    """The command that puts `value` into a file of root's, for whoever is asking."""
    quoted = path if "*" in path else shlex.quote(path)  # tee, not >, because the shell does not redirect to many files
    return f"echo {value} | {_as_root(root, 'tee')} {quoted}"


def _as_root(root: Path, command: str) -> str:
    return command if machine.is_root(root) else f"sudo {command}"


def _size(count: float) -> str:
    if count == float("inf"):
        return "unlimited"
    return f"{count / _GIB:.1f} GiB" if count >= _GIB else f"{count / _MIB:.0f} MiB"


def _reason(number: int) -> str:
    return errno.errorcode.get(number, str(number))


# --- processor ------------------------------------------------------------------------------------


def check_cpu(root: Path = ROOT, features: Mapping[str, Any] | None = None, amx_refusal: int | None = None) -> Check:
    """CPU features, what the OS does with them, and what TEAL_ISA makes of it."""
    why = "Wide registers decide how fast kernels run; AVX2 is the floor for the fast paths."
    cpu = _core.cpu_features() if features is None else features
    states: Mapping[str, Mapping[str, bool]] = cpu["features"]
    enabled = [name for name, state in states.items() if state["enabled"]]
    withheld = [name for name, state in states.items() if state["offered"] and not state["enabled"]]
    found = f"{cpu['brand'] or cpu['architecture']}: {', '.join(enabled) or 'none of ours'}; runs {cpu['isa']}"
    baseline = next(iter(states))
    if baseline not in enabled:
        return Check("cpu", Status.FAIL, found, f"Teal is compiled for {baseline} and may end with SIGILL here.")
    if cpu["isa_error"]:
        return Check("cpu", Status.FAIL, str(cpu["isa_error"]), why, "unset TEAL_ISA")
    if withheld:
        found += f"; offered by the CPU but not enabled by the OS: {', '.join(withheld)}"
        why += " The kernel does not save these registers: it is too old, or /proc/cmdline has noxsave or clearcpuid."
        return Check("cpu", Status.CAUTION, found, why)
    if "amx_bf16" in enabled or "amx_int8" in enabled:
        refusal = _core.amx_permission() if amx_refusal is None else amx_refusal
        if refusal:
            found += f"; the kernel refuses AMX to this process ({_reason(refusal)})"
            return Check("cpu", Status.CAUTION, found, why + " AMX is worth ten times AVX-512 for bf16 and int8.")
    if cpu["isa"] != cpu["isa_widest"]:
        found += f" because TEAL_ISA says so; {cpu['isa_widest']} is there"
        return Check("cpu", Status.CAUTION, found, why, "unset TEAL_ISA")
    if cpu["architecture"] == "x86_64" and "avx2" not in enabled:
        return Check("cpu", Status.CAUTION, found + "; no AVX2", why)
    return Check("cpu", Status.PASS, found, why)


def check_cores(root: Path = ROOT) -> Check:
    why = "A client and a worker that spin need a core each; on one core every call waits for the scheduler."
    allowed = machine.allowed_cores(root)
    online = machine.online_cores(root)
    if allowed is None:
        return Check("cores", Status.CAUTION, "unknown: /proc/self/status has no Cpus_allowed_list", why)
    found = f"{len(allowed)} usable ({machine.format_cores(allowed)})"
    if online is not None:
        found += f" of {len(online)} online"
    if len(allowed) >= 2:
        return Check("cores", Status.PASS, found, why)
    fix = f"taskset -cp {machine.format_cores(online)} $$" if online is not None and len(online) >= 2 else None
    return Check("cores", Status.CAUTION, found, why, fix)


def check_quota(root: Path = ROOT) -> Check:
    why = "A control group that has used up its quota stops for the rest of the period, often tens of milliseconds."
    quota = machine.cpu_quota(root)
    if quota is None:
        return Check("quota", Status.PASS, "no CPU quota", why)
    allowed = machine.allowed_cores(root) or ()
    found = f"{quota.cores:.2f} cores of CPU time ({quota.path}) for {len(allowed)} usable cores"
    if allowed and quota.cores >= len(allowed):
        return Check("quota", Status.PASS, found, why)
    return Check("quota", Status.CAUTION, found, why, _write(root, "max" if quota.version == 2 else "-1", quota.path))


def check_governor(root: Path = ROOT) -> Check:
    why = "Other governors lower the clock in quiet moments, and the first calls after one pay for it."
    cores = machine.allowed_cores(root) or machine.online_cores(root) or ()
    governors = {machine.read_text(root, f"{_CPUS}/cpu{core}/cpufreq/scaling_governor") for core in cores} - {None, ""}
    if not governors:
        return Check("governor", Status.PASS, "none to set here (usual in a virtual machine)", why)
    found = ", ".join(sorted(str(name) for name in governors))
    if governors == {"performance"}:
        return Check("governor", Status.PASS, found, why)
    fix = _write(root, "performance", f"{_CPUS}/cpu*/cpufreq/scaling_governor")
    return Check("governor", Status.CAUTION, found, why, fix)


def check_smt(root: Path = ROOT) -> Check:
    why = "Two threads on one core share its units and caches: a busy sibling makes a worker slower and less even."
    shared = [
        threads for core in machine.allowed_cores(root) or () if len(threads := machine.siblings(root, core) or ()) > 1
    ]
    if not shared and machine.read_text(root, f"{_CPUS}/smt/active") != "1":
        return Check("smt", Status.PASS, "one hardware thread a core", why)
    pairs = " ".join(sorted({machine.format_cores(threads) for threads in shared})[:8])
    found = f"on: hardware threads that share a core: {pairs}" if pairs else "on"
    return Check("smt", Status.CAUTION, found, why, _write(root, "off", f"{_CPUS}/smt/control"))


# --- memory ---------------------------------------------------------------------------------------


def check_thp(root: Path = ROOT) -> Check:
    why = "With 2 MiB pages a fresh region costs a third of the page faults, and a second process maps weights at once."
    shared = machine.read_choice(root, f"{_THP}/shmem_enabled")
    private = machine.read_choice(root, f"{_THP}/enabled")
    if shared is None:
        return Check("thp", Status.CAUTION, "this kernel has no transparent huge pages for shared memory", why)
    found = f"shared memory: {shared}; private memory: {private or 'unknown'}"
    if shared in {"always", "within_size", "advise", "force"}:
        return Check("thp", Status.PASS, found, why)
    return Check("thp", Status.CAUTION, found, why, _write(root, "advise", f"{_THP}/shmem_enabled"))


def check_huge_pages(root: Path = ROOT, refusal: int | None = None) -> Check:
    why = "Large regions take 2 MiB pages from this pool while it has some: fewer page faults, and none refused later."
    name = "huge pages"
    total = machine.read_int(root, f"{_HUGE}/nr_hugepages")
    free = machine.read_int(root, f"{_HUGE}/free_hugepages")
    spare = machine.read_int(root, f"{_HUGE}/nr_overcommit_hugepages") or 0
    if total is None or free is None:
        return Check(name, Status.CAUTION, "this kernel has no pool of 2 MiB pages", why)
    found = f"{free} of {total} free in the pool of 2 MiB pages" + (f", {spare} more on demand" if spare else "")
    if free > 0 or spare > 0:
        answer = _core.probe_system()["memfd_huge"] if refusal is None else refusal
        if answer == 0:
            return Check(name, Status.PASS, found, why)
        found += f", but taking one fails ({_reason(answer)})"
    spare_memory = machine.memory_info(root).get("MemAvailable", 0)
    wanted = total + min(256, max(16, spare_memory // 8 // (2 * _MIB)))  # 512 MiB, or an eighth of what is free
    return Check(name, Status.CAUTION, found, why, _as_root(root, f"sysctl vm.nr_hugepages={wanted}"))


def check_memlock(root: Path = ROOT) -> Check:
    why = "Only locked pages are sure to be in memory at the next call; beyond the limit they are left to the swapper."
    limit = machine.locked_memory_limit(root)
    if machine.has_capability(root, machine.CAP_IPC_LOCK):
        return Check("memlock", Status.PASS, "no limit for this process (CAP_IPC_LOCK)", why)
    fix = _as_root(root, "prlimit --pid $$ --memlock=unlimited:unlimited")
    if limit is None:
        return Check("memlock", Status.CAUTION, "unknown: /proc/self/limits does not say", why, fix)
    status = Status.PASS if limit >= 64 * _MIB else Status.CAUTION
    return Check("memlock", status, _size(limit), why, None if status is Status.PASS else fix)


def check_descriptors(root: Path = ROOT) -> Check:
    why = "A host holds one for each client and region. It raises its soft limit to the hard one by itself."
    soft, hard = machine.descriptor_limits(root)
    if hard is None:
        return Check("descriptors", Status.CAUTION, "unknown: /proc/self/limits does not say", why)
    found = (
        f"{hard:g} may be open" if soft == hard else f"{soft or 0:g} may be open, {hard:g} once a host has raised it"
    )
    fix = None if hard >= 4096 else _as_root(root, "prlimit --pid $$ --nofile=65536:65536")
    return Check("descriptors", Status.PASS if fix is None else Status.CAUTION, found, why, fix)


def check_memory(root: Path = ROOT) -> Check:
    why = "Regions reserve their pages when made, so a full machine is an error at load, and swapping ruins the tail."
    info = machine.memory_info(root)
    available = info.get("MemAvailable", info.get("MemFree"))
    if available is None:
        return Check("memory", Status.CAUTION, "unknown: /proc/meminfo does not say", why)
    found = f"{_size(available)} available of {_size(info.get('MemTotal', 0))}"
    limit = machine.memory_limit(root)
    if limit is not None:
        found += f"; {_size(limit.free)} free of the {_size(limit.limit)} of {limit.path}"
        available = min(available, limit.free)
    status = Status.FAIL if available < 256 * _MIB else Status.CAUTION if available < _GIB else Status.PASS
    fix = None
    if status is not Status.PASS and limit is not None and limit.free == available:
        fix = _write(root, "max" if limit.version == 2 else "-1", limit.path)
    return Check("memory", status, found, why, fix)


def check_overcommit(root: Path = ROOT) -> Check:
    why = "In mode 2 the kernel counts every mapping in full and refuses engines that map far more than they use."
    mode = machine.read_int(root, "/proc/sys/vm/overcommit_memory")
    if mode != 2:
        found = {0: "mode 0 (heuristic)", 1: "mode 1 (always)"}.get(-1 if mode is None else mode, "unknown")
        return Check("overcommit", Status.PASS if found != "unknown" else Status.CAUTION, found, why)
    info = machine.memory_info(root)
    left = max(0, info.get("CommitLimit", 0) - info.get("Committed_AS", 0))
    found = f"mode 2 (strict), {_size(left)} left to commit"
    return Check("overcommit", Status.CAUTION, found, why, _as_root(root, "sysctl vm.overcommit_memory=0"))


# --- time and kernel ------------------------------------------------------------------------------


def check_clock(root: Path = ROOT, tick_source: str | None = None) -> Check:
    why = "Every call reads the clock several times: the CPU's counter costs some 10 ns, a device clock a microsecond."
    ticks = str(_core.cpu_features()["tick_source"]) if tick_source is None else tick_source
    current = machine.read_text(root, f"{_CLOCKS}/current_clocksource")
    offered = (machine.read_text(root, f"{_CLOCKS}/available_clocksource") or "").split()
    found = f"kernel: {current or 'unknown'}; Teal's ticks: {ticks}"
    fast = current in {None, "", "tsc", "kvm-clock", "hyperv_clocksource_tsc_page", "arch_sys_counter"}
    if fast and ticks != "clock_gettime":
        return Check("clock", Status.PASS, found, why)
    fix = _write(root, "tsc", f"{_CLOCKS}/current_clocksource") if "tsc" in offered and not fast else None
    return Check("clock", Status.CAUTION, found, why, fix)


def check_system_calls(root: Path = ROOT, probes: Mapping[str, int] | None = None) -> Check:
    """Used for real, not looked up by version: a seccomp filter or a sandbox does not show in the version."""
    name = "system calls"
    needed = {
        "memfd_seals": "sealed memfd regions",
        "robust_futex": "robust futexes",
        "fd_passing": "descriptors over UNIX sockets",
        "pidfd_open": "pidfd_open",
        "futex_waitv": "futex_waitv",
    }
    answers = _core.probe_system() if probes is None else probes
    release = machine.read_text(root, "/proc/sys/kernel/osrelease") or "of unknown version"
    broken = {key: answers[key] for key in needed if answers[key]}
    why = "Shared memory, recovery of locks whose holder died, and news of dead peers rest on these."
    if not broken:
        return Check(name, Status.PASS, f"Linux {release}: {', '.join(needed.values())} work", why)
    found = f"Linux {release}: " + ", ".join(f"{needed[key]} fails ({_reason(code)})" for key, code in broken.items())
    if set(broken) == {"futex_waitv"}:
        why = "Without it (Linux 5.16) a process that waits for several others wakes now and then to look."
        return Check(name, Status.CAUTION, found, why)
    return Check(name, Status.FAIL, found, why + " In a container, a seccomp profile may forbid them.")


def check_peer_identity(root: Path = ROOT, refusal: int | None = None) -> Check:
    why = "SO_PEERCRED tells the host who connects; without it nobody can be let in."
    answer = _core.probe_system()["peer_identity"] if refusal is None else refusal
    if answer == 0:
        return Check("peer identity", Status.PASS, "SO_PEERCRED works", why)
    return Check("peer identity", Status.FAIL, f"SO_PEERCRED fails ({_reason(answer)})", why)


def check_ptrace(root: Path = ROOT) -> Check:
    why = "Teal does not trace; debuggers and profilers do, when a worker hangs."
    scope = machine.read_int(root, "/proc/sys/kernel/yama/ptrace_scope")
    meaning = {0: "own processes", 1: "own children only", 2: "administrator only", 3: "nobody until reboot"}
    if scope is None:
        return Check("ptrace", Status.PASS, "no Yama: own processes may be traced", why)
    found = f"ptrace_scope {scope} ({meaning.get(scope, 'unknown')})"
    if scope in {0, 1}:
        return Check("ptrace", Status.PASS, found, why)
    fix = _as_root(root, "sysctl kernel.yama.ptrace_scope=1") if scope == 2 else None
    return Check("ptrace", Status.CAUTION, found, why, fix)


def check_user_namespaces(root: Path = ROOT) -> Check:
    why = "Native programs from others run in a sandbox of user namespaces; without it they are refused."
    name = "user namespaces"
    knobs = (
        ("user.max_user_namespaces", 0, 15000),
        ("kernel.unprivileged_userns_clone", 0, 1),  # Debian
        ("kernel.apparmor_restrict_unprivileged_userns", 1, 0),  # Ubuntu
    )
    privileged = machine.has_capability(root, machine.CAP_SYS_ADMIN)  # the kernel.* knobs bind only those without
    values = {knob: machine.read_int(root, "/proc/sys/" + knob.replace(".", "/")) for knob, _, _ in knobs}
    if values["user.max_user_namespaces"] is None:
        return Check(name, Status.CAUTION, "unknown: /proc/sys/user/max_user_namespaces is missing", why)
    for knob, forbidding, allowing in knobs:
        if values[knob] == forbidding and not (knob.startswith("kernel.") and privileged):
            fix = _as_root(root, f"sysctl {knob}={allowing}")
            return Check(name, Status.CAUTION, f"{knob} = {forbidding}", why, fix)
    return Check(name, Status.PASS, f"up to {values['user.max_user_namespaces']}", why)


def check_container(root: Path = ROOT) -> Check:
    why = "Containers set limits, which the checks above show. The size of /dev/shm is none: Teal does not use it."
    kind = machine.container_name(root)
    filtered = machine.status_field(root, "Seccomp") == "2"
    found = f"in {kind}" if kind else "none seen"
    return Check("container", Status.PASS, found + ("; system calls are filtered (seccomp)" if filtered else ""), why)


def check_onnxruntime(root: Path = ROOT, load: Callable[[str], Any] = importlib.import_module) -> Check:
    why = "ONNX models run in it. Builtin and function kernels do not need it."
    fix = f"{shlex.quote(sys.executable)} -m pip install 'onnxruntime>=1.20'"
    try:
        engine = load("onnxruntime")
    except ModuleNotFoundError as error:
        if error.name == "onnxruntime":
            return Check("onnxruntime", Status.CAUTION, "not installed", why, fix)
        return Check("onnxruntime", Status.FAIL, f"installed, but does not load: {error}", why, fix)
    except Exception as error:  # a broken native library can raise anything
        return Check("onnxruntime", Status.FAIL, f"installed, but does not load: {error}", why, fix)
    return Check("onnxruntime", Status.PASS, f"{getattr(engine, '__version__', 'of unknown version')}", why)


def check_opencl(root: Path = ROOT) -> Check:
    return _device_check("opencl")


def check_cuda(root: Path = ROOT) -> Check:
    return _device_check("cuda")


def _device_check(kind: str) -> Check:
    from teal.device import doctor as devices

    verdict = devices.examine(kind)
    why = "Compute devices run resident kernels beside the CPU's. Nothing else needs them."
    status = {"usable": Status.CAUTION, "broken": Status.FAIL}.get(verdict.state, Status.PASS)
    return Check(kind, status, verdict.found, why)


def check_jitter(
    root: Path = ROOT, measure: Callable[[int, int], Mapping[str, float]] | None = None, milliseconds: int = 1000
) -> Check:
    """The gaps that this machine puts into a loop that only reads the clock, on the last usable core."""
    why = "No call has better tails than this floor, made by other tasks, interrupts and hypervisors."
    cores = machine.allowed_cores(root)
    if not cores:
        return Check("jitter", Status.CAUTION, "not measured: no usable core is known", why)
    measured = (_core.jitter if measure is None else measure)(cores[-1], milliseconds)
    seconds = measured["milliseconds"] / 1000
    found = (
        f"core {cores[-1]}, {seconds:.1f} s: {measured['over_5us']:.0f} gaps over 5 us, "
        f"{measured['over_20us']:.0f} over 20, {measured['over_100us']:.0f} over 100; "
        f"{measured['lost_ms']:.1f} ms lost; longest {measured['max_us']:.0f} us"
    )
    # Arbitrary, but about twice what a quiet shared virtual machine shows.
    noisy = measured["over_100us"] > 15 * seconds or measured["lost_ms"] > 30 * seconds
    return Check("jitter", Status.CAUTION if noisy else Status.PASS, found, why)


def check_agent_walls(root: Path = ROOT, offered: Mapping[str, Any] | None = None) -> Check:
    """What an agent's process can be locked in with: a filter of system calls, and Landlock."""
    why = "An agent's policy is somebody's code: it is locked in before it sees a pool (docs/agents.md)."
    walls = _core.walls_offered() if offered is None else offered
    landlock = f"Landlock version {walls['landlock']}" if walls["landlock"] else "no Landlock"
    found = f"{'a filter of system calls' if walls['filter'] else 'no filter of system calls'}, {landlock}"
    if walls["filter"] and walls["landlock"]:
        return Check("agent walls", Status.PASS, found, why)
    return Check("agent walls", Status.CAUTION, f"{found} ({walls['missing']})", why)


def check_kvm(root: Path = ROOT, probed: Mapping[str, Any] | None = None) -> Check:
    """Whether a program can run in a virtual machine without an operating system (docs/kvm.md): one is run to see."""
    why = "Native programs of strangers can run in a virtual machine instead of a process (docs/kvm.md)."
    found = _core.kvm_probe() if probed is None else probed
    if found["available"]:
        return Check("kvm", Status.PASS, str(found["text"]), why)
    if "errno 13" in str(found["reason"]):
        return Check("kvm", Status.CAUTION, str(found["reason"]), why, _as_root(root, "usermod -aG kvm $USER"))
    return Check("kvm", Status.PASS, f"none to use: {found['reason']}", why)


CHECKS: tuple[Callable[[Path], Check], ...] = (
    check_cpu,
    check_cores,
    check_quota,
    check_governor,
    check_smt,
    check_thp,
    check_huge_pages,
    check_memlock,
    check_descriptors,
    check_memory,
    check_overcommit,
    check_clock,
    check_system_calls,
    check_peer_identity,
    check_ptrace,
    check_user_namespaces,
    check_container,
    check_agent_walls,
    check_kvm,
    check_onnxruntime,
    check_opencl,
    check_cuda,
)
