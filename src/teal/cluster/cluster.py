"""`teal cluster`: ducks as Ray actors.

Theory of operation: the cluster is Ray's. One placement group with a bundle for each duck, on different nodes
(STRICT_SPREAD); in each bundle one detached actor that keeps a duck and is restarted for ever. Both outlive whoever
asked for them. A later `up` adds a group for the nodes that have come since: its bundles avoid the nodes that have a
duck. So where a duck is, when it is started again and on which node, is decided by Ray and nobody else. A duck's port
changes with a restart unless one was given; `Cluster.nests()` asks the actors.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from teal.errors import InvalidArgument, NotFound, PeerDied, QuotaExceeded

if TYPE_CHECKING:
    from types import TracebackType

NAMESPACE = "teal"  # Ray's, of our actors
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,31}")
_PATIENCE = 30.0


@dataclass(frozen=True)
class Nest:
    """One actor and its duck. address: HOST:PORT, "" while there is none; restarted: Ray has started it anew."""

    index: int
    node: str
    address: str
    pid: int
    restarted: bool
    up_s: float
    error: str


def _ray() -> Any:
    try:
        return importlib.import_module("ray")
    except ImportError:
        raise NotFound("ray is not installed: pip install 'teal-runtime[cluster]'") from None


def _check(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise InvalidArgument(f"cluster name {name!r}, expected 1 to 32 of a-z, 0-9 and -", path="$.name")
    return name


@contextlib.contextmanager
def _connected(address: str) -> Iterator[Any]:
    """Ray's module, connected; disconnected afterwards if it was not before."""
    ray = _ray()
    if ray.is_initialized():
        yield ray
        return
    try:
        ray.init(address=address, namespace=NAMESPACE, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise PeerDied("ray", f"no cluster answers at {address}: {str(error).splitlines()[0][:200]}") from None
    try:
        yield ray
    finally:
        ray.shutdown()


def _taken(ray: Any, name: str) -> dict[int, Any]:
    """The actors of a cluster, by index."""
    prefix, found = f"duck-{name}-", {}
    for each in ray.util.list_named_actors(all_namespaces=True):
        index = each["name"].removeprefix(prefix)
        if each["namespace"] == NAMESPACE and each["name"].startswith(prefix) and index.isdecimal():
            with contextlib.suppress(ValueError):  # it has gone in between
                found[int(index)] = ray.get_actor(each["name"], namespace=NAMESPACE)
    return dict(sorted(found.items()))


def _alive(ray: Any) -> list[str]:
    return sorted(node["NodeID"] for node in ray.nodes() if node["Alive"])


def _group(ray: Any, name: str, first: int, count: int, avoid: Sequence[str], timeout: float) -> Any:
    """A placement group with a place for each of `count` ducks on nodes that have none. Raises QuotaExceeded."""
    module = importlib.import_module("ray.util.placement_group")
    selector = {"ray.io/node-id": f"!in({','.join(avoid)})"} if avoid else {}
    group = module.placement_group(
        [{"CPU": 0.001}] * count, strategy="STRICT_SPREAD", name=f"ducks-{name}-{first}", lifetime="detached",
        bundle_label_selector=[selector] * count if selector else None,
    )  # fmt: skip
    if not group.wait(timeout):
        module.remove_placement_group(group)
        raise QuotaExceeded(f"Ray found no {count} free nodes within {timeout:g} s (it has {len(_alive(ray))})")
    return group


def _place(
    ray: Any, name: str, first: int, group: Any, count: int, options: list[str], port: int, key: str | None
) -> list[Any]:
    from .keeper import Keeper

    strategies = importlib.import_module("ray.util.scheduling_strategies")
    actor = ray.remote(Keeper)
    return [
        actor.options(
            name=f"duck-{name}-{first + bundle}", namespace=NAMESPACE, lifetime="detached", num_cpus=0.001,
            max_restarts=-1, max_task_retries=0, max_concurrency=4,
            scheduling_strategy=strategies.PlacementGroupSchedulingStrategy(group, bundle),
        ).remote(f"ray-{name}-{first + bundle}", options, port, key)
        for bundle in range(count)
    ]  # fmt: skip


class Cluster:
    """The ducks of one name on a Ray cluster. A context manager that disconnects; the ducks stay until `down`."""

    def __init__(self, address: str, name: str = "default") -> None:
        self.address, self.name = address, _check(name)
        self._stack = contextlib.ExitStack()
        self._ray = self._stack.enter_context(_connected(address))

    def nests(self, timeout: float = _PATIENCE) -> list[Nest]:
        """Every duck with its address, asked now; one whose actor does not answer within `timeout` s says so.

        Raises NotFound: no ducks of this name.
        """
        actors = _taken(self._ray, self.name)
        if not actors:
            raise NotFound(f"cluster {self.name!r} has no ducks: teal cluster up --ray {self.address}")
        asked = {index: actor.facts.remote(timeout) for index, actor in actors.items()}
        until = time.monotonic() + timeout
        return [self._nest(index, answer, until) for index, answer in asked.items()]

    def _nest(self, index: int, answer: Any, until: float) -> Nest:
        try:
            facts = self._ray.get(answer, timeout=max(0.1, until - time.monotonic()))
        except self._ray.exceptions.GetTimeoutError:
            facts = {"error": "its actor does not answer: Ray is starting it again, or its node is gone"}
        except self._ray.exceptions.RayError as error:
            facts = {"error": str(error).splitlines()[0][:200]}
        return Nest(
            index, str(facts.get("node", "")), str(facts.get("address", "")), int(facts.get("pid", 0)),
            bool(facts.get("restarted", False)), float(facts.get("up_s", 0.0)), str(facts.get("error", "")),
        )  # fmt: skip

    def addresses(self, timeout: float = _PATIENCE) -> list[str]:
        """HOST:PORT of every duck that listens, in the order of their index."""
        return [nest.address for nest in self.nests(timeout) if nest.address]

    def close(self) -> None:
        """Disconnects from Ray. The ducks stay."""
        self._stack.close()

    def __enter__(self) -> Cluster:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def up(
    address: str,
    *,
    name: str = "default",
    count: int | None = None,
    port: int = 0,
    options: Sequence[str] = (),
    key: str | None = None,
    timeout: float = 120.0,
    progress: Callable[[str], None] = lambda _: None,
) -> list[Nest]:
    """Puts a duck on every node of the Ray cluster at `address` that has none of this name; returns all of them.

    count: of ducks in all, at most one a node [default: one on every node]; options: of `teal duck serve`; key: the
    text of a key file, which travels through Ray, or give `--key-file` of a file on every node among the options.
    Raises NotFound (no ray), PeerDied (no cluster there), QuotaExceeded (fewer nodes than asked for).
    """
    _check(name)
    with Cluster(address, name) as cluster:
        ray = cluster._ray
        actors = _taken(ray, name)
        progress(f"{len(_alive(ray))} nodes, {len(actors)} ducks")
        have = {nest.node for nest in cluster.nests()} if actors else set()
        wanted = len(_alive(ray)) if count is None else count
        missing = wanted - len(actors)
        if missing > 0:
            first = max(actors, default=-1) + 1
            free = [node for node in _alive(ray) if node not in have]
            if missing > len(free):
                raise QuotaExceeded(f"{wanted} ducks, but {len(actors) + len(free)} nodes: at most one a node")
            group = _group(ray, name, first, missing, sorted(have), timeout)
            progress(f"starting {missing} ducks")
            _place(ray, name, first, group, missing, list(options), port, key)
        return cluster.nests(timeout)


def down(address: str, *, name: str = "default") -> int:
    """Ends every duck of that name, in order, and gives their places back to Ray. Returns how many there were."""
    with Cluster(address, name) as cluster:
        ray = cluster._ray
        actors = _taken(ray, name)
        stopped = [actor.stop.remote() for actor in actors.values()]
        if stopped:
            ray.wait(stopped, num_returns=len(stopped), timeout=10.0)
        for actor in actors.values():
            ray.kill(actor, no_restart=True)
        module = importlib.import_module("ray.util.placement_group")
        for group in ray.util.placement_group_table().values():
            if re.fullmatch(rf"ducks-{re.escape(name)}-\d+", str(group.get("name", ""))):
                with contextlib.suppress(ValueError):
                    module.remove_placement_group(ray.util.get_placement_group(group["name"]))
        return len(actors)
