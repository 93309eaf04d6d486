"""What a host and each of its pools are made with.

Theory of operation: a host's own ``workers``, ``idle``, ``threads``, ``cores``, ``batch``, ``delay``, ``quantum`` and
limits hold for the pool "default", and for what another pool does not say itself. Limits of a client (bytes, in_flight,
slots) count in each pool by themselves, because a pool has memory and sessions of its own; the others are the host's.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from teal import _core
from teal.errors import InvalidArgument
from teal.host import agent_options, argument, policy_spec
from teal.host.agent_options import AgentOptions
from teal.host.cache import Cache, default_folder
from teal.host.defaults import CACHE_BYTES, DEFAULT_POOL
from teal.host.duration import nanoseconds
from teal.host.limits import Limits
from teal.host.repository import check_name

_MOST_POOLS = 16  # each has a thread here, and workers that hold models of their own
_MOST_SPARES = 8
_LONGEST_QUANTUM = 10_000_000_000
_OF_A_CLIENT = ("bytes", "in_flight", "slots")
_OF_AN_AGENT = ("policy", *agent_options.OPTIONS)
_OF_DUCKS = ("ducks", "duck_key_file")
_OF_HELP = ("helps",)
_OF_WORKERS = ("workers", "idle", "threads", "cores", "memory", "keep", "spares", "batch", "delay", "quantum")
SETTINGS = (*_OF_WORKERS, *_OF_HELP, *_OF_DUCKS, *_OF_A_CLIENT, *_OF_AN_AGENT)


@dataclass(frozen=True, slots=True)
class PoolSettings:
    """workers: processes; idle_ns: their longest spinning; threads: of engines (None: all usable cores); cores:
    pinned to these (none: not pinned); limits: of a client in this pool; memory: bytes that its models may take
    (None: as many as there are); keep: replaced versions of a name that can come back; spares: workers that are
    ready to replace one; batch: most rows of different requests that run together (1: none do); delay_ns: longest
    wait of the first of them; quantum_ns: time that a request has while others wait, if its kernel can be preempted
    (0: until it ends); policy: of its agent ("": it has none), which runs as ``agent`` says; ducks: where its native
    programs run instead, worker i on duck i; duck_key: path of their key; helps: pools whose requests it runs when its
    workers have nothing to do."""

    workers: int
    idle_ns: int
    threads: int | None
    cores: tuple[int, ...]
    limits: Limits
    memory: int | None = None
    keep: int = 1
    spares: int = 0
    batch: int = 1
    delay_ns: int = 0
    quantum_ns: int = 0
    policy: str = ""
    agent: AgentOptions = field(default_factory=AgentOptions)
    ducks: tuple[str, ...] = ()
    duck_key: str = ""
    helps: tuple[str, ...] = ()


def pool_settings(base: PoolSettings, given: Mapping[str, Any], path: str) -> PoolSettings:
    """``base`` with what ``given`` says otherwise: some of SETTINGS, as Host takes them. Raises InvalidArgument."""
    if unknown := sorted(set(given) - set(SETTINGS)):
        raise InvalidArgument(f"{unknown}: not settings of a pool; there are {list(SETTINGS)}", path=path)
    usable = os.sched_getaffinity(0)
    changed: dict[str, Any] = {}
    if "workers" in given:
        changed["workers"] = argument.whole(given["workers"], 1, _core.MAX_WORKERS, f"{path}.workers")
    if "idle" in given:
        changed["idle_ns"] = nanoseconds(given["idle"], f"{path}.idle")
    if given.get("threads") is not None:
        changed["threads"] = argument.whole(given["threads"], 1, 1024, f"{path}.threads")
    if given.get("cores") is not None:
        changed["cores"] = argument.cores(given["cores"], usable, f"{path}.cores")
    if given.get("memory") is not None:
        changed["memory"] = argument.whole(given["memory"], 1, 1 << 62, f"{path}.memory")
    if given.get("spares") is not None:
        changed["spares"] = argument.whole(given["spares"], 0, _MOST_SPARES, f"{path}.spares")
    if given.get("keep") is not None:
        changed["keep"] = argument.whole(given["keep"], 0, 64, f"{path}.keep")
    if "batch" in given:
        changed["batch"] = argument.whole(given["batch"], 1, _core.MAX_BATCH, f"{path}.batch")
    if "delay" in given:
        changed["delay_ns"] = nanoseconds(given["delay"], f"{path}.delay")
    if "quantum" in given:
        changed["quantum_ns"] = _quantum(given["quantum"], f"{path}.quantum")
    if given.get("ducks") is not None:
        changed["ducks"] = _ducks(given["ducks"], f"{path}.ducks")
        if "workers" not in given:
            changed["workers"] = len(changed["ducks"])
    if given.get("helps") is not None:
        changed["helps"] = _helps(given["helps"], f"{path}.helps")
    if given.get("duck_key_file") is not None:
        found = argument.path_of(given["duck_key_file"], f"{path}.duck_key_file", "the path of a key file")
        changed["duck_key"] = os.path.abspath(found or "")
    if given.get("policy") is not None:
        text = argument.one_of(given["policy"], str, f"{path}.policy", "a policy such as shinjuku:quantum=50us")
        changed["policy"] = str(policy_spec.parse(text, f"{path}.policy")) if text else ""
    if options := {name: given[name] for name in agent_options.OPTIONS if given.get(name) is not None}:
        changed["agent"] = agent_options.agent_options(base.agent, options, path)
    if limits := {name: given[name] for name in _OF_A_CLIENT if given.get(name) is not None}:
        changed["limits"] = dataclasses.replace(base.limits, **limits)
    return dataclasses.replace(base, **changed)


def _ducks(given: Any, path: str) -> tuple[str, ...]:
    if isinstance(given, (str, bytes)) or not isinstance(given, Sequence) or not 1 <= len(given) <= _core.MAX_WORKERS:
        raise argument.wrong(given, path, f"a list of 1 to {_core.MAX_WORKERS} ducks such as ['10.0.0.2:7311']")
    return tuple(argument.one_of(one, str, path, "the address of a duck") for one in given)


def _helps(given: Any, path: str) -> tuple[str, ...]:
    if isinstance(given, (str, bytes)) or not isinstance(given, Sequence):
        raise argument.wrong(given, path, "a list of pools such as ['default']")
    return tuple(argument.one_of(one, str, path, "the name of a pool") for one in given)


def _check_helps(pools: Mapping[str, PoolSettings]) -> None:
    """Can they be helped by these? Raises InvalidArgument."""
    workers = {name: pool.workers for name, pool in pools.items()}
    for name, pool in pools.items():
        path = f"$.pools[{name!r}].helps"
        for other in pool.helps:
            if other == name or other not in pools or pool.helps.count(other) > 1:
                others = [one for one in pools if one != name]
                raise InvalidArgument(
                    f"{other[:60]!r}, expected other pools of this host, once each: {others}", path=path
                )
            if pool.ducks or pools[other].ducks:
                raise InvalidArgument(
                    f"{other!r}: pools that run on ducks cannot help or be helped; leave it out", path=path
                )
            if pools[other].policy:
                raise InvalidArgument(
                    f"{other!r}: an agent decides there, for its own workers only; leave it out", path=path
                )
            workers[other] += pool.workers
            if workers[other] > _core.MAX_WORKERS:
                raise InvalidArgument(
                    f"{other!r} would have {workers[other]} workers, lent ones too, expected at most "
                    f"{_core.MAX_WORKERS}", path=path,
                )  # fmt: skip


def _quantum(given: Any, path: str) -> int:
    ns = nanoseconds(given, path)
    if ns != 0 and not _core.SHORTEST_QUANTUM_NS <= ns <= _LONGEST_QUANTUM:
        raise InvalidArgument(f"{given!r}, expected 0 (none) or 20us to 10s", path=path)
    return ns


def daemon_arguments(
    address: str,
    *,
    workers: int,
    idle: str | float,
    threads: int | None,
    cores: Sequence[int] | None,
    limits: Limits | None,
    repository: str | os.PathLike[str] | None,
    pools: Mapping[str, Mapping[str, Any]] | None = None,
    memory: int | None = None,
    keep: int = 1,
    spares: int = 0,
    batch: int = 1,
    delay: str | float = 0,
    quantum: str | float = 0,
    agent: Mapping[str, Any] | None = None,
    cache: str | os.PathLike[str] | bool = True,
    cache_bytes: int = CACHE_BYTES,
    allowed_uids: Sequence[int] = (),
) -> dict[str, Any]:
    """Checked arguments of Daemon. Raises InvalidArgument, also for a TEAL_ISA that this machine cannot honour."""
    _core.isa()  # raises what is wrong with TEAL_ISA, which the workers inherit
    limits = Limits() if limits is None else argument.one_of(limits, Limits, "$.limits", "teal.Limits(bytes=…, …)")
    own = {"workers": workers, "idle": idle, "threads": threads, "cores": cores, "memory": memory, "keep": keep}
    own |= {"spares": spares, "batch": batch, "delay": delay, "quantum": quantum, **(agent or {})}
    base = pool_settings(PoolSettings(1, 0, None, (), limits), own, "$")
    made = {DEFAULT_POOL: base}
    asked = argument.mapping({} if pools is None else pools, "$.pools", "a mapping such as {'fast': {'workers': 2}}")
    for name, given in asked.items():
        path = f"$.pools[{name[:60]!r}]"
        settings = argument.mapping(given, path, "a mapping such as {'workers': 2, 'idle': '1ms'}")
        made[_pool_name(name, path)] = pool_settings(base, settings, path)
    if len(made) > _MOST_POOLS:
        raise InvalidArgument(f"{len(made)} pools, expected at most {_MOST_POOLS}", path="$.pools")
    _check_helps(made)
    folder = None
    if repository is not None:
        kinds: tuple[type[Any], ...] = (str, os.PathLike)
        folder = Path(argument.one_of(repository, kinds, "$.repository", "the path of a folder"))
        if not folder.is_dir():
            raise InvalidArgument(f"{folder}: not a folder", path="$.repository")
    return {
        "address": address,
        "pools": made,
        "limits": limits,
        "repository": folder,
        "cache": _cache(cache, argument.whole(cache_bytes, 1, 1 << 62, "$.cache_bytes")),
        "allowed_uids": tuple(allowed_uids),
    }


def _cache(cache: object, nbytes: int) -> Cache:
    if cache is False:
        return Cache(None, nbytes, "off (cache=False)")
    if cache is True:
        folder = default_folder()
        return Cache(folder, nbytes, "" if folder else "snapshots are not kept on disk: this user has no home")
    kinds: tuple[type[Any], ...] = (str, os.PathLike)
    path = Path(argument.one_of(cache, kinds, "$.cache", "the path of a folder, True or False"))
    if "\0" in str(path):
        raise InvalidArgument("path with a NUL byte", path="$.cache")
    return Cache(path.absolute(), nbytes)


def _pool_name(name: str, path: str) -> str:
    try:
        return check_name(name)
    except InvalidArgument:
        raise InvalidArgument(
            "pool name: expected 1 to 128 letters, digits, '.', '_' or '-', starting with a letter or digit, without "
            "'..'",
            path=path,
        ) from None
